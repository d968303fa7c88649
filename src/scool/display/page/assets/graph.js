// The cooperation graph over rounds: heat map, network, true graph, errors, blocks.

const shown = { run: 0, place: 0, order: "learned", client: 0, playing: null };
const current = () => page.runs[shown.run];
const federation = () => page.federations[current().federation];
const clientName = (i, fed = federation()) => fed.names ? `${i} (${fed.names[i]})` : String(i);
const runName = (run) => run.label + (known(run.seed) ? `, seed ${run.seed}` : "");

/** The weights of a frame as rows, w = (q / 255)^2 top. */
function weights(codes, about, place) {
  const k = about.clients;
  const start = about.frame[place] * k * k;
  const value = Float32Array.from({ length: 256 }, (_, q) => (q / 255) ** 2 * about.top[place]);
  return Array.from({ length: k }, (_, i) =>
    Float32Array.from(codes.subarray(start + i * k, start + (i + 1) * k), (q) => value[q]));
}

/** The clients in the order chosen, and a group a client for colours. */
function arrangement() {
  const [graph, fed] = [current().graph, federation()];
  const k = (graph || { clients: fed.clients }).clients;
  const byNumber = { order: Array.from({ length: k }, (_, i) => i), group: null, words: "number" };
  if (shown.order === "true" && fed.true_order) {
    return { order: fed.true_order, group: fed.groups, words: fed.true_words };
  }
  if (shown.order === "learned" && graph) {
    const words = graph.learned_blocks ? "learned block" : "likeness";
    return { order: graph.learned_order, group: graph.learned_blocks, words };
  }
  return byNumber;
}

function largestOther(w) {
  let top = 0;
  w.forEach((row, i) => row.forEach((v, j) => { if (i !== j && v > top) top = v; }));
  return top || 1;
}

/** Ticks a person can read: every client when there are few, else about ten. */
function ticks(order, fed) {
  const every = Math.ceil(order.length / (narrow() ? 8 : 12));
  const at = order.filter((_, place) => place % every === 0);
  const short = (i) => fed.names ? plain(fed.names[i], 12) : String(i);
  return { type: "category", tickvals: at.map((i) => plain(clientName(i, fed))), ticktext: at.map(short) };
}

function heat(id, w, title, alt) {
  const { order, words } = arrangement();
  const fed = federation();
  const z = order.map((i) => Float32Array.from(order, (j) => w[i][j]));
  const axis = { ...ticks(order, fed), showgrid: false, zeroline: false, constrain: "domain" };
  const names = order.map((i) => plain(clientName(i, fed)));
  chart(id, [{
    type: "heatmap", z, x: names, y: names, colorscale: scale(), zmin: 0, zmax: largestOther(w),
    hovertemplate: "%{y} learns from %{x}<br>weight %{z:.3f}<extra></extra>",
    colorbar: { title: { text: "weight", side: "right" }, thickness: 10, outlinewidth: 0, len: 0.8 },
  }], {
    title, margin: { l: 55, r: 10, t: 66, b: 50 },
    xaxis: { ...axis, title: { text: "learns from client" } },
    yaxis: { ...axis, title: { text: `client, by ${words}` }, autorange: "reversed", scaleanchor: "x" },
  }, alt);
}

/** A row or a dot chooses its client. */
function listenTo(id) {
  byId(id).removeAllListeners("plotly_click");
  byId(id).on("plotly_click", ({ points: [point] }) =>
    chooseClient(known(point.customdata) ? point.customdata : arrangement().order[point.pointNumber[0]]));
}

/** Edges worth drawing: the strongest of each client. */
function edges(w, perClient) {
  const top = largestOther(w);
  const found = [];
  w.forEach((row, i) => {
    const mine = [];
    row.forEach((v, j) => { if (i !== j && v > top / 20) mine.push([i, j, v / top]); });
    mine.sort((a, b) => b[2] - a[2]);
    found.push(...mine.slice(0, perClient));
  });
  return found;
}

function circle(order) {
  const places = [];
  order.forEach((i, n) => {
    const angle = 2 * Math.PI * n / order.length;
    places[i] = [Math.sin(angle), Math.cos(angle)];
  });
  return places;
}

