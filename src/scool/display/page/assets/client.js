// One client: whom it learns from, how well it does, what it has.

function drawNeighbours(row, t) {
  const fed = federation();
  const all = Array.from(row, (v, j) => [j, v]).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]);
  const most = all.slice(0, 12);
  const name = (j) => j === shown.client ? "itself" : plain(clientName(j, fed), 24);
  const sum = most.reduce((s, [, v]) => s + v, 0);
  if (!most.length) return noChart("c-neighbours", "This client learned from nobody in this round.");
  chart("c-neighbours", [{
    type: "bar", orientation: "h", x: most.map(([, v]) => v), y: most.map((_, n) => n),
    marker: { color: most.map(([j]) => j === shown.client ? css("soft") : colour(0)) },
    text: most.map(([, v]) => v.toFixed(3)), textposition: "auto", cliponaxis: false,
    customdata: most.map(([j]) => j), hovertemplate: most.map(([j, v]) => `${name(j)}: ${v.toFixed(3)}<extra></extra>`),
  }], {
    title: `Learns from ${all.length} ${all.length === 1 ? "client" : "clients"} in round ${t + 1}`
      + (all.length > most.length ? `, the ${most.length} strongest` : ""),
    xaxis: { title: { text: "weight" }, rangemode: "tozero" },
    yaxis: { tickvals: most.map((_, n) => n), ticktext: most.map(([j]) => name(j)), autorange: "reversed", title: { text: "client" } },
  }, `Client ${clientName(shown.client)} learns from `
    + most.slice(0, 5).map(([j, v]) => `${j === shown.client ? "itself" : clientName(j)} with weight ${v.toFixed(3)}`).join(", ")
    + `. The bars add up to ${sum.toFixed(2)}.`);
  return byId("c-neighbours");
}

/** Runs on the same clients as the run that is shown. */
const siblings = () => page.runs.filter((r) => r.kin === current().kin);
const lineOf = (run) => page.lines.findIndex((l) => l.label === run.label);

function drawClient() {
  const [run, fed, i] = [current(), federation(), shown.client];
  const words = [`Client ${clientName(i)}`];
  if (fed.groups) words.push(`true group ${fed.groups[i]}`);
  if (run.graph && run.graph.learned_blocks && known(run.graph.learned_blocks[i])) words.push(`learned block ${run.graph.learned_blocks[i]} (${run.label})`);
  if (fed.counts) words.push(`${whole(fed.counts.train[i].reduce((a, b) => a + b, 0))} training samples`);
  if (known(run.final[i])) words.push(`${scoreName()} ${scoreText(run.final[i])}${scoreUnit()} with ${run.label}`);
  if (String(i) in run.quarantined) words.push(`in quarantine: non-finite ${run.quarantined[i]}`);
  if (run.advice) words.push(run.advice[i]);
  byId("client-text").textContent = words.join(" · ");
  drawClasses(fed, i);
  drawLearning(i);
  const local = known(run.local) ? page.runs[run.local].final[i] : null;
  const against = (r) => known(local) && known(r.final[i]) ? r.final[i] - local : null;
  sortable(byId("client-table"), [
    { head: "method", value: (r) => runName(r), text: runName, word: true },
    { head: scoreName() + scoreUnit(), value: (r) => r.final[i], text: (r) => scoreText(r.final[i]) },
    { head: "against local-only", value: against,
      text: (r) => known(against(r)) ? (against(r) > 0 ? "+" : "") + scoreText(against(r)) : "–" },
    ...page.metrics.map((m) => ({ head: m.words, value: (r) => (r.metrics[m.name] || [])[i] ?? null,
      text: (r) => number((r.metrics[m.name] || [])[i] ?? null, Number(m.form)) })),
  ], siblings(), (r) => key(lineOf(r)));
}

function drawLearning(i) {
  const traces = siblings().filter((r) => r.evaluated.length && isShown(page.lines[lineOf(r)])).map((r) =>
    trace(r.scores.map((row) => row[i]), r.evaluated, plain(r.label), lineOf(r), { line: { color: colour(lineOf(r)), dash: dash(lineOf(r)), width: r === current() ? 3.5 : 1.6 } }));
  if (!traces.length) return noChart("c-learning", "No curve to draw: no evaluated round is recorded, or no method is switched on.");
  return chart("c-learning", traces, {
    title: `Learning curve of client ${plain(clientName(i), 30)}`, showlegend: false, xaxis: { title: { text: "round" } },
    yaxis: { title: { text: `test ${scoreName()}${page.regression ? "" : " (%)"}` } },
  }, `Test ${scoreName()} of client ${clientName(i)} over rounds, one line a method.`);
}

function drawClasses(fed, i) {
  if (!fed.counts) return noChart("c-classes", "The run folder does not record which classes the clients have.");
  const parts = [["train", "training"], ["val", "validation"], ["test", "testing"]]
    .filter(([part]) => fed.counts[part][i].some((n) => n > 0));
  const at = fed.classes.map((_, c) => c).filter((c) => fed.classes.length <= 30 || parts.some(([p]) => fed.counts[p][i][c]));
  return chart("c-classes", parts.map(([part, words], n) => ({
    type: "bar", name: words, x: at.map((_, place) => place), y: at.map((c) => fed.counts[part][i][c]),
    marker: { color: colour(n) }, hovertemplate: at.map((c) => `${plain(fed.classes[c])}: %{y} ${words} samples<extra></extra>`),
  })), {
    title: `Samples of client ${plain(clientName(i), 30)}`, barmode: "group",
    xaxis: { title: { text: "class" }, tickvals: at.map((_, place) => place), ticktext: at.map((c) => plain(fed.classes[c], 14)) },
    yaxis: { title: { text: "samples" }, rangemode: "tozero" },
  }, `Samples of client ${clientName(i)} by class.`);
}
