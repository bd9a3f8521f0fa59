// The divergence curve: error over the order of execution, on a log scale, with the tolerance as a
// band below it, layers as ticks, and roots marked.

const MARGIN = {left: 78, right: 14, top: 26, bottom: 44};
const CURVE_HEIGHT = 340;

class Curve {
  constructor(model) {
    this.model = model;
    this.canvas = byId("curve");
    this.tip = byId("curve-tip");
    this.tokens = "all";
    this.drag = null;
    const choice = byId("curve-tokens");
    refill(choice, make("option", {value: "all"}, "all, in order"), make("option", {value: "over"}, "overlaid"),
      ...model.tokens.map(token => make("option", {value: String(token)}, `token ${token}`)));
    choice.addEventListener("change", () => { this.tokens = choice.value; this.gather(); this.all(); });
    // A module repeats what a function in it gives, and stands where its call began.
    byId("curve-modules").checked = !model.range().some(row => model.cell(row, "op").includes("/"));
    for (const name of ["curve-forward", "curve-backward", "curve-modules"]) byId(name).addEventListener("change", () => { this.gather(); this.all(); });
    byId("zoom-in").addEventListener("click", () => this.zoom(0.5));
    byId("zoom-out").addEventListener("click", () => this.zoom(2));
    byId("zoom-all").addEventListener("click", () => this.all());
    this.listen();
    this.gather();
    this.all();
  }

  // The rows that are drawn, with their places: x by order, y by log10 of the error.
  gather() {
    const model = this.model;
    const forward = byId("curve-forward").checked, backward = byId("curve-backward").checked;
    const modules = byId("curve-modules").checked;
    const starts = new Map();
    this.points = [];
    for (const row of model.range()) {
      const token = model.cell(row, "token");
      if (!starts.has(token)) starts.set(token, model.position(row));
      if (this.tokens !== "all" && this.tokens !== "over" && String(token) !== this.tokens) continue;
      const isBackward = model.isBackward(row);
      if (isBackward ? !backward : !forward) continue;
      if (!modules && !model.isRoot(row) && !model.cell(row, "op").includes("/")) continue;
      const error = model.number(row, "rel_l2"), before = model.number(row, "before_rel_l2");
      if (error === null && !FAILING.has(model.verdict(row))) continue;
      const x = model.position(row) - (this.tokens === "over" ? starts.get(token) : 0);
      const limit = model.number(row, "tolerance");
      this.points.push({row, x, error, before, limit, token, isBackward});
    }
    const finite = this.points.flatMap(p => [p.error, p.before]).filter(error => error > 0 && Number.isFinite(error)).map(Math.log10);
    const limits = this.points.filter(p => p.limit > 0).map(p => Math.log10(p.limit));
    let low = Infinity, high = -Infinity;
    for (const y of finite) { low = Math.min(low, y); high = Math.max(high, y); }
    for (const y of limits) { low = Math.min(low, y); high = Math.max(high, y); }
    if (low > high) { low = -8; high = 0; }
    this.low = Math.floor(low) - 0.5;
    this.high = Math.ceil(high) + 0.5;
    this.points.sort((a, b) => a.x - b.x);
  }

  all() {
    const xs = this.points.map(p => p.x);
    this.from = xs.length ? xs[0] - 0.5 : 0;
    this.to = xs.length ? xs[xs.length - 1] + 0.5 : 1;
    this.whole = [this.from, this.to];
    this.draw();
  }

  zoom(factor, middle = null) {
    const at = middle === null ? this.pointOfSelected() ?? (this.from + this.to) / 2 : middle;
    const half = Math.max(2, (this.to - this.from) * factor / 2);
    this.from = Math.max(this.whole[0], at - half);
    this.to = Math.min(this.whole[1], at + half);
    this.draw();
  }

  pointOfSelected() {
    const point = this.points.find(p => p.row === selection.row);
    return point ? point.x : null;
  }

