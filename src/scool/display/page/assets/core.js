// Reading the packed values, words and numbers, elements, colours, charts.
"use strict";

const blobs = new Map();

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const codes = new Uint8Array(letters.length);
  for (let n = 0; n < letters.length; n += 1) codes[n] = letters.charCodeAt(n);
  return codes;
}

/** The bytes of a packed part of the page; each is unpacked once. */
function unpack(name) {
  if (!blobs.has(name)) {
    const text = document.getElementById("blob-" + name).textContent;
    const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    blobs.set(name, new Response(stream).arrayBuffer().then((b) => new Uint8Array(b)));
  }
  return blobs.get(name);
}

async function unpackText(name) {
  return new TextDecoder().decode(await unpack(name));
}

const byId = (id) => document.getElementById(id);

/** An element with text and children; text is always text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A name as Plotly shall show it: letter by letter, not as markup. */
function plain(text, length = 60) {
  const cut = String(text).length > length ? String(text).slice(0, length - 1) + "…" : String(text);
  return cut.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
    .replace(/%\{/g, "% {").replace(/\$/g, "&#36;");
}

const known = (value) => value !== null && value !== undefined;
const number = (value, digits) => known(value) ? value.toFixed(digits) : "–";
const whole = (value) => known(value) ? Math.round(value).toLocaleString("en-GB") : "–";

function unitOf(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1000 && power < 4) { count /= 1000; power += 1; }
  return { name: units[power], size: 1000 ** power };
}

function bytes(count) {
  if (!known(count)) return "–";
  const unit = unitOf(count);
  return (count / unit.size).toFixed(unit.size === 1 ? 0 : 1) + " " + unit.name;
}

function clock(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 100) return seconds.toFixed(1) + " s";
  return seconds < 6000 ? (seconds / 60).toFixed(1) + " min" : (seconds / 3600).toFixed(1) + " h";
}

// Okabe and Ito's palette, and line styles for readers in grey.
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07800", "#2E9BD6", "#1b2430", "#7a7f86"];
const DARK = ["#4BA3DB", "#F08A4B", "#34C79B", "#E29BC3", "#E9B44C", "#8CCBF2", "#E6EBF1", "#9AA3AD"];
const DASHES = ["solid", "dash", "dashdot", "dot", "longdash"];

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

const colour = (number) => (isDark() ? DARK : LIGHT)[number % 8];
const dash = (number) => DASHES[(number + Math.floor(number / 8)) % DASHES.length];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

/** One hue from the paper to the strongest, so that it reads in grey, too. */
function scale() {
  const stops = isDark() ? [css("zero"), "#1c3f63", "#2f74ad", "#7cc0ee", "#eef8ff"]
    : [css("zero"), "#bcd3ea", "#6aa0d0", "#2465a4", "#0a2a52"];
  return stops.map((c, n) => [n / 4, c]);
}

/** A colour a block, as steps of a colour scale. */
function steps(count) {
  const stops = [];
  for (let n = 0; n < count; n += 1) {
    const c = count <= 8 ? colour(n) : `hsl(${Math.round(360 * n / count)} 55% ${isDark() ? 62 : 42}%)`;
    stops.push([n / count, c], [(n + 1) / count, c]);
  }
  return stops;
}

const narrow = () => innerWidth < 700;

/** Draw or redraw a chart; `alt` says in words what it shows. */
function chart(id, traces, layout, alt) {
  const place = byId(id);
  if (place.classList.contains("empty")) { place.textContent = ""; place.classList.remove("empty"); }
  const axis = {
    gridcolor: css("grid"), linecolor: css("line"), zerolinecolor: css("line"), automargin: true,
    tickcolor: css("line"), title: { standoff: 8 },
  };
  const named = (own) => ({ ...axis, ...own, title: { ...axis.title, ...(own || {}).title } });
  const full = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: narrow() ? false : "zoom",
    font: { family: "system-ui, sans-serif", size: innerWidth > 1900 ? 15 : 13, color: css("ink") },
    margin: { l: 60, r: 16, t: 66, b: 50 }, hovermode: "closest",
    legend: { orientation: "h", yref: "container", y: 0, x: 0, yanchor: "bottom" },
    hoverlabel: { namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("soft"), activecolor: css("accent") },
    ...layout,
    // Below the tool bar, which lies at the top of the chart.
    title: {
      text: layout.title, font: { size: innerWidth > 1900 ? 17 : 14 }, x: 0, xref: "paper", xanchor: "left",
      y: 1, yref: "container", yanchor: "top", pad: { t: 34 },
    },
    xaxis: named(layout.xaxis), yaxis: named(layout.yaxis),
  };
  if (layout.yaxis2) full.yaxis2 = named(layout.yaxis2);
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", alt);
  // Nothing leaves the page: newer versions of Plotly would offer to upload a chart.
  const config = {
    responsive: true, displaylogo: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "sendChartToCloud", "sendDataToCloud"],
  };
  return Plotly.react(place, traces, full, config);
}

/** Where a chart cannot be drawn: why. */
function noChart(id, why) {
  const place = byId(id);
  if (place.data) Plotly.purge(place);
  place.classList.add("empty");
  place.removeAttribute("role");
  place.removeAttribute("aria-label");
  place.textContent = why;
}

/** Fill a choice; returns the value that is chosen. */
function fill(select, choices, chosen) {
  select.replaceChildren(...choices.map(([value, words]) => {
    const option = make("option", { value }, words);
    option.selected = String(value) === String(chosen);
    return option;
  }));
  return select.value;
}
