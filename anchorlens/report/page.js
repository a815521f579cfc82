"use strict";
// Table of examples (filtered and sorted in memory, a hundred rows at a time, each with tokens and curve on demand) and figures
// (drawn when near the window). Runs before plotly is parsed, so that the table is shown at once.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.sweeps.flatMap((sweep, i) => sweep.rows.map((row) => ({ ...row, sweep: i,
    text: [row.question, row.answer, row.id].join(" ").toLowerCase() })));
  const STEP = 100, LISTS = ["sweep", "label", "pathway"];
  const root = document.documentElement, body = document.querySelector("#examples tbody");
  const heads = [...document.querySelectorAll("#examples thead th")], names = heads.map((head) => head.textContent.trim());
  const field = (id) => document.getElementById(id);
  const night = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => night.matches && !root.classList.contains("print");
  const chosen = { key: "peak", up: true };
  const ready = new Promise((done) => document.addEventListener("DOMContentLoaded", done));
  const words = new Intl.Collator(undefined, { numeric: true });
  let shown = [], drawn = 0;

  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const number = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−"));
  const effect = (row, value) => number(value, row.unit === "points" ? 1 : 2);
  const role = (name) => "r-" + (name.startsWith("cut:") ? "control" : name);
  const isControl = (curve) => curve.includes(", ");
  const own = (row) => Object.entries(row.curves).filter(([name]) => !isControl(name));

  // ---- filters and order

  for (const [i, sweep] of data.sweeps.entries()) field("sweep").append(new Option(sweep.name, i));
  field("sweep").parentElement.hidden = data.sweeps.length < 2;
  for (const key of ["label", "pathway"]) {
    const values = [...new Set(rows.map((row) => row[key]))].filter(Boolean).sort();
    for (const value of values) field(key).append(new Option(value, value));
    field(key).parentElement.hidden = values.length < 2;
    heads.find((head) => head.dataset.key === key).hidden = !values.length;
  }
  const absent = heads.map((head) => head.hidden);

  function filter() {
    const asked = field("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [sweep, label, pathway] = LISTS.map((id) => field(id).value);
    shown = rows.filter((row) => asked.every((word) => row.text.includes(word)) && (sweep === "" || row.sweep === +sweep)
      && (!label || row.label === label) && (!pathway || row.pathway === pathway));
    const { key, up } = chosen;
    shown.sort((a, b) => (up ? 1 : -1) * (typeof a[key] === "string" ? words.compare(a[key], b[key]) : a[key] - b[key]));
    body.replaceChildren();
    drawn = 0;
    more();
    field("count").textContent = `${shown.length} of ${rows.length} examples`;
    for (const head of heads) {
      if (head.dataset.key === key) head.setAttribute("aria-sort", up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
  }

  function more() {
    body.append(...shown.slice(drawn, drawn + STEP).map(line));
    drawn = Math.min(drawn + STEP, shown.length);
    field("more").hidden = drawn === shown.length;
    field("printed").textContent = drawn === rows.length ? "" : `${drawn} of ${rows.length} examples; the page itself has all.`;
  }

  for (const head of heads) {
    head.querySelector("button")?.addEventListener("click", () => {
      chosen.up = chosen.key === head.dataset.key ? !chosen.up : true;
      chosen.key = head.dataset.key;
      filter();
    });
  }
  field("filters").addEventListener("submit", (event) => event.preventDefault());
  field("search").addEventListener("input", filter);
  for (const id of LISTS) field(id).addEventListener("change", filter);
  field("more").addEventListener("click", () => {
    const first = drawn;
    more();
    body.querySelectorAll(".open")[first].focus({ preventScroll: true }); // the button may be gone
  });

  // ---- one row

  // All small curves share a scale.
  let low = 0, high = 0;
  for (const row of rows) for (const [, values] of own(row)) for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }

  function spark(row) {
    const layers = data.sweeps[row.sweep].layers, first = layers[0], span = layers[layers.length - 1] - first || 1;
    const x = (k) => (3 + 90 * (layers[k] - first) / span).toFixed(1);
    const y = (value) => (2 + 22 * (high - value) / (high - low || 1)).toFixed(1);
    const colours = data.sweeps[row.sweep].colours;
    const lines = own(row).map(([name, values]) => {
      let pen = "M"; // start a new line after a gap
      const path = values.map((value, at) => {
        if (value === null) { pen = "M"; return ""; }
        const point = `${pen}${x(at)} ${y(value)}${pen === "M" ? "h0" : ""}`;
        pen = "L";
        return point;
      }).join("");
      const [light, dark] = colours[name] ?? ["var(--beside)", "var(--beside)"];
      return `<path style="stroke: light-dark(${light}, ${dark})" d="${path}"/>`;
    });
    return `<svg class="spark" width="96" height="26" aria-hidden="true"><line x1="2" x2="94" y1="${y(0)}" y2="${y(0)}"/>${lines.join("")}</svg>`;
  }

  function line(row) {
    const open = element("button", { className: "open", type: "button", textContent: row.question });
    open.setAttribute("aria-expanded", "false");
    const label = row.label ? [element("span", { className: `chip label-${row.label}`, textContent: row.label })] : [];
    const contents = [[open], [row.answer], label, [row.pathway], [number(row.before, 3)], [], [effect(row, row.peak)], [number(row.at, 0)]];
    const cells = contents.map((content, k) => {
      const cell = element("td", { className: heads[k].className, hidden: absent[k] }, ...content);
      cell.setAttribute("role", "cell");
      if (k) cell.dataset.name = names[k]; // label of the value when a row is shown as a card
      return cell;
    });
    cells[5].innerHTML = spark(row); // numbers only
    const made = element("tr", {}, ...cells);
    made.setAttribute("role", "row");
    made.addEventListener("click", (event) => {
      if (event.target !== open && String(getSelection())) return; // text is selected
      const was = open.getAttribute("aria-expanded") === "true";
      open.setAttribute("aria-expanded", String(!was));
      if (was) return made.nextElementSibling.remove();
      const opened = detail(row);
      made.after(opened);
      draw(opened.querySelector(".chart"));
    });
    return made;
  }

  function detail(row) {
    const of = new Map(Object.entries(row.marks).flatMap(([name, where]) => where.map((p) => [p, name])));
    const tokens = element("p", { className: "tokens" });
    let run = tokens, before;
    row.tokens.forEach((text, p) => {
      const name = of.get(p);
      if (name !== before) {
        run = name ? element("mark", { className: role(name) }) : tokens;
        if (name) tokens.append(run);
        before = name;
      }
      run.append(element("span", { textContent: text, title: [data.roles[name], `position ${p}`].filter(Boolean).join(", ") }));
    });
    const key = element("ul", { className: "key" }, ...Object.entries(row.marks).map(([name, where]) => element("li", {},
      element("mark", { className: role(name), textContent: data.roles[name] }), " ",
      element("q", { textContent: where.map((p, k) => (k && where[k - 1] !== p - 1 ? " … " : "") + row.tokens[p]).join("").trim() }))));
    const chart = element("div", { className: "chart" });
    chart.row = row;
    chart.setAttribute("role", "img");
    chart.setAttribute("aria-label", `${row.change} of this example by layer; largest ${effect(row, row.peak)} ${row.unit} at ${row.place}, layer ${row.at}`);
    const told = [data.sweeps[row.sweep].name, row.id, row.label && `answer ${row.label}`, row.pathway, `${row.metric} before ${number(row.before, 3)}`,
      `largest ${row.change} ${effect(row, row.peak)} at ${row.place}, layer ${row.at}`];
    const cell = element("td", { colSpan: 8 }, element("h3", { textContent: told.filter(Boolean).join(" · ") }),
      element("div", { className: "both" }, element("div", {}, tokens, key), element("div", {}, chart, numbers(row))));
    cell.setAttribute("role", "cell");
    const made = element("tr", { className: "detail" }, cell);
    made.setAttribute("role", "row");
    return made;
  }

  // Values of the curve as text, for keyboards and copying.
  function numbers(row) {
    const made = element("details", {}, element("summary", { textContent: "Numbers" }));
    made.addEventListener("toggle", () => {
      if (made.children.length > 1) return;
      const curves = Object.entries(row.curves), layers = data.sweeps[row.sweep].layers;
      const head = (text) => element("th", { scope: "col", className: "number", textContent: text });
      const lines = layers.map((layer, k) => element("tr", {}, element("th", { scope: "row", textContent: layer }),
        ...curves.map(([, values]) => element("td", { className: "number", textContent: effect(row, values[k]) }))));
      made.append(element("div", { className: "scroll" }, element("table", {},
        element("thead", {}, element("tr", {}, element("th", { scope: "col", textContent: "layer" }), ...curves.map(([name]) => head(name)))),
        element("tbody", {}, ...lines))));
    });
    return made;
  }

  async function draw(chart) {
    await ready;
    const look = getComputedStyle(root), colour = (name) => look.getPropertyValue(name).trim();
    const colours = data.sweeps[chart.row.sweep].colours, own = (name) => colours[name]?.[isDark() ? 1 : 0] ?? colour("--beside");
    const traces = Object.entries(chart.row.curves).map(([name, y]) => ({ x: data.sweeps[chart.row.sweep].layers, y,
      name: name.replaceAll("<", "&lt;"), mode: y.length > 1 ? "lines" : "markers", connectgaps: false, hovertemplate: `layer %{x}: %{y:.${chart.row.unit === "points" ? 1 : 2}f}`,
      line: isControl(name) ? { color: colour("--beside"), dash: "dot", width: 1.5 } : { color: own(name), width: 2 } }));
    const axis = { gridcolor: colour("--line"), linecolor: colour("--soft"), fixedrange: true };
    return Plotly.newPlot(chart, traces, { margin: { l: 48, r: 8, t: 8, b: 40 }, height: 250, dragmode: false, showlegend: true,
      font: { size: 12, color: colour("--text"), family: getComputedStyle(document.body).fontFamily },
      xaxis: { ...axis, title: { text: "layer", standoff: 6 }, zeroline: false },
      yaxis: { ...axis, title: { text: `${chart.row.change} (${chart.row.unit})` }, zeroline: true, zerolinecolor: colour("--soft") },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", itemclick: false, itemdoubleclick: false },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" }, { displayModeBar: false, responsive: true });
  }

  // ---- figures

  const plots = [...document.querySelectorAll("figure .plot")];

  function put(value, path, changed) {
    const last = path.pop();
    for (const step of path) value = value[step];
    value[last] = changed;
  }

  async function figure(plot) {
    await ready;
    // Parsed each time, because plotly modifies its arguments.
    const { data: traces, layout, dark } = JSON.parse(plot.nextElementSibling.textContent);
    const made = { data: traces, layout };
    if (isDark()) for (const [path, changed] of dark) put(made, path, changed);
    // Keeps hidden curves hidden when the theme changes or the page is printed.
    plot.data?.forEach((trace, k) => { traces[k].visible = trace.visible; });
    Plotly.purge(plot);
    plot.parentElement.style.minHeight = ""; // the placeholder height is no longer needed
    await Plotly.newPlot(plot, made.data, made.layout, structuredClone(data.config));
    arrange(plot.id);
  }

  const near = new IntersectionObserver((seen) => {
    for (const one of seen.filter((entry) => entry.isIntersecting)) {
      near.unobserve(one.target);
      figure(one.target.firstElementChild);
    }
  }, { rootMargin: "600px" });
  for (const plot of plots) near.observe(plot.parentElement);

  function again() {
    for (const plot of plots) if (plot.data || root.classList.contains("print")) {
      near.unobserve(plot.parentElement);
      figure(plot);
    }
    for (const chart of document.querySelectorAll(".chart")) draw(chart);
  }
  night.addEventListener("change", again);
  addEventListener("beforeprint", () => { root.classList.add("print"); again(); });
  addEventListener("afterprint", () => { root.classList.remove("print"); again(); });

  // Only scrollable regions can be focused.
  const wide = new ResizeObserver((changed) => {
    for (const { target } of changed) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const one of document.querySelectorAll(".scroll")) wide.observe(one);

  filter();
})();
