// The data flow around a row: the calls two steps up and two steps down, with their verdicts.

const BOX = {width: 190, height: 34, gapX: 60, gapY: 10};
const MOST_BOXES = 6; // in one column
const SVG = "http://www.w3.org/2000/svg";

class Flow {
  constructor(model) {
    this.model = model;
    this.rowsOf = new Map();
    for (const row of model.range()) put(this.rowsOf, model.siteOf(row), row);
  }

  // The calls that gave something to a call, or took something from it; functions before modules.
  neighbours(site, links) {
    const found = new Map();
    for (const row of this.rowsOf.get(site) || []) {
      for (const [other, side] of links.get(row) || []) {
        const name = this.model.siteOf(other);
        if (name !== site && !found.has(name)) found.set(name, {site: name, row: other, side});
      }
    }
    const all = [...found.values()];
    const functions = all.filter(one => this.model.cell(one.row, "op").includes("/"));
    return (functions.length ? functions : all).slice(0, MOST_BOXES);
  }

  show(row) {
    const model = this.model, middle = {site: model.siteOf(row), row, side: "both"};
    const up = this.columnsFrom(middle, model.sources), down = this.columnsFrom(middle, model.takers);
    const columns = [...up.columns.slice().reverse(), [middle], ...down.columns];
    const arrows = [...up.arrows.map(([near, far, side]) => [far, near, side]), ...down.arrows];
    refill(byId("flow"), columns.length > 1 ? this.draw(columns, arrows) : make("p", {class: "hint"}, "No link of this row to another is in the report."));
    this.heirs(row);
  }

  columnsFrom(middle, links) {
    const columns = [], arrows = [], seen = new Set([middle.site]);
    let last = [middle];
    for (let step = 0; step < 2; step++) {
      const column = [];
      for (const near of last) for (const far of this.neighbours(near.site, links)) {
        arrows.push([near.site, far.site, far.side]);
        if (!seen.has(far.site) && column.length < MOST_BOXES) { seen.add(far.site); column.push(far); }
      }
      if (!column.length) break;
      columns.push(column);
      last = column;
    }
    return {columns, arrows};
  }

  draw(columns, arrows) {
    const tall = Math.max(...columns.map(column => column.length)) * (BOX.height + BOX.gapY) + 20;
    const wide = columns.length * (BOX.width + BOX.gapX);
    const svg = drawn("svg", {width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`, role: "group", "aria-label": "data flow around the selected row"});
    const places = new Map();
    columns.forEach((column, x) => column.forEach((one, y) => {
      const top = (tall - column.length * (BOX.height + BOX.gapY)) / 2 + y * (BOX.height + BOX.gapY);
      places.set(one.site, [x * (BOX.width + BOX.gapX), top]);
    }));
    for (const [from, to, side] of arrows) {
      if (!places.has(from) || !places.has(to)) continue;
      const [x0, y0] = places.get(from), [x1, y1] = places.get(to);
      const start = x0 + BOX.width, half = BOX.height / 2;
      const path = `M${start} ${y0 + half} C${start + 30} ${y0 + half} ${x1 - 30} ${y1 + half} ${x1} ${y1 + half}`;
      svg.append(drawn("path", {d: path, fill: "none", stroke: side === "mine" ? "#d55e00" : side === "golden" ? "#0072b2" : "#888", "stroke-dasharray": side === "both" ? "none" : "5 3"}));
    }
    for (const column of columns) for (const one of column) svg.append(this.box(one, places.get(one.site)));
    return svg;
  }

  box(one, [x, y]) {
    const model = this.model, verdict = this.verdictOf(one.site);
    const colour = {bad: "#d55e00", doubt: "#e69f00", good: "#0072b2"}[toneOf(verdict)];
    const group = drawn("g", {class: "box", tabindex: 0, role: "button", "aria-label": `${model.cell(one.row, "op")}: ${verdict}`});
    const act = () => selection.select(this.tellingRow(one.site), "flow");
    group.addEventListener("click", act);
    group.addEventListener("keydown", event => { if (event.key === "Enter") act(); });
    const op = model.cell(one.row, "op");
    const name = fitted(op, BOX.width - 16);
    const first = drawn("text", {x: x + 8, y: y + 14}), second = drawn("text", {x: x + 8, y: y + 28});
    first.textContent = name;
    second.textContent = `${verdict}${this.rowsOf.get(one.site).some(row => model.isRoot(row)) ? " (root)" : ""}`;
    const title = drawn("title", {});
    title.textContent = one.site;
    const chosen = selection.row !== null && model.siteOf(selection.row) === one.site;
    group.append(title, drawn("rect", {x, y, width: BOX.width, height: BOX.height, rx: 5, fill: "none", stroke: colour, "stroke-width": chosen ? 3 : 1.5}), first, second);
    return group;
  }

  // The row of a call that tells most: a root, a failing output, an output.
  tellingRow(site) {
    const model = this.model, rows = this.rowsOf.get(site);
    const isOutput = row => model.cell(row, "slot").startsWith("output");
    return rows.find(row => model.isRoot(row)) ?? rows.find(row => isOutput(row) && FAILING.has(model.verdict(row))) ?? rows.find(isOutput) ?? rows[0];
  }

  verdictOf(site) { return this.model.verdict(this.tellingRow(site)); }

  // From a root to what inherits from it.
  heirs(row) {
    const model = this.model, root = model.isRoot(row) ? row : model.causeOf(row);
    if (root === null) { refill(byId("heirs")); return; }
    const heirs = model.range().filter(other => model.causeOf(other) === root);
    const items = [root, ...heirs.slice(0, 100)].map(one => make("li", {}, linkTo(model, one), `: ${model.verdict(one)} ${shown(model.number(one, "rel_l2"))}`));
    if (heirs.length > 100) items.push(make("li", {}, `and ${heirs.length - 100} more`));
    refill(byId("heirs"), ...items);
  }
}

// The end of a name, as much of it as there is room for.
function fitted(name, room) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px system-ui, sans-serif";
  let from = 0;
  while (from < name.length - 1 && pen.measureText(from ? `…${name.slice(from)}` : name).width > room) from++;
  return from ? `…${name.slice(from)}` : name;
}

function drawn(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