function net(id, w, places, title, alt) {
  const { order, group } = arrangement();
  const fed = federation();
  const at = shown.order === "number" || !places ? circle(order) : places;
  const k = w.length;
  const all = edges(w, k > 300 ? 3 : k > 60 ? 6 : 12);
  const wire = (some, c, width, opacity) => ({
    x: some.flatMap(([i, j]) => [at[i][0], at[j][0], null]),
    y: some.flatMap(([i, j]) => [at[i][1], at[j][1], null]),
    mode: "lines", line: { color: c, width }, opacity, hoverinfo: "skip", showlegend: false,
  });
  const other = all.filter(([i]) => i !== shown.client);
  const mine = all.filter(([i]) => i === shown.client);
  const traces = [];
  for (const [from, to, width] of [[0, 0.25, 0.5], [0.25, 0.6, 1], [0.6, 2, 1.8]]) {
    const strong = (some) => some.filter(([, , v]) => v > from && v <= to);
    traces.push(wire(strong(other), css("soft"), width, 0.15 + 0.25 * from));
    traces.push(wire(strong(mine), css("accent"), 1.4 * width, 0.55 + 0.4 * from));
  }
  const colours = order.map((_, i) => !group ? colour(0) : known(group[i]) ? colour(group[i]) : css("soft"));
  const groupText = (i) => known(group[i]) ? `group ${group[i]}` : "in quarantine";
  traces.push({
    x: at.map((p) => p[0]), y: at.map((p) => p[1]), mode: k <= 60 ? "markers+text" : "markers",
    text: at.map((_, i) => String(i)), textposition: "top center", textfont: { size: 9, color: css("soft") },
    marker: { size: at.map((_, i) => i === shown.client ? 15 : k > 300 ? 5 : 10), color: colours,
      line: { color: at.map((_, i) => i === shown.client ? css("accent") : css("paper")), width: 1.5 } },
    customdata: at.map((_, i) => i), showlegend: false,
    hovertemplate: at.map((_, i) => `client ${plain(clientName(i, fed))}`
      + `${group ? `<br>${groupText(i)}` : ""}<extra></extra>`),
  });
  const axis = { visible: false, range: [-1.15, 1.15] };
  chart(id, traces, {
    title, xaxis: axis, yaxis: { ...axis, scaleanchor: "x" }, margin: { l: 10, r: 10, t: 66, b: 10 },
  }, alt);
}

/** The graph of the round that is shown, and whom the client learns from in it. */
async function drawLearned() {
  const [run, fed] = [current(), federation()];
  if (!run.graph) {
    noChart("c-graph", "No graph is recorded for this run.");
    noChart("c-neighbours", "No graph is recorded for this run, so no neighbours are known.");
    byId("round-text").textContent = "–";
    return;
  }
  const place = Math.min(shown.place, run.graph.rounds.length - 1);
  const t = run.graph.rounds[place];
  const codes = await unpack(run.graph.blob);
  if (run !== current()) return;
  const w = weights(codes, run.graph, place);
  const row = run.rounds.indexOf(t);
  const far = run.graph_l1 && known(run.graph_l1[row]) ? ` L1 distance to the true graph ${number(run.graph_l1[row], 3)}.` : "";
  const title = `${plain(run.label)}, round ${t + 1}`;
  const isHeat = byId("view").value === "heat";
  const alt = `${isHeat ? "Heat map" : "Network drawing"} of who learns from whom, ${run.label}, round ${t + 1}.${far}`;
  const places = shown.order === "true" && fed.truth ? fed.truth.places : run.graph.places;
  if (isHeat) heat("c-graph", w, title, alt); else net("c-graph", w, places, title, alt);
  listenTo("c-graph");
  byId("round-text").textContent = `${t + 1} of ${run.graph.rounds.at(-1) + 1}`;
  byId("round").setAttribute("aria-valuetext", `round ${t + 1}`);
  drawNeighbours(w[shown.client], t);
}

async function drawTruth() {
  const fed = federation();
  if (!fed.truth) {
    noChart("c-truth", "The true graph of this data is not known, or the run folder does not record it.");
    return;
  }
  const w = weights(await unpack(fed.truth.blob), fed.truth, 0);
  if (fed !== federation()) return;
  const isHeat = byId("view").value === "heat";
  const alt = `${isHeat ? "Heat map" : "Network drawing"} of the true graph of ${fed.name}.`;
  if (isHeat) heat("c-truth", w, "True graph", alt); else net("c-truth", w, fed.truth.places, "True graph", alt);
  listenTo("c-truth");
}

async function drawGraph() {
  await drawLearned();
  await drawTruth();
  drawErrors();
}

/** Another round of the same run. While one is being drawn, only the last wish counts. */
const wish = { isBusy: false, isOpen: false };

async function drawRound() {
  wish.isOpen = true;
  if (wish.isBusy) return;
  wish.isBusy = true;
  while (wish.isOpen) {
    wish.isOpen = false;
    await drawLearned();
    for (const id of ["c-error", "c-elbo"]) if (byId(id).data) Plotly.relayout(byId(id), { shapes: marker() });
    await new Promise((done) => setTimeout(done, 0));
  }
  wish.isBusy = false;
}

