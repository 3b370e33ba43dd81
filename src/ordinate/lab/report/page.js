"use strict";
// Draws the plotly figures in the page's JSON, in light or dark colours, and sorts its tables.
const charts = JSON.parse(document.getElementById("charts").textContent);
const darkOf = JSON.parse(document.getElementById("colours").textContent);
const system = window.matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");

const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
const channels = (hex) => "rgba(" + [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",") + ",";

// The data of a figure, its colours exchanged for those of a dark page.
function traces(figure, dark) {
  let text = JSON.stringify(figure.data);
  for (const [light, other] of dark ? Object.entries(darkOf) : []) {
    text = text.replaceAll(light, other).replaceAll(channels(light), channels(other));
  }
  return JSON.parse(text);
}

function layout(figure, dark, narrow) {
  const ink = dark ? "#e8e9ea" : "#1c1e21", soft = dark ? "#a0a7b0" : "#5d636b", line = dark ? "#31363c" : "#e6e6e2";
  const made = structuredClone(figure.layout);
  const axis = (given) => ({
    ...given, title: { ...given.title, standoff: 8, font: { size: 13 } }, gridcolor: line, zeroline: false, automargin: true,
    ticks: "outside", tickcolor: line, exponentformat: "none",
  });
  const shapes = (made.shapes || []).map((shape) => ({ ...shape, line: { ...shape.line, color: soft }, layer: "below" }));
  const annotations = (made.annotations || []).map((one) => ({ ...one, font: { ...one.font, color: soft } }));
  return {
    ...made, xaxis: axis(made.xaxis), yaxis: axis(made.yaxis), shapes, annotations, autosize: true,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "x unified", hoverlabel: { bgcolor: dark ? "#20252b" : "#ffffff", bordercolor: line, font: { color: ink } },
    font: { color: ink, size: 12, family: getComputedStyle(document.body).fontFamily },
    legend: narrow ? { orientation: "h", y: -0.28, yanchor: "top", x: 0, font: { size: 11 } } : { x: 1.01, y: 1, font: { size: 12 } },
  };
}

function draw() {
  const dark = isDark();
  button.textContent = dark ? "Light" : "Dark";
  for (const [kind, figure] of Object.entries(charts)) {
    const place = document.getElementById("plot-" + kind);
    const narrow = place.clientWidth < 620;
    const named = figure.data.filter((trace) => trace.showlegend).length;
    const settings = { responsive: true, displaylogo: false, scrollZoom: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], displayModeBar: narrow || !window.matchMedia("(hover: hover)").matches ? false : "hover", toImageButtonOptions: { filename: kind, scale: 2 } };
    if (narrow) place.style.height = 22 + 1.3 * named + "rem";
    Plotly.react(place, traces(figure, dark), layout(figure, dark, narrow), settings);
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
