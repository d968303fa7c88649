// Gains over clients, the partition, traffic, notes, configuration.

/** What each client of a run gained over local learning alone. */
function gainsOf(run) {
  if (!known(run.local)) return [];
  const alone = page.runs[run.local].final;
  return run.final.map((score, i) => ({ run, i, score, gain: known(score) && known(alone[i]) ? score - alone[i] : null }))
    .filter((g) => known(g.gain));
}

function drawGains() {
  const isLocal = (line) => line.runs.every((r) => page.runs[r].local === r);
  const lines = page.lines.filter((l) => isShown(l) && !isLocal(l) && l.runs.some((r) => gainsOf(page.runs[r]).length));
  const scored = page.lines.filter((l) => isShown(l) && l.runs.some((r) => page.runs[r].final.some(known)));
  const points = page.regression ? " in R²" : " (percentage points)";
  const shownLines = lines.length ? lines : scored;
  const all = (line) => line.runs.flatMap((r) => lines.length ? gainsOf(page.runs[r])
    : page.runs[r].final.map((score, i) => ({ run: page.runs[r], i, score, gain: null })).filter((g) => known(g.score)));
  const value = (g) => lines.length ? g.gain : g.score;
  const worst = shownLines.flatMap((line) => all(line).sort((a, b) => value(a) - value(b)).slice(0, 3));
  const name = (g) => clientName(g.i, page.federations[g.run.federation]);
  if (!shownLines.length) noChart("c-gains", "Nothing to draw: no evaluated round is recorded, or no method is switched on.");
  else {
    chart("c-gains", shownLines.map((line) => {
      const n = page.lines.indexOf(line);
      const mine = all(line);
      return {
        type: "box", y: mine.map(value), name: plain(line.label, 24), boxpoints: mine.length <= 2000 ? "all" : "outliers",
        jitter: 0.5, pointpos: 0, marker: { color: colour(n), size: 4, opacity: 0.55 }, line: { color: colour(n) },
        fillcolor: "rgba(0,0,0,0)", text: mine.map((g) => `client ${plain(name(g))}`), hovertemplate: "%{text}: %{y:.2f}<extra></extra>",
      };
    }), {
      title: lines.length ? "Gain of each client over learning alone" : "Score of each client (no local-only run among the runs: add one to see gains)",
      showlegend: false, xaxis: { title: { text: "method" } },
      yaxis: { title: { text: lines.length ? `gain${points}` : scoreName() + scoreUnit() }, zeroline: true, zerolinewidth: 2, zerolinecolor: css("soft") },
    }, lines.length ? `Boxes of the gain of each client over local learning, one a method. `
      + lines.map((l) => `${l.label}: ${all(l).filter((g) => g.gain < 0).length} of ${all(l).length} lost`).join("; ") + "."
      : "Boxes of the score of each client, one a method.");
  }
  drawAgainst();
  sortable(byId("worst"), [
    { head: "method", value: (g) => runName(g.run), text: (g) => runName(g.run), word: true },
    { head: "client", value: (g) => g.i, text: name },
    { head: scoreName() + scoreUnit(), value: (g) => g.score, text: (g) => scoreText(g.score) },
    { head: "gain", value: (g) => g.gain, text: (g) => known(g.gain) ? (g.gain > 0 ? "+" : "") + scoreText(g.gain) : "–" },
  ], worst, (g) => key(lineOf(g.run)));
}

/** The paired difference of each method to local learning, with both spreads and names. */
function drawAgainst() {
  const rows = page.lines.filter((line) => line.against);
  byId("against").hidden = byId("against-hint").hidden = !rows.length;
  const ends = (name) => (line) => line.against[name]
    ? line.against[name].map(signed).join(" to ") : name === "over_seeds" ? "one seed" : "–";
  const names = (line) => line.against.names_worse.slice(0, 5).join(", ")
    + (line.against.worse > 5 ? `, and ${line.against.worse - 5} more` : "");
  sortable(byId("against"), [
    { head: "method", value: (l) => l.label, text: (l) => l.label, word: true },
    { head: "mean gain", value: against("mean"), text: (l) => signed(l.against.mean) },
    { head: "95 % over seeds", value: (l) => (l.against.over_seeds || [null])[0], text: ends("over_seeds") },
    { head: "95 % over clients", value: (l) => (l.against.over_clients || [null])[0], text: ends("over_clients") },
    { head: "worse off than alone", value: against("share_worse"), text: worseOff },
    { head: "who, the worst first", value: names, text: (l) => names(l) || "nobody", word: true },
  ], rows, (line) => key(page.lines.indexOf(line)));
}

function drawPartition() {
  const fed = federation();
  const part = byId("part").value;
  if (!fed.counts) return noChart("c-partition", "The run folder does not record who has what; runs of this version do.");
  const counts = fed.counts[part];
  if (!counts.some((row) => row.some((n) => n > 0))) return noChart("c-partition", "There are no such samples.");
  const { order, words } = arrangement();
  const total = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const about = `${fed.name}: ${Math.min(...total)} to ${Math.max(...total)} samples per client.`;
  const names = order.map((i) => plain(clientName(i, fed)));
  const xaxis = { ...ticks(order, fed), title: { text: `client, by ${words}` }, showgrid: false };
  if (fed.classes.length === 1) {
    return chart("c-partition", [{ type: "bar", x: names, y: order.map((i) => total[i]), marker: { color: colour(0) }, hovertemplate: "client %{x}: %{y} samples<extra></extra>" }],
      { title: "Samples of each client", xaxis, yaxis: { title: { text: "samples" } } }, about);
  }
  const every = Math.ceil(fed.classes.length / 25);
  const at = fed.classes.map((_, c) => c).filter((c) => c % every === 0);
  return chart("c-partition", [{
    type: "heatmap", x: names, z: fed.classes.map((_, c) => order.map((i) => counts[i][c])), colorscale: scale(), zmin: 0, zmax: Math.max(...counts.map((row) => Math.max(...row))),
    text: fed.classes.map((name) => order.map(() => plain(name))),
    hovertemplate: "client %{x}, class %{text}<br>%{z} samples<extra></extra>",
    colorbar: { title: { text: "samples", side: "right" }, thickness: 10, outlinewidth: 0 },
  }], {
    title: "Samples of each client and class", xaxis,
    yaxis: { title: { text: "class" }, tickvals: at, ticktext: at.map((c) => plain(fed.classes[c], 16)), showgrid: false },
  }, about);
}

