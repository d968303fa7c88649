// Tables of the site: a click on a heading sorts by it, and a field filters the table below it. Loads nothing.
(function () {
  const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };

  // A number with its unit; NaN where a cell has none.
  function number(text) {
    const found = text.replace(/,/g, "").replace("\u2212", "-").match(/^([+-]?\d+(?:\.\d+)?)\s*([kMGT]?B)?/);
    return found ? Number(found[1]) * (UNITS[found[2]] || 1) : NaN;
  }

  function sort(table, column, sign) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => [row.cells[column].textContent.trim(), row]);
    const isNumeric = rows.some(([text]) => !Number.isNaN(number(text)));
    rows.sort(([a], [b]) => {
      if (!isNumeric) return sign * a.localeCompare(b);
      const [x, y] = [number(a), number(b)];
      return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) : sign * (x - y);
    });
    body.append(...rows.map(([, row]) => row));
  }

  function sortable(table) {
    Array.from(table.tHead.rows[0].cells, (head, column) => {
      let sign = 1;
      head.style.cursor = "pointer";
      head.tabIndex = 0;
      const act = () => {
        sign = -sign; // the largest first
        sort(table, column, sign);
        for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      };
      head.addEventListener("click", act);
      head.addEventListener("keydown", (event) => event.key === "Enter" && act());
    });
  }

  function filtered(place, table) {
    const field = document.createElement("input");
    field.placeholder = "filter, e.g. cifar10 ditto";
    field.setAttribute("aria-label", "filter the table");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      for (const row of table.tBodies[0].rows)
        row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
    place.append(field);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const tables = Array.from(document.querySelectorAll("article table, .md-content table")).filter((t) => t.tHead);
    tables.forEach(sortable);
    const place = document.querySelector(".filtered");
    if (place && tables.length) filtered(place, tables[0]);
  });
})();
