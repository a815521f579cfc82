// Fits panels, heading and legends of an anchorlens figure to the page width, isolates curves without showing hidden ones, and makes the
// legend and the buttons of contrasts usable with the keyboard.
(function () {
  const gd = document.getElementById("{plot_id}");
  const plan = gd.layout.meta && gd.layout.meta.anchorlens;

  // Enter or Space: a click; Shift + Enter: two clicks.
  let last = null;
  function button(node, label, pressed, act) {
    for (const [name, value] of Object.entries({ tabindex: "0", role: "button", "aria-label": label, "aria-pressed": pressed }))
      node.setAttribute(name, value);
    node.onkeydown = function (event) {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      last = label;
      act(event.shiftKey);
    };
    // Redrawing may replace the pressed node.
    if (label === last && document.activeElement === document.body) node.focus({ preventScroll: true });
  }
  function reach() {
    for (const entry of gd.querySelectorAll(".traces")) {
      const node = entry.querySelector('[class$="toggle"]'), trace = entry.__data__[0].trace;
      const shown = gd._fullData[trace.index].visible === true;
      const group = gd.data.map((_, k) => k).filter((k) => k === trace.index || (trace.legendgroup && gd.data[k].legendgroup === trace.legendgroup));
      // Plotly's opacity of 0.5 is hard to read.
      if (!shown) entry.style.opacity = 0.65;
      button(node, entry.textContent, shown, function (alone) {
        if (alone) isolate({ curveNumber: trace.index });
        else Plotly.restyle(gd, { visible: shown ? "legendonly" : true }, group);
      });
    }
    for (const one of gd.querySelectorAll(".updatemenu-button, .updatemenu-header, .updatemenu-dropdown-button")) {
      const menu = gd._fullLayout.updatemenus.find((own) => own.buttons.some((b) => b.label === one.textContent));
      button(one, one.textContent, !!menu && menu.buttons[menu.active].label === one.textContent, function () {
        one.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        setTimeout(reach, 50); // opening the list triggers no plotly event
      });
    }
  }
  document.addEventListener("focusin", (event) => { if (!gd.contains(event.target)) last = null; });
  gd.on("plotly_afterplot", reach);
  reach();
  if (!gd.closest("figure")) {
    gd.setAttribute("role", "figure");
    gd.setAttribute("aria-label", document.title);
  }

  // Two clicks isolate a curve and keep the second legend; two more restore the previous state.
  let before = null, alone = null;
  function isolate(event) {
    const trace = gd.data[event.curveNumber];
    if ((trace.legend || "legend") !== "legend") return false;
    const own = gd.data.map((_, k) => k).filter((k) => (gd.data[k].legend || "legend") === "legend");
    const now = own.map((k) => (gd.data[k].visible === undefined ? true : gd.data[k].visible));
    if (before && alone === trace.legendgroup) {
      Plotly.restyle(gd, { visible: before }, own);
      before = null;
    } else {
      before = before || now;
      alone = trace.legendgroup;
      Plotly.restyle(gd, { visible: own.map((k) => gd.data[k].legendgroup === alone || "legendonly") }, own);
    }
    return false;
  }
  gd.on("plotly_legenddoubleclick", isolate);

  // A saved picture has no switch; Plotly copies the layout during the click.
  gd.addEventListener("click", function (event) {
    const camera = event.target.closest(".modebar-btn"), menus = gd.layout.updatemenus;
    if (!menus || !camera || !/png/i.test(camera.dataset.title)) return;
    menus.forEach((menu) => { menu.visible = false; });
    setTimeout(() => menus.forEach((menu) => { delete menu.visible; }));
  }, true);

  if (!plan) return;
  const pen = document.createElement("canvas").getContext("2d");
  const plain = document.createElement("textarea");

  function widthOf(text, size) {
    plain.innerHTML = text; // names contain HTML entities
    pen.font = size + "px " + gd._fullLayout.font.family;
    return pen.measureText(plain.value).width;
  }

  // Same as fit_layout in layout.py, with measured text widths.
  let width = 0;
  function fit() {
    if (gd._fullLayout.width === width) return;
    width = gd._fullLayout.width;
    const layout = gd.layout, room = width - layout.margin.l - layout.margin.r, grid = width < plan.stack ? plan.narrow : plan.wide;
    const names = { legend2: [], legend: [] }, parts = [...plan.parts];
    for (const trace of gd.data) if (trace.showlegend) names[trace.legend || "legend"].push(trace.name);
    const widest = plan.beside + Math.max(...Object.values(names).flat().map((name) => widthOf(name, plan.size)));
    const columns = plan.columns.find((number) => widest <= room / number) || 1;
    const rows = (own) => (own.length ? plan.row * Math.ceil(own.length / columns) + plan.pad : 0);
    while (parts.length > 1 && widthOf(parts.join(" · "), 12) > room) parts.pop();
    const size = Math.max(11, Math.min(17, Math.floor((17 * room) / (1.1 * widthOf(plan.first.replace(/<[^>]*>/g, ""), 17)))));
    const heading = [plan.first.replace("font-size:17px", `font-size:${size}px`), parts.length ? plan.next.join(parts.join(" · ")) : ""].filter(Boolean);
    const top = plan.top + plan.line * heading.length, bottom = plan.below + rows(names.legend2) + rows(names.legend);
    const height = top + grid.inner + bottom;
    Object.assign(layout.legend, { y: rows(names.legend2) / height, entrywidth: 1 / columns });
    if (layout.legend2) layout.legend2.entrywidth = 1 / columns;
    layout.title.text = heading.join("<br>");
    Object.assign(layout.margin, { t: top, b: bottom });
    for (const [axis, place] of Object.entries(grid.axes)) if (layout[axis]) Object.assign(layout[axis], structuredClone(place));
    grid.shown.forEach((shown, k) => { layout.annotations[k].visible = shown; });
    for (const menu of layout.updatemenus || []) Object.assign(menu, grid.switch);
    // Not with relayout: a height there would also fix the width.
    layout.height = height;
    gd.parentElement.style.height = height + "px";
    return Plotly.react(gd, gd.data, layout);
  }

  const file = decodeURIComponent(location.pathname).split("/").pop().replace(/\.html?$/, "");
  if (file) gd._context.toImageButtonOptions.filename = file;
  gd.on("plotly_afterplot", fit);
  fit();
})();