function drawTraffic() {
  const perRound = page.lines.map((line) => ({ line, run: page.runs[line.runs[0]] })).filter(({ line, run }) => run.bytes && isShown(line));
  if (!perRound.length) { noChart("c-bytes", "No traffic is recorded, or no method is switched on."); drawPurpose(); return; }
  const unit = unitOf(Math.max(1, ...perRound.flatMap(({ run }) => run.bytes.filter(known))));
  chart("c-bytes", perRound.map(({ line, run }) => trace(run.bytes.map((b) => known(b) ? b / unit.size : b), run.rounds, plain(line.label), page.lines.indexOf(line))), {
    title: "Sent in each round, by all clients", showlegend: false, xaxis: { title: { text: "round" } },
    yaxis: { title: { text: `sent a round (${unit.name})` }, rangemode: "tozero" },
  }, "Bytes sent in each round, one line a method.");
  drawPurpose();
  const mean = (values) => values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  const split = ({ line, run }, after) => known(line.sparsify_round)
    ? mean(run.bytes.filter((_, n) => (run.rounds[n] > line.sparsify_round) === after)) : after ? null : mean(run.bytes);
  const ratio = (p) => known(split(p, true)) && split(p, true) > 0 ? split(p, false) / split(p, true) : null;
  sortable(byId("sparse"), [
    { head: "method", value: (p) => p.line.label, text: (p) => p.line.label, word: true },
    { head: "peers dropped after round", value: (p) => p.line.sparsify_round, text: (p) => known(p.line.sparsify_round) ? String(p.line.sparsify_round + 1) : "never" },
    { head: "a round before", value: (p) => split(p, false), text: (p) => bytes(split(p, false)) },
    { head: "a round after", value: (p) => split(p, true), text: (p) => bytes(split(p, true)) },
    { head: "times less", value: ratio, text: (p) => number(ratio(p), 1) },
    { head: "in all", value: (p) => p.line.figures.bytes_sent, text: (p) => bytes(p.line.figures.bytes_sent) },
  ], perRound, (p) => key(page.lines.indexOf(p.line)));
}

function drawPurpose() {
  const run = current();
  const purposes = Object.entries(run.traffic);
  if (!purposes.length) return noChart("c-purpose", `${run.label} sent nothing.`);
  const unit = unitOf(Math.max(1, ...run.bytes));
  return chart("c-purpose", purposes.map(([purpose, values], n) => ({
    type: "bar", name: plain(purpose.replaceAll("_", " ")), x: run.rounds.map((t) => t + 1), y: values.map((v) => v / unit.size),
    marker: { color: colour(n) }, hovertemplate: `round %{x}: %{y:.4~g} ${unit.name}<extra>${plain(purpose)}</extra>`,
  })), {
    title: `What it was for, ${plain(run.label)}`, barmode: "stack", xaxis: { title: { text: "round" } },
    yaxis: { title: { text: `sent a round (${unit.name})` } }, bargap: 0.1,
  }, `Bytes by purpose in each round, ${run.label}.`);
}

function drawNotes() {
  const notes = page.problems.map((words) => ["", words]);
  for (const run of page.runs) {
    for (const [client, why] of Object.entries(run.quarantined)) {
      notes.push([runName(run), `client ${clientName(Number(client), page.federations[run.federation])} is in quarantine: non-finite ${why}`]);
    }
    if (run.fallback.length) {
      const most = Math.max(...run.fallback.map(([, n]) => n));
      notes.push([runName(run), `in ${run.fallback.length} rounds some clients (at most ${most}) found no peer to learn from`]);
    }
    run.problems.forEach((words) => notes.push([runName(run), words]));
  }
  const together = new Map();  // the same words of several runs are said once
  notes.forEach(([who, words]) => together.set(words, [...(together.get(words) || []), who]));
  const items = [...together].map(([words, who]) => {
    const names = who.filter((w) => w);
    const said = names.length > 4 ? `${names.slice(0, 3).join("; ")} and ${names.length - 3} more` : names.join("; ");
    return make("li", {}, said ? make("strong", {}, said + ": ") : "", words);
  });
  byId("note-list").replaceChildren(...(items.length ? items : [make("li", {}, "Nothing is missing, nobody is in quarantine.")]));
}

function drawConfiguration() {
  pairs(byId("common"), page.common);
  pairs(byId("machine"), page.machine);
  const names = Object.keys(page.different);
  const labels = page.lines.map((l) => l.label);
  if (!names.length) { byId("different").replaceChildren(make("p", { class: "hint" }, "The runs share every option.")); return; }
  const table = make("table", {}, make("caption", {}, "Options in which the methods differ"),
    make("thead", {}, make("tr", {}, make("th", {}, "option"), ...labels.map((l) => make("th", { scope: "col" }, l)))),
    make("tbody", {}, ...names.map((name) => make("tr", {}, make("th", { scope: "row" }, name.replace(/^algorithm\./, "")),
      ...labels.map((l) => make("td", {}, page.different[name][l] ?? "·"))))));
  byId("different").replaceChildren(table);
}