  x(place) { return MARGIN.left + (place - this.from) / (this.to - this.from) * (this.width - MARGIN.left - MARGIN.right); }
  placeAt(x) { return this.from + (x - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right) * (this.to - this.from); }

  // Zero lies on the floor, what is no number under the ceiling.
  y(error) {
    const floor = CURVE_HEIGHT - MARGIN.bottom, ceiling = MARGIN.top;
    if (error === 0) return floor - 4;
    if (error === null || !Number.isFinite(error)) return ceiling - 8;
    const share = (Math.log10(error) - this.low) / (this.high - this.low);
    return floor - 12 - share * (floor - 12 - ceiling);
  }

  draw() {
    const {pen, width} = prepared(this.canvas, CURVE_HEIGHT);
    this.width = width;
    this.pen = pen;
    this.axes();
    this.layerTicks();
    this.band();
    this.rest();
    pen.save();
    pen.beginPath();
    pen.rect(MARGIN.left - 6, 0, width - MARGIN.left - MARGIN.right + 12, CURVE_HEIGHT);
    pen.clip();
    const visible = this.points.filter(p => p.x >= this.from - 1 && p.x <= this.to + 1);
    this.before(visible);
    this.dots(visible.filter(point => !this.model.isRoot(point.row)));
    for (const point of visible) if (this.model.isRoot(point.row)) this.root(point);
    this.picked();
    pen.restore();
    this.describe();
  }

