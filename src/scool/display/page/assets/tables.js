// Tables: plain ones, and ones that sort by a column.

/** columns: {head, value(row), text(row), word}; rows: anything. Sorted by a click or by Enter. */
function sortable(table, columns, rows, mark) {
  const heads = columns.map((column, place) => {
    const button = make("button", { type: "button" }, column.head);
    const head = make("th", { scope: "col", "aria-sort": "none" }, button);
    if (column.word) head.className = "word";
    button.addEventListener("click", () => order(place));
    return head;
  });
  const body = make("tbody");
  table.querySelectorAll("thead, tbody").forEach((part) => part.remove());
  table.append(make("thead", {}, make("tr", {}, ...heads)), body);

  function order(place) {
    const was = heads[place].getAttribute("aria-sort");
    const falls = was === "none" ? !columns[place].word : was === "ascending";
    heads.forEach((head) => head.setAttribute("aria-sort", "none"));
    heads[place].setAttribute("aria-sort", falls ? "descending" : "ascending");
    const sign = falls ? -1 : 1;
    show([...rows].sort((a, b) => {
      const [x, y] = [columns[place].value(a), columns[place].value(b)];
      if (!known(x) || !known(y)) return known(x) ? -1 : known(y) ? 1 : 0;
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    }));
  }

  function show(sorted) {
    body.replaceChildren(...sorted.map((row) => make("tr", {}, ...columns.map((column, place) => {
      const text = column.text(row);
      const cell = make(place ? "td" : "th", place ? {} : { scope: "row" }, text);
      if (column.word && text.length > 28) cell.className = "word";
      if (!place && mark) cell.prepend(mark(row));
      return cell;
    }))));
  }
  show(rows);
}

/** Names and values side by side. */
function pairs(place, values) {
  const rows = Object.entries(values).map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "word" }, value)));
  place.replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
}

/** The little line that ties a name to its curve: colour and dashes. */
function key(number) {
  const name = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(name, "svg");
  const line = document.createElementNS(name, "line");
  const dashes = { solid: "", dash: "7 4", dashdot: "7 3 2 3", dot: "2 3", longdash: "11 4" };
  const set = (element, values) => Object.entries(values).forEach(([n, v]) => element.setAttribute(n, v));
  set(picture, { class: "key", width: 28, height: 8, viewBox: "0 0 28 8", "aria-hidden": "true" });
  set(line, { x1: 1, x2: 27, y1: 4, y2: 4, stroke: colour(number), "stroke-width": 4, "stroke-dasharray": dashes[dash(number)] });
  picture.append(line);
  return picture;
}

/** One button a method: what is switched off is drawn nowhere. */
const hidden = new Set();

function drawLegend() {
  byId("legend").replaceChildren(...page.lines.map((line, n) => {
    const button = make("button", { type: "button", "aria-pressed": String(!hidden.has(n)) }, key(n), line.label);
    button.addEventListener("click", () => {
      if (!hidden.delete(n)) hidden.add(n);
      button.setAttribute("aria-pressed", String(!hidden.has(n)));
      drawCurves();
      drawGains();
      drawTraffic();
      drawLearning(shown.client);
    });
    return button;
  }));
}

const isShown = (line) => !hidden.has(page.lines.indexOf(line));
