// Widget for one example of a sweep: tokens marked by anchor, a slider for the layer, and the curve with the layer marked.
// ES module for anywidget; fetches nothing and uses the browser's controls.
const SVG = "http://www.w3.org/2000/svg";
const WIDE = 640, HIGH = 230, LEFT = 52, RIGHT = 12, TOP = 12, BOTTOM = 40;
// Dashes and underlines, so that colour is not the only cue.
const DASHES = ["", "7 3", "2 3", "9 3 2 3"], UNDERLINES = ["solid", "dashed", "dotted", "double"];
const LOOKS = 4;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function effect(value, unit) {
  if (value === null || value === undefined) return "not measured";
  const size = Math.abs(value).toFixed(unit === "points" ? 1 : 2);
  return (Number(size) ? value > 0 ? "+" : "−" : "") + size;
}
// A name with a comma is that of a control.
const isControl = (name) => name.includes(", ");

// At most five steps of 1, 2 or 5 times a power of ten.
function steps(low, high) {
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((k) => k * power >= rough) * power;
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
  return found;
}

function render({ model, el }) {
  const search = element("input", { type: "search", placeholder: "question or answer" });
  const chooser = element("select");
  const count = element("span", { className: "count" });
  count.setAttribute("role", "status");
  const slider = element("input", { type: "range", min: 0, step: 1 });
  const layerSaid = element("output");
  const facts = element("p", { className: "facts" });
  const tokens = element("p", { className: "tokens" });
  const table = element("tbody"), changed = element("th", { scope: "col" });
  const chart = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img" });
  const title = element("p", { className: "heading" });
  const frame = element("div", { className: "anchorlens-explorer" },
    title,
    element("div", { className: "choice" }, element("label", {}, "Search ", search), element("label", { className: "wide" }, "Example ", chooser), count),
    facts,
    element("label", { className: "layer" }, "Layer ", slider, layerSaid),
    tokens,
    element("div", { className: "numbers" },
      element("table", {}, element("thead", {}, element("tr", {}, ...["", "what was changed"].map((text) => element("th", { textContent: text, scope: "col" })), changed)), table),
      chart));
  frame.setAttribute("role", "group");
  el.append(frame);

  let row, layers, names, looks, found;

  function read() {
    const data = model.get("data");
    layers = data.layers;
    title.textContent = data.heading;
    frame.setAttribute("aria-label", `One example of ${data.heading}`);
    slider.max = layers.length - 1;
    filter();
  }

  function filter() {
    const rows = model.get("data").rows, words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = rows.filter((one) => words.every((word) => `${one.question} ${one.answer} ${one.id}`.toLowerCase().includes(word)));
    const own = model.get("example");
    const listed = rows.filter((one) => one.id === own || found.includes(one));
    chooser.replaceChildren(...listed.map((one) => new Option(`${one.question} – ${one.answer}${one.label ? ` (${one.label})` : ""}`, one.id)));
    chooser.value = own;
    count.textContent = `${found.length} of ${rows.length} examples`;
  }

  function example() {
    row = model.get("data").rows.find((one) => one.id === model.get("example"));
    names = Object.keys(row.curves);
    let own = 0;
    const colours = model.get("data").colours;
    const tint = (name) => (colours[name] ? `light-dark(${colours[name][0]}, ${colours[name][1]})` : "var(--control)");
    looks = new Map(names.filter((name) => !isControl(name)).map((name) => [name,
      { colour: tint(name), tint: tint(name), dash: DASHES[own % LOOKS], underline: UNDERLINES[own++ % LOOKS], width: 2.5 }]));
    // A control's line has the colour of its anchor, thin and dotted; tokens that are changed for a control are grey.
    for (const name of names.filter(isControl)) {
      const colour = looks.get(name.split(", ")[0])?.colour ?? "var(--control)";
      looks.set(name, { colour, tint: "var(--control)", dash: "1 3", underline: "dotted", width: 1.5 });
    }
    if (![...chooser.options].some((option) => option.value === row.id)) filter();
    chooser.value = row.id;
    const said = [["answer", row.answer], ["which is", row.label], ["pathway", row.pathway], [`${row.metric} before`, row.before.toFixed(3)],
      ["largest change", `${effect(row.peak, row.unit)} at ${row.place}, layer ${row.at}`]];
    changed.textContent = `${row.change} at this layer`;
    facts.textContent = said.filter(([, value]) => value).map(([name, value]) => `${name} ${value}`).join(" · ");
    layer();
  }

  function layer() {
    const at = Math.max(0, layers.indexOf(model.get("layer")));
    slider.value = at;
    slider.setAttribute("aria-valuetext", `layer ${layers[at]}`);
    layerSaid.textContent = String(layers[at]);
    marked(at);
    table.replaceChildren(...names.map((name) => {
      const look = looks.get(name), swatch = drawn("svg", { viewBox: "0 0 28 10", width: 28, height: 10, "aria-hidden": "true" });
      const line = drawn("line", { x1: 0, x2: 28, y1: 5, y2: 5, "stroke-width": look.width, "stroke-dasharray": look.dash });
      line.style.stroke = look.colour;
      swatch.append(line);
      const head = element("th", { textContent: name, scope: "row" });
      return element("tr", {}, element("td", {}, swatch), head, element("td", { className: "number", textContent: effect(row.curves[name][at], row.unit) }));
    }));
    chart.replaceChildren(...curves(at));
    const told = names.map((name) => `${name} ${effect(row.curves[name][at], row.unit)}`).join(", ");
    chart.setAttribute("aria-label", `${row.change} by layer, in ${row.unit}. At layer ${layers[at]}: ${told}.`);
  }

  // Tint: |effect| of the anchor at this layer. Underline: tokens of the anchor.
  function marked(at) {
    const most = Math.max(row.unit === "points" ? 1 : 0.01, ...names.filter((name) => !isControl(name)).flatMap((name) => row.curves[name].map((v) => Math.abs(v ?? 0))));
    const size = (name) => Math.abs(row.curves[name][at] ?? 0);
    tokens.replaceChildren(...row.tokens.map((text, place) => {
      const shown = text.replace(/\n/g, "⏎\n");
      const own = names.filter((name) => (row.places[name] ?? []).includes(place)).sort((a, b) => size(b) - size(a));
      if (!own.length) return element("span", { textContent: shown, className: row.answer_tokens.includes(place) ? "answer" : "", title: `position ${place}` });
      const look = looks.get(own[0]);
      const made = element("mark", { textContent: shown, title: own.map((name) => `${name}: ${effect(row.curves[name][at], row.unit)}`).join("; ") + `, position ${place}` });
      made.style.setProperty("--c", look.tint);
      made.style.setProperty("--strength", `${Math.round(50 * Math.min(1, size(own[0]) / most))}%`);
      made.style.textDecorationStyle = look.underline;
      return made;
    }));
  }

  // By layer number, so that unmeasured layers leave a gap.
  const span = () => layers.at(-1) - layers[0];
  const across = (k) => LEFT + (span() ? (layers[k] - layers[0]) / span() : 0.5) * (WIDE - LEFT - RIGHT);

  function curves(at) {
    const values = names.flatMap((name) => row.curves[name]).filter((value) => value !== null);
    let low = Math.min(0, ...values), high = Math.max(0, ...values);
    if (high - low < (row.unit === "points" ? 1 : 0.02)) { low -= 0.5; high += 0.5; }
    const room = (high - low) * 0.05, down = (value) => TOP + ((high + room - value) / (high - low + 2 * room)) * (HIGH - TOP - BOTTOM);
    const made = [];
    for (const value of steps(low, high)) {
      made.push(drawn("line", { x1: LEFT, x2: WIDE - RIGHT, y1: down(value), y2: down(value), class: value === 0 ? "zero" : "grid" }));
      made.push(drawn("text", { x: LEFT - 6, y: down(value) + 4, "text-anchor": "end" }, String(+value.toFixed(6)).replace("-", "−")));
    }
    const every = Math.ceil(layers.length / 10);
    let free = -Infinity;
    layers.forEach((layer, k) => {
      if (k % every || across(k) - free < 20) return;
      free = across(k);
      made.push(drawn("text", { x: across(k), y: HIGH - BOTTOM + 16, "text-anchor": "middle" }, String(layer)));
    });
    made.push(drawn("text", { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 6, "text-anchor": "middle" }, "layer"));
    made.push(drawn("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(12 ${(TOP + HIGH - BOTTOM) / 2}) rotate(-90)` }, `${row.change} (${row.unit})`));
    made.push(drawn("line", { x1: across(at), x2: across(at), y1: TOP, y2: HIGH - BOTTOM, class: "here" }));
    for (const name of [...names].reverse()) {
      const look = looks.get(name);
      let path = "", pen = "M";
      row.curves[name].forEach((value, k) => {
        if (value === null) { pen = "M"; return; }
        path += `${pen}${across(k).toFixed(1)} ${down(value).toFixed(1)}`;
        pen = "L";
      });
      const line = drawn("path", { d: path, fill: "none", "stroke-width": look.width, "stroke-dasharray": look.dash, "data-name": name });
      line.style.stroke = look.colour;
      made.push(line);
      const value = row.curves[name][at];
      if (value === null) continue;
      const dot = drawn("circle", { cx: across(at), cy: down(value), r: isControl(name) ? 3 : 4.5 });
      dot.style.fill = look.colour;
      made.push(dot);
    }
    return made;
  }

  function choose(name, value) {
    if (value === undefined || value === model.get(name)) return;
    model.set(name, value);
    model.save_changes();
  }

  const heard = [
    [search, "input", filter],
    [search, "keydown", (event) => { if (event.key === "Enter" && found.length) choose("example", found[0].id); }],
    [chooser, "change", () => choose("example", chooser.value)],
    [slider, "input", () => choose("layer", layers[+slider.value])],
    [chart, "click", (event) => {
      const box = chart.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDE;
      const near = layers.map((_, k) => k).reduce((a, b) => (Math.abs(across(b) - at) < Math.abs(across(a) - at) ? b : a));
      choose("layer", layers[near]);
    }],
  ];
  for (const [where, kind, does] of heard) where.addEventListener(kind, does);
  // Stops notebook shortcuts inside the widget; JupyterLab needs the attribute.
  frame.addEventListener("keydown", (event) => event.stopPropagation());
  frame.setAttribute("data-lm-suppress-shortcuts", "true");
  const changes = { "change:data": () => { read(); example(); }, "change:example": example, "change:layer": layer };
  for (const [kind, does] of Object.entries(changes)) model.on(kind, does);
  read();
  example();
  return () => { for (const [kind, does] of Object.entries(changes)) model.off(kind, does); };
}

export default { render };
