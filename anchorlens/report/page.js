"use strict";
// The table of examples: filtered and sorted in memory, drawn a hundred rows at a time; a row opens into its tokens and its own curve.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.sweeps.flatMap((sweep, i) => sweep.rows.map((row) => ({ ...row, sweep: i,
    text: (row.question + " " + row.answer + " " + row.id).toLowerCase() })));
  const STEP = 100;
  const body = document.querySelector("#examples tbody");
  const field = (id) => document.getElementById(id);
  const chosen = { key: "peak", up: true };
  let shown = [], drawn = 0;

  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const number = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const role = (name) => "r-" + (name.startsWith("cut:") ? "control" : name);

  for (const [i, sweep] of data.sweeps.entries()) field("sweep").append(new Option(sweep.name, i));
  for (const key of ["label", "pathway"]) {
    const values = [...new Set(rows.map((row) => row[key]))].filter(Boolean).sort();
    for (const value of values) field(key).append(new Option(value, value));
    if (values.length < 2) field(key).parentElement.hidden = true;
  }
  if (data.sweeps.length < 2) field("sweep").parentElement.hidden = true;

  function filter() {
    const words = field("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [sweep, label, pathway] = ["sweep", "label", "pathway"].map((id) => field(id).value);
    shown = rows.filter((row) => words.every((word) => row.text.includes(word)) && (sweep === "" || row.sweep === +sweep)
      && (!label || row.label === label) && (!pathway || row.pathway === pathway));
    const { key, up } = chosen;
    const sign = up ? 1 : -1;
    shown.sort((a, b) => {
      if (a[key] === b[key]) return 0;
      if (a[key] === null) return 1;  // what was not measured comes last either way
      if (b[key] === null) return -1;
      return sign * (typeof a[key] === "string" ? a[key].localeCompare(b[key]) : a[key] - b[key]);
    });
    body.replaceChildren();
    drawn = 0;
    more();
    field("count").textContent = `${shown.length} of ${rows.length} examples`;
  }

  function more() {
    const next = shown.slice(drawn, drawn + STEP);
    body.append(...next.map(line));
    drawn += next.length;
    field("more").hidden = drawn >= shown.length;
  }

  function line(row) {
    const open = element("button", { className: "open", type: "button", textContent: row.question });
    open.setAttribute("aria-expanded", "false");
    const cells = [element("td", {}, open), ...[row.answer, row.label, row.pathway].map((text) => element("td", { textContent: text })),
      ...[number(row.before, 3), number(row.peak, 1), number(row.at, 0)].map((text) => element("td", { className: "number", textContent: text }))];
    const made = element("tr", {}, ...cells);
    open.addEventListener("click", () => {
      const was = open.getAttribute("aria-expanded") === "true";
      open.setAttribute("aria-expanded", String(!was));
      if (was) made.nextElementSibling.remove();
      else { made.after(detail(row)); draw(made.nextElementSibling.querySelector(".chart"), row); }
    });
    return made;
  }

  function detail(row) {
    const of = new Map(Object.entries(row.marks).flatMap(([name, where]) => where.map((p) => [p, name])));
    const tokens = element("p", { className: "tokens" }, ...row.tokens.map((text, p) => {
      const made = element("span", { textContent: text });
      if (of.has(p)) { made.className = role(of.get(p)); made.title = `${data.roles[of.get(p)]}, position ${p}`; } else made.title = `position ${p}`;
      return made;
    }));
    const key = element("p", { className: "key" }, ...Object.keys(row.marks).map((name) => {
      const made = element("span", { textContent: data.roles[name] });
      made.style.setProperty("--c", `var(--${role(name).slice(2)}, var(--control))`);
      return made;
    }));
    const chart = element("div", { className: "chart" });
    chart.setAttribute("role", "img");
    chart.setAttribute("aria-label", `ΔP of this example by layer; largest ${number(row.peak, 1)} points at layer ${row.at}`);
    const cell = element("td", { colSpan: 7 }, element("small", { textContent: `${data.sweeps[row.sweep].name} · ${row.id}` }), tokens, key, chart);
    return element("tr", { className: "detail" }, cell);
  }

  const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"];
  function draw(div, row) {
    let n = 0;
    const traces = Object.entries(row.curves).map(([name, y]) => {
      const control = name.includes(", ");
      return { x: data.sweeps[row.sweep].layers, y, name, mode: y.length > 1 ? "lines" : "markers", connectgaps: false,
        line: control ? { color: "#999", dash: "dot", width: 1.5 } : { color: COLOURS[n++ % COLOURS.length], width: 2 } };
    });
    Plotly.newPlot(div, traces, { margin: { l: 50, r: 10, t: 10, b: 40 }, height: 260, font: { size: 12 },
      xaxis: { title: { text: "layer" }, zeroline: false }, yaxis: { title: { text: "ΔP (points)" }, zeroline: true, zerolinecolor: "#888" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, paper_bgcolor: "#fff", plot_bgcolor: "#fff", showlegend: true },
      { displaylogo: false, responsive: true, displayModeBar: false });
  }

  for (const button of document.querySelectorAll("#examples thead button")) {
    button.addEventListener("click", () => {
      chosen.up = chosen.key === button.dataset.key ? !chosen.up : true;
      chosen.key = button.dataset.key;
      mark();
      filter();
    });
  }
  function mark() {
    for (const button of document.querySelectorAll("#examples thead button")) {
      if (button.dataset.key === chosen.key) button.setAttribute("aria-sort", chosen.up ? "ascending" : "descending");
      else button.removeAttribute("aria-sort");
    }
  }
  field("filters").addEventListener("submit", (event) => event.preventDefault());
  field("search").addEventListener("input", filter);
  for (const id of ["sweep", "label", "pathway"]) field(id).addEventListener("change", filter);
  field("more").addEventListener("click", more);
  mark();
  filter();
})();