  axes() {
    const pen = this.pen;
    pen.fillStyle = themed("--soft");
    pen.strokeStyle = themed("--line");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const step = Math.max(1, Math.ceil((this.high - this.low) / 10));
    for (let power = Math.ceil(this.low); power <= this.high; power += step) {
      const y = this.y(10 ** power);
      pen.fillText(`1e${power}`, MARGIN.left - 8, y);
      this.line(MARGIN.left, y, this.width - MARGIN.right, y);
    }
    pen.fillText("0", MARGIN.left - 8, this.y(0));
    if (this.points.some(p => p.error === null || !Number.isFinite(p.error))) pen.fillText("no number", MARGIN.left - 8, this.y(null));
    pen.save();
    pen.translate(12, CURVE_HEIGHT / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText("rel_l2", 0, 0);
    pen.restore();
  }

  line(x0, y0, x1, y1) {
    this.pen.beginPath();
    this.pen.moveTo(x0, y0);
    this.pen.lineTo(x1, y1);
    this.pen.stroke();
  }

  // A tick where the layer changes; names where there is room.
  layerTicks() {
    const pen = this.pen;
    pen.textAlign = "left";
    pen.textBaseline = "top";
    let last = null, free = 0;
    const hasTokens = this.tokens === "all" && this.model.tokens.length > 1;
    const ink = themed("--soft");
    pen.strokeStyle = themed("--line");
    for (const point of this.points) {
      if (point.x < this.from || point.x > this.to) continue;
      const layer = this.model.layer(point.row), place = `${point.token} ${layer}`;
      if (place === last) continue;
      last = place;
      const x = this.x(point.x);
      this.line(x, CURVE_HEIGHT - MARGIN.bottom, x, CURVE_HEIGHT - MARGIN.bottom + 6);
      const short = layer.length > 16 ? `${layer.slice(0, 15)}…` : layer;
      const name = hasTokens ? `${short} (${point.token})` : short; // the token in which it is
      const wide = pen.measureText(name).width;
      if (x >= free && x + wide < this.width) {
        pen.fillStyle = ink;
        pen.fillText(name, x, CURVE_HEIGHT - MARGIN.bottom + 9);
        free = x + wide + 10;
      }
    }
    pen.fillStyle = themed("--soft");
    pen.textAlign = "right";
    pen.fillText("order of execution", this.width - MARGIN.right, CURVE_HEIGHT - 16);
  }

  // What is admissible, as an area from the floor up to it.
  band() {
    const pen = this.pen;
    const known = this.points.filter(p => p.limit > 0 && p.x >= this.from && p.x <= this.to);
    if (!known.length) return;
    const floor = CURVE_HEIGHT - MARGIN.bottom;
    pen.fillStyle = "rgba(66,146,198,0.18)";
    pen.strokeStyle = "rgba(66,146,198,0.7)";
    pen.beginPath();
    pen.moveTo(MARGIN.left, floor);
    let y = this.y(known[0].limit);
    pen.lineTo(MARGIN.left, y);
    for (const point of known) {
      const x = this.x(point.x);
      pen.lineTo(x, y);
      y = this.y(point.limit);
      pen.lineTo(x, y);
    }
    pen.lineTo(this.width - MARGIN.right, y);
    pen.lineTo(this.width - MARGIN.right, floor);
    pen.fill();
  }

  // Rows that the page does not have one by one: a bar as long as they lie, as dark as they are many.
  rest() {
    if (this.tokens === "over") return;
    this.pen.fillStyle = "rgba(128,128,128,0.35)";
    const y = CURVE_HEIGHT - MARGIN.bottom - 7;
    for (const group of this.model.told.rest) {
      if (this.tokens !== "all" && String(group.token) !== this.tokens) continue;
      const from = Math.max(MARGIN.left, this.x(group.first)), to = Math.min(this.width - MARGIN.right, this.x(group.last));
      if (to >= from) this.pen.fillRect(from, y, Math.max(1, to - from), 6);
    }
  }

  colour(point) {
    if (this.tokens === "over") return SERIES[this.model.tokens.indexOf(point.token) % SERIES.length];
    return FAILING.has(this.model.verdict(point.row)) ? "#d55e00" : "#0072b2";
  }

  // Dots of one colour are one path, and one of several at the same pixel is drawn.
  dots(points) {
    const pen = this.pen, drawn = new Set(), byColour = new Map();
    for (const point of points) {
      const x = Math.round(this.x(point.x)), y = Math.round(this.y(point.error)), colour = this.colour(point);
      const name = `${x} ${y} ${colour} ${point.isBackward}`;
      if (drawn.has(name)) continue;
      drawn.add(name);
      put(byColour, colour, [x, y, point.isBackward]);
    }
    for (const [colour, places] of byColour) {
      pen.fillStyle = colour;
      pen.beginPath();
      for (const [x, y, isBackward] of places) {
        if (isBackward) { pen.moveTo(x - 3, y - 2.5); pen.lineTo(x + 3, y - 2.5); pen.lineTo(x, y + 3); pen.closePath(); }
        else pen.rect(x - 2, y - 2, 4, 4);
      }
      pen.fill();
    }
  }

  // What the errors were before: hollow, behind those of now.
  before(points) {
    const pen = this.pen;
    pen.strokeStyle = themed("--soft");
    pen.beginPath();
    for (const point of points) if (point.before !== null) pen.rect(Math.round(this.x(point.x)) - 2.5, Math.round(this.y(point.before)) - 2.5, 5, 5);
    pen.stroke();
  }

  root(point) {
    const pen = this.pen, x = this.x(point.x), y = this.y(point.error);
    pen.strokeStyle = "#a40e26";
    pen.setLineDash([3, 3]);
    this.line(x, y, x, CURVE_HEIGHT - MARGIN.bottom);
    pen.setLineDash([]);
    pen.fillStyle = "#a40e26";
    pen.beginPath();
    pen.moveTo(x, y - 8); pen.lineTo(x + 6, y); pen.lineTo(x, y + 8); pen.lineTo(x - 6, y);
    pen.fill();
    pen.strokeStyle = themed("--ground");
    pen.stroke();
  }

  picked() {
    const point = this.points.find(p => p.row === selection.row);
    if (!point) return;
    const pen = this.pen, x = this.x(point.x);
    pen.strokeStyle = themed("--accent");
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(x, this.y(point.error), 8, 0, 7);
    pen.stroke();
    pen.lineWidth = 1;
    this.line(x, MARGIN.top, x, CURVE_HEIGHT - MARGIN.bottom);
  }

  describe() {
    const failing = this.points.filter(p => FAILING.has(this.model.verdict(p.row))).length;
    const roots = this.points.filter(p => this.model.isRoot(p.row)).length;
    byId("curve-words").textContent = `${counted(this.points.length, "row")}, ${failing} of them ${failing === 1 ? "fails" : "fail"}, ${counted(roots, "is a root", "are roots")}.`;
    const legend = [swatch("rgba(66,146,198,0.3)", "within the tolerance"), swatch("#a40e26", "root (diamond)")];
    if (this.tokens === "over") legend.push(...this.model.tokens.slice(0, 12).map((token, i) => swatch(SERIES[i % SERIES.length], `token ${token}`)));
    else legend.push(swatch("#0072b2", "does not fail"), swatch("#d55e00", "fails"));
    legend.push(make("span", {}, "■ forward  ▼ backward"));
    if (this.model.hasBefore) legend.push(make("span", {}, "□ before"));
    refill(byId("curve-legend"), ...legend);
  }

  nearest(x, y) {
    let best = null, least = 20 * 20;
    for (const point of this.points) {
      const dx = this.x(point.x) - x;
      if (dx > 20 || dx < -20) continue;
      const dy = this.y(point.error) - y, far = dx * dx + dy * dy * 0.5;
      if (far < least) { least = far; best = point; }
    }
    return best;
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("pointerdown", event => { this.drag = event.offsetX; });
    canvas.addEventListener("pointerup", event => this.released(event));
    canvas.addEventListener("pointermove", event => this.hover(event));
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; this.drag = null; });
    canvas.addEventListener("keydown", event => this.key(event));
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.4 : 0.7, this.placeAt(event.offsetX));
    }, {passive: false});
  }

  released(event) {
    const start = this.drag;
    this.drag = null;
    if (start !== null && Math.abs(event.offsetX - start) > 12) {
      const ends = [this.placeAt(start), this.placeAt(event.offsetX)].sort((a, b) => a - b);
      this.from = Math.max(this.whole[0], ends[0]);
      this.to = Math.min(this.whole[1], Math.max(ends[1], ends[0] + 2));
      this.draw();
      return;
    }
    const point = this.nearest(event.offsetX, event.offsetY);
    if (point) selection.select(point.row, "curve");
  }

  hover(event) {
    if (this.drag !== null && Math.abs(event.offsetX - this.drag) > 12) {
      this.draw();
      this.pen.fillStyle = "rgba(128,128,128,0.25)";
      this.pen.fillRect(this.drag, MARGIN.top, event.offsetX - this.drag, CURVE_HEIGHT - MARGIN.top - MARGIN.bottom);
      return;
    }
    const point = this.nearest(event.offsetX, event.offsetY);
    if (!point) { this.tip.hidden = true; return; }
    place(this.tip, this.canvas.parentElement, event.offsetX, event.offsetY, brief(this.model, point.row));
  }

  key(event) {
    const steps = {ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20};
    if (event.key === "+") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.all();
    else if (event.key in steps && this.points.length) {
      const now = this.points.findIndex(p => p.row === selection.row);
      const next = Math.max(0, Math.min(this.points.length - 1, now + steps[event.key]));
      selection.select(this.points[next].row, "curve");
    } else return;
    event.preventDefault();
  }
}

// A row in a few lines, for a tip.
function brief(model, row) {
  const lines = [`${model.nameOf(row)}, token ${shown(model.cell(row, "token"))}`];
  const limit = model.number(row, "tolerance");
  lines.push(`${model.verdict(row)}${model.isRoot(row) ? " (root)" : ""}  rel_l2 ${shown(model.number(row, "rel_l2"))}${limit === null ? "" : ` of at most ${shown(limit)}`}`);
  if (model.cell(row, "reason")) lines.push(model.cell(row, "reason"));
  if (model.cell(row, "source")) lines.push(model.cell(row, "source"));
  return lines.join("\n");
}
