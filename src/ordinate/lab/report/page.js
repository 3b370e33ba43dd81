"use strict";
// Draws the charts that the page carries as JSON, in the page's colours, and sorts its tables.
const charts = JSON.parse(document.getElementById("charts").textContent);
const MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left", "triangle-right"];
const DASHES = ["solid", "dash", "dashdot", "dot"];
const system = window.matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");

const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
const number = (value) => Number(value.toPrecision(4)).toLocaleString("en");
// Plotly reads tags and %{…} in its texts; labels are only labels.
const plain = (label) => label.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%/g, "&#37;");

function traces(chart, dark) {
  const found = [];
  for (const curve of chart.curves) {
    const colour = curve.style.colours[dark ? 1 : 0];
    const text = curve.y.map((value, i) => {
      const spread = (curve.high[i] - curve.low[i]) / 2;
      return number(value) + (spread > 0 ? " ± " + number(spread) : "");
    });
    if (curve.high.some((value, i) => value > curve.low[i])) {
      found.push({
        x: [...curve.x, ...curve.x.slice().reverse()], y: [...curve.high, ...curve.low.slice().reverse()],
        fill: "toself", fillcolor: colour + "30", line: { width: 0 }, mode: "lines", type: "scatter",
        hoverinfo: "skip", showlegend: false, legendgroup: curve.label,
      });
    }
    const many = curve.x.length > 24;
    found.push({
      x: curve.x, y: curve.y, text, type: "scatter", mode: many ? "lines" : "lines+markers", legendgroup: curve.label,
      name: plain(curve.label) + (curve.end ? " (" + curve.end + ")" : ""),
      line: { color: colour, width: 2.2, dash: DASHES[curve.style.dash % DASHES.length] },
      marker: { color: colour, size: 8, symbol: MARKERS[curve.style.marker % MARKERS.length] },
      hovertemplate: "%{text}<extra>" + plain(curve.label) + "</extra>",
    });
    if (curve.end.startsWith("refused")) {
      found.push({
        x: curve.x.slice(-1), y: curve.y.slice(-1), type: "scatter", mode: "markers", showlegend: false,
        legendgroup: curve.label, hoverinfo: "skip",
        marker: { color: colour, size: 15, symbol: "x-thin", line: { color: colour, width: 3 } },
      });
    }
  }
  return found;
}

function layout(chart, dark, narrow) {
  const ink = dark ? "#e8e9ea" : "#1c1e21", soft = dark ? "#a0a7b0" : "#5d636b", line = dark ? "#31363c" : "#e6e6e2";
  const axis = (label, log) => ({
    title: { text: label, standoff: 8, font: { size: 13 } }, type: log ? "log" : "linear", gridcolor: line,
    zeroline: false, automargin: true, ticks: "outside", tickcolor: line, exponentformat: "none",
  });
  const x = axis(chart.x_label, chart.log_x), y = axis(chart.y_label, chart.log_y);
  const fix = (axis, values) => Object.assign(axis, { tickmode: "array", tickvals: values, ticktext: values.map(String) });
  if (chart.ticks.length) fix(x, chart.ticks);
  else if (chart.log_x) fix(x, Array.from({ length: 24 }, (_, i) => 2 ** (narrow ? 2 * i : i)));
  if (chart.log_y) fix(y, chart.y_ticks);
  if (chart.y_range) y.range = chart.y_range;
  const shapes = [], annotations = [];
  if (chart.train_length !== null) {
    shapes.push({ type: "line", x0: chart.train_length, x1: chart.train_length, y0: 0, y1: 1, yref: "paper", line: { color: soft, width: 1, dash: "dash" }, layer: "below" });
    annotations.push({ x: chart.log_x ? Math.log10(chart.train_length) : chart.train_length, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", text: "trained at " + chart.train_length, showarrow: false, font: { size: 11, color: soft } });
  }
  for (const [name, level] of Object.entries(chart.levels)) {
    shapes.push({ type: "line", x0: 0, x1: 1, xref: "paper", y0: level, y1: level, line: { color: soft, width: 1, dash: "dot" }, layer: "below" });
    annotations.push({ x: 1, xref: "paper", xanchor: "right", y: chart.log_y ? Math.log10(level) : level, yanchor: "bottom", text: name, showarrow: false, font: { size: 11, color: soft } });
  }
  return {
    autosize: true, modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified",
    hoverlabel: { bgcolor: dark ? "#20252b" : "#ffffff", bordercolor: line, font: { color: ink } },
    font: { color: ink, size: 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 56, r: 16, t: 30, b: 44 }, xaxis: x, yaxis: y, shapes, annotations,
    legend: narrow ? { orientation: "h", y: -0.28, yanchor: "top", x: 0, font: { size: 11 } } : { x: 1.01, y: 1, font: { size: 12 } },
  };
}

function draw() {
  const dark = isDark();
  button.textContent = dark ? "Light" : "Dark";
  for (const chart of charts) {
    const place = document.getElementById("plot-" + chart.key);
    const narrow = place.clientWidth < 620;
    const settings = { responsive: true, displaylogo: false, scrollZoom: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], displayModeBar: narrow || !window.matchMedia("(hover: hover)").matches ? false : "hover", toImageButtonOptions: { filename: chart.key, scale: 2 } };
    if (narrow) place.style.height = 22 + 1.3 * chart.curves.length + "rem";
    Plotly.react(place, traces(chart, dark), layout(chart, dark, narrow), settings);
  }
}

button.hidden = false;
button.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; draw(); });
system.addEventListener("change", draw);
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; draw(); } });
draw();

for (const head of document.querySelectorAll("table.sortable thead button")) {
  head.addEventListener("click", () => {
    const cell = head.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const rising = cell.getAttribute("aria-sort") !== "ascending";
    for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const value = (row) => row.cells[cell.cellIndex].dataset.value;
    const rows = [...body.rows].sort((a, b) => {
      const [p, q] = [value(a), value(b)];
      if (p === "" || q === "") return (p === "") - (q === "");  // what has no number comes last, either way
      const order = isNaN(p) || isNaN(q) ? p.localeCompare(q) : p - q;
      return rising ? order : -order;
    });
    body.append(...rows);
  });
}
