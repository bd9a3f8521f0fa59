// Puts the page together. `page` is what the parts call each other by.

const page = {};

function rowOfAddress(model) {
  const found = /^#row=(.*)$/.exec(location.hash);
  if (!found) return null;
  const key = decodeURIComponent(found[1]);
  return model.keys.has(key) ? model.keys.get(key) : null;
}

function listenToTheme(redraw) {
  const button = byId("theme");
  const wear = wearTheme(isDark => {
    button.textContent = isDark ? "Light" : "Dark"; // what a click makes of it
    redraw();
  });
  button.addEventListener("click", () => wear(document.documentElement.dataset.theme !== "dark"));
}

async function begin() {
  const model = new Model(await unpacked());
  page.model = model;
  const redraw = () => {
    if (!page.ready) return;
    page.curve.draw();
    page.map.draw();
    page.graph.draw();
    if (selection.row !== null) { showRow(model, selection.row); page.flow.show(selection.row); }
  };
  listenToTheme(redraw);
  showAnswer(model);
  showBefore(model);
  page.curve = new Curve(model);
  page.table = new Table(model);
  page.map = new HeatMap(model);
  page.flow = new Flow(model);
  page.graph = new Graph(model);
  showFacts(model);
  selection.listeners.push((row, from) => {
    showRow(model, row);
    if (row !== null) page.flow.show(row);
    page.table.reveal(row, from);
    page.curve.draw();
    page.map.draw();
    page.graph.draw();
    const hasAddress = location.protocol !== "about:"; // not in the frame of a notebook
    if (hasAddress && row !== null && from !== "address" && from !== "start") history.replaceState(null, "", `#row=${encodeURIComponent(model.keyOf(row))}`);
    if (from === "map" || from === "link" || from === "flow" || from === "graph") byId("row-section").scrollIntoView({block: "nearest"});
  });
  window.addEventListener("resize", redraw);
  window.addEventListener("hashchange", () => { const row = rowOfAddress(model); if (row !== null) selection.select(row, "address"); });
  const asked = rowOfAddress(model);
  if (asked !== null) selection.select(asked, "address");
  else if (model.told.first !== null) selection.select(model.told.first, "start");
  page.ready = true;
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

begin();
