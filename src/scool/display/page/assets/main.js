// Controls, and the order in which things are drawn.

let page = null;

function fillGraphControls() {
  const run = current();
  const fed = federation();
  const orders = [];
  if (run.graph) orders.push(["learned", run.graph.learned_blocks ? "learned block" : "likeness"]);
  if (fed.true_order) orders.push(["true", fed.true_words]);
  orders.push(["number", "number"]);
  if (!orders.some(([value]) => value === shown.order)) shown.order = orders[0][0];
  fill(byId("order"), orders, shown.order);
  const last = run.graph ? run.graph.rounds.length - 1 : 0;
  shown.place = Math.min(shown.place, last);
  byId("round").max = last;
  byId("round").value = shown.place;
  byId("round").disabled = byId("play").disabled = last === 0;
  if (shown.client >= fed.clients) shown.client = 0;
  fill(byId("who"), Array.from({ length: fed.clients }, (_, i) => [i, clientName(i)]), shown.client);
  const { words } = arrangement();
  byId("graph-hint").textContent = "A row shows whom a client learns from; the colour scale ends at the largest weight "
    + "to another client" + (words === "learned block" && !run.blocks ? `; no blocks of ${run.label} are recorded, `
      + "so its communities stand in" : "") + ". Choose a row or a dot to see that client below.";
}

async function drawRun() {
  fillGraphControls();
  await drawGraph();
  drawBlocks();
  drawClient();
  drawPartition();
  drawPurpose();
}

function chooseClient(i) {
  shown.client = Math.max(0, Math.min(federation().clients - 1, i));
  byId("who").value = shown.client;
  drawClient();
  return drawGraph();
}

function stop() {
  clearTimeout(shown.playing);
  shown.playing = null;
  byId("play").textContent = "▶ play";
  byId("play").setAttribute("aria-pressed", "false");
}

async function play() {
  const last = current().graph.rounds.length - 1;
  if (shown.playing !== null) return stop();
  if (shown.place >= last) shown.place = 0;
  byId("play").textContent = "❚❚ stop";
  byId("play").setAttribute("aria-pressed", "true");
  const step = async () => {
    byId("round").value = shown.place;
    await drawRound();
    if (shown.place >= last) { stop(); return; }
    shown.place += 1;
    shown.playing = setTimeout(step, Math.max(60, Math.min(500, 8000 / (last + 1))));
  };
  shown.playing = setTimeout(step, 0);
  return undefined;
}

function listen() {
  byId("run").addEventListener("change", () => { stop(); shown.run = Number(byId("run").value); shown.place = Infinity; drawRun(); });
  byId("order").addEventListener("change", () => { shown.order = byId("order").value; drawRun(); });
  byId("view").addEventListener("change", drawGraph);
  byId("round").addEventListener("input", () => { stop(); shown.place = Number(byId("round").value); drawRound(); });
  byId("play").addEventListener("click", play);
  byId("who").addEventListener("change", () => chooseClient(Number(byId("who").value)));
  byId("before").addEventListener("click", () => chooseClient(shown.client - 1));
  byId("after").addEventListener("click", () => chooseClient(shown.client + 1));
  byId("part").addEventListener("change", drawPartition);
}

function startTheme() {
  const button = byId("theme");
  const words = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" };
  const next = { auto: "light", light: "dark", dark: "auto" };
  button.addEventListener("click", () => {
    const now = next[document.documentElement.dataset.theme ?? "auto"];
    if (now === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.textContent = words[now];
    button.setAttribute("aria-label", `Colours: ${now === "auto" ? "as the system says" : now}`);
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

/** What needs no chart: it is there at once. */
function drawWords() {
  drawTable();
  drawLegend();
  drawNotes();
  drawConfiguration();
}

/** The charts from the top down; between two the page stays usable. */
async function drawCharts() {
  drawCurves();
  await rest();
  await drawRun();
  await rest();
  drawGains();
  drawTraffic();
}

const rest = () => new Promise((done) => setTimeout(done, 0));

function drawAll() {
  drawWords();
  return drawCharts();
}

/** The run to begin with: the first that learned blocks under a bound, else with any, else the last. */
function firstRun() {
  const ranks = page.runs.map((r) => r.graph ? 1 + Number(Boolean(r.blocks)) + Number(Boolean(r.blocks && r.elbo)) : 0);
  const best = Math.max(...ranks);
  return best > 1 ? ranks.indexOf(best) : page.runs.length - 1;
}

async function open() {
  if (!("DecompressionStream" in window)) {
    byId("broken").hidden = false;
    byId("broken").textContent = "This browser cannot unpack the data of this page. Any browser from 2023 on can.";
    return;
  }
  page = JSON.parse(await unpackText("values"));
  shown.run = firstRun();
  shown.place = Infinity;
  fill(byId("run"), page.runs.map((r, n) => [n, runName(r)]), shown.run);
  drawWords();
  startCurves();
  await rest();
  document.head.append(make("script", {}, await unpackText("plotly")));
  await drawCharts();
  startTheme();
  listen();
  document.documentElement.dataset.ready = "yes";
}

open();