/** A dashed line at the round that the slider shows. */
function marker() {
  const graph = current().graph;
  if (!graph) return [];
  const x = graph.rounds[Math.min(shown.place, graph.rounds.length - 1)] + 1;
  return [{ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: css("soft"), width: 1, dash: "dot" } }];
}

function trace(values, rounds, name, n, more = {}) {
  const at = rounds.map((t, place) => [t + 1, values[place]]).filter(([, v]) => known(v));
  return {
    x: at.map((p) => p[0]), y: at.map((p) => p[1]), name, mode: at.length === 1 ? "markers" : "lines",
    line: { color: colour(n), dash: dash(n), width: 2 }, hovertemplate: `round %{x}: %{y:.4~g}<extra>${name}</extra>`, ...more,
  };
}

function drawErrors() {
  const run = current();
  const traces = [];
  if (run.graph_l1) traces.push(trace(run.graph_l1, run.rounds, "L1 distance", 0));
  if (run.graph_ari) traces.push(trace(run.graph_ari, run.rounds, "adjusted Rand index", 1, { yaxis: "y2" }));
  if (traces.length) {
    chart("c-error", traces, {
      title: `Distance to the true graph, ${plain(run.label)}`, shapes: marker(), margin: { l: 60, r: 60, t: 66, b: 50 },
      xaxis: { title: { text: "round" } }, yaxis: { title: { text: "L1 distance (0 to 2)" }, rangemode: "tozero" },
      yaxis2: { title: { text: "adjusted Rand index" }, overlaying: "y", side: "right", showgrid: false, zeroline: false, tickmode: "array", tickvals: [0, 0.25, 0.5, 0.75, 1], range: [-0.15, 1.08] },
    }, `L1 distance to the true graph and adjusted Rand index over rounds, ${run.label}.`);
  } else noChart("c-error", "No distance to a true graph is recorded: none is known, or the records of the rounds are lost (see the notes).");
  if (run.elbo) {
    chart("c-elbo", [trace(run.elbo, run.rounds, "bound", 2)], {
      title: `Evidence lower bound of the graph, ${plain(run.label)}`, shapes: marker(), showlegend: false,
      xaxis: { title: { text: "round" } }, yaxis: { title: { text: "bound (nats)" } },
    }, `The evidence lower bound over rounds, ${run.label}.`);
  } else noChart("c-elbo", `No evidence lower bound of ${run.label} is recorded.`);
}

function drawBlocks() {
  const run = current();
  const { order, words } = arrangement();
  const names = order.map((i) => plain(clientName(i)));
  const axis = { ...ticks(order, federation()), showgrid: false, autorange: "reversed", title: { text: `client, by ${words}` } };
  const rows = run.blocks ? run.blocks.map((b, n) => [run.rounds[n], b]).filter(([, b]) => b) : [];
  if (rows.length) {
    const count = 1 + Math.max(...rows.map(([, b]) => Math.max(...b)), ...(run.memberships ? [run.memberships[0].length - 1] : []));
    chart("c-blocks", [{
      type: "heatmap", x: rows.map(([t]) => t + 1), y: names, z: order.map((i) => rows.map(([, b]) => b[i])),
      zmin: -0.5, zmax: count - 0.5, colorscale: steps(count), hoverongaps: false,
      hovertemplate: "client %{y}, round %{x}: block %{z}<extra></extra>",
      colorbar: { title: { text: "block", side: "right" }, thickness: 10, outlinewidth: 0, dtick: Math.ceil(count / 10) },
    }], { title: `Block of each client, ${plain(run.label)}`, xaxis: { title: { text: "round" }, showgrid: false }, yaxis: axis },
    `The block of each client over rounds, ${run.label}${rows.some(([, b]) => !b.every(known)) ? "; empty while it is in quarantine" : ""}.`);
  } else noChart("c-blocks", `No blocks of ${run.label} are recorded.`);
  if (run.memberships && run.memberships.length === order.length) {
    chart("c-member", [{
      type: "heatmap", y: names, z: order.map((i) => run.memberships[i]), zmin: 0, zmax: 1, colorscale: scale(), hoverongaps: false,
      hovertemplate: "client %{y}, block %{x}: share %{z:.2f}<extra></extra>",
      colorbar: { title: { text: "share", side: "right" }, thickness: 10, outlinewidth: 0 },
    }], { title: "Memberships in the newest checkpoint", xaxis: { title: { text: "block" }, dtick: 1, showgrid: false }, yaxis: axis },
    `How much each client belongs to each block, ${run.label}.`);
  } else noChart("c-member", "No memberships are recorded for this run.");
}
