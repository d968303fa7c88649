// The comparison table and the curves.

const scoreName = () => page.regression ? "R²" : "accuracy";
const scoreUnit = () => page.regression ? "" : " %";
const scoreText = (value) => number(value, page.regression ? 3 : 2);

const signed = (value) => known(value) ? (value > 0 ? "+" : "") + scoreText(value) : "–";
const against = (name) => (line) => line.against ? line.against[name] : null;
const worseOff = (line) => line.against ? `${line.against.worse} of ${line.against.clients}` : "–";

function drawTable() {
  const f = (name) => (line) => line.figures[name];
  const column = (head, name, text) => ({ head, value: f(name), text: (l) => text(f(name)(l)) });
  sortable(byId("table"), [
    { head: "method", value: (l) => l.label, text: (l) => l.label, word: true },
    { head: scoreName() + scoreUnit(), value: f("score"),
      text: (l) => scoreText(l.figures.score) + (known(l.figures.std) ? " ± " + scoreText(l.figures.std) : "") },
    column("worst client", "worst", scoreText),
    ...(page.lines.some((l) => l.against) ? [
      { head: "gain over local", value: against("mean"), text: (l) => signed(against("mean")(l)) },
      { head: "worse off than alone", value: against("share_worse"), text: worseOff },
    ] : []),
    ...page.columns.map((c) => c.name === "seconds" ? column("time", c.name, clock)
      : column(c.words, c.name, c.form === "bytes" ? bytes : c.form === "count" || c.form === "0" ? whole
        : (v) => number(v, Number(c.form)))),
    ...(page.lines.some((l) => l.figures.status !== "finished")
      ? [{ head: "state", value: f("status"), text: f("status"), word: true }] : []),
  ], page.lines, (line) => key(page.lines.indexOf(line)));
  byId("table-hint").textContent = (page.regression
    ? "R² on each client's own test data" : "Accuracy on each client's own test data")
    + ": mean over clients ± standard deviation over clients. Graph L1 is the mean distance of a row of the "
    + "weights to the true row (0 to 2), ARI the agreement with the true groups (1 is exact). "
    + "With several seeds every number is a mean over them. A column sorts when its head is chosen.";
  const feds = [...new Set(page.federations.map((f) => `${f.name}, ${whole(f.clients)} clients`))];
  const seeds = [...new Set(page.lines.map((l) => l.figures.seeds))];
  const each = seeds.length === 1 && seeds[0] > 1 ? `, ${seeds[0]} seeds each` : "";
  byId("lead").textContent = `${feds.join("; ")} · ${page.lines.length} `
    + `${page.lines.length === 1 ? "method" : "methods"}, ${page.runs.length} `
    + `${page.runs.length === 1 ? "run" : "runs"}${each}`;
}

const X = {
  round: "round", bytes: "sent by all clients", epochs: "local epochs", seconds: "seconds",
};

function xOf(curve, name, unit) {
  if (name === "round") return curve.round.map((t) => t + 1);
  if (!curve[name]) return null;
  return name === "bytes" ? curve.bytes.map((b) => known(b) ? b / unit.size : null) : curve[name];
}

function curveTraces(name, x, band, unit) {
  const traces = [];
  page.lines.forEach((line, n) => {
    const curve = line[name];
    const xs = xOf(curve, x, unit);
    if (!xs || !xs.length || !isShown(line)) return;
    const [low, high] = band === "clients" && curve.clients_low ? [curve.clients_low, curve.clients_high]
      : band === "seeds" && line.runs.length > 1 ? [curve.low, curve.high] : [null, null];
    if (low) {
      traces.push({
        x: [...xs, ...[...xs].reverse()], y: [...high, ...[...low].reverse()], fill: "toself",
        fillcolor: colour(n), opacity: 0.13, line: { width: 0 }, mode: "lines", hoverinfo: "skip",
        showlegend: false,
      });
    }
    traces.push({
      x: xs, y: curve.mean, name: plain(line.label), showlegend: false,
      mode: xs.length === 1 ? "markers" : "lines", line: { color: colour(n), dash: dash(n), width: 2 },
      marker: { color: colour(n), size: 8 },
      hovertemplate: `${plain(line.label)}<br>%{x:.4~g}: %{y:.4~g}<extra></extra>`,
    });
  });
  return traces;
}

function drawCurves() {
  const [x, band, loss] = [byId("x").value, byId("band").value, byId("loss").value];
  const most = Math.max(1, ...page.lines.map((l) => l.figures.bytes_sent || 0));
  const unit = unitOf(most);
  const words = X[x] + (x === "bytes" ? ` (${unit.name})` : x === "seconds" ? " (s)" : "");
  const best = [...page.lines].filter((l) => known(l.figures.score))
    .sort((a, b) => b.figures.score - a.figures.score)[0];
  const score = curveTraces("score", x, band, unit);
  const ends = best ? ` Best at the end: ${best.label} with ${scoreText(best.figures.score)}${scoreUnit()}.` : "";
  if (score.length) {
    chart("c-score", score, {
      title: `Test ${scoreName()}, mean over clients`, xaxis: { title: { text: words } },
      yaxis: { title: { text: `test ${scoreName()}${page.regression ? "" : " (%)"}` } },
    }, `Lines of test ${scoreName()} over ${words}, one a method.${ends}`);
  } else noChart("c-score", "No score to draw: no evaluated round is recorded, or no method is switched on.");
  const lossName = loss === "test_loss" ? "test loss" : "training loss";
  const lines = curveTraces(loss, x, band === "clients" ? "none" : band, unit);
  if (lines.length) {
    chart("c-loss", lines, {
      title: `${lossName[0].toUpperCase()}${lossName.slice(1)}, mean over clients`,
      xaxis: { title: { text: words } }, yaxis: { title: { text: `${lossName}${page.regression ? " (squared error)" : " (nats)"}` } },
    }, `Lines of ${lossName} over ${words}, one a method.`);
  } else noChart("c-loss", `No ${lossName} to draw: none is recorded, or no method is switched on.`);
}

function startCurves() {
  const has = (name) => page.lines.some((l) => l.score[name] && l.score[name].some(known));
  fill(byId("x"), Object.entries(X).filter(([name]) => name === "round" || has(name)), "round");
  const several = page.lines.some((l) => l.runs.length > 1);
  fill(byId("band"), [["clients", "10–90 % of clients"], ...(several ? [["seeds", "over seeds"]] : []),
    ["none", "none"]], page.lines.length > 8 ? "none" : several ? "seeds" : "clients");
  ["x", "band", "loss"].forEach((id) => byId(id).addEventListener("change", drawCurves));
}
