// What the values of a run look like: a slider over steps, layers by positions, a histogram.

const SIZES = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const STEP = 18, LEFT = 230, TALL = 160;

class Activations {
  constructor(told) {
    this.told = told;
    this.step = 0;
    this.op = 0;
    this.cells = new Map(told.cells.map(cell => [`${cell.step} ${cell.op}`, cell]));
    const sizes = told.cells.flatMap(cell => cell.sizes || []).filter(size => size > 0).map(Math.log10);
    this.low = sizes.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = sizes.reduce((a, b) => Math.max(a, b), -Infinity);
    const slider = byId("step");
    slider.max = told.steps.length - 1;
    slider.addEventListener("input", () => { this.step = Number(slider.value); this.draw(); });
    const canvas = byId("map");
    canvas.addEventListener("click", event => this.pick(this.lineAt(event.offsetY)));
    canvas.addEventListener("keydown", event => this.key(event));
    canvas.addEventListener("pointermove", event => this.hover(event));
    canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
    window.addEventListener("resize", () => this.draw());
    refill(byId("notes"), ...told.notes.map(note => make("li", {}, note)));
    this.draw();
  }

  cell(op) { return this.cells.get(`${this.step} ${op}`); }

  colour(size) {
    if (size === null) return null;
    if (size === 0) return themed("--line");
    return between(SIZES, (Math.log10(size) - this.low) / Math.max(1e-9, this.high - this.low));
  }

  draw() {
    byId("step-shown").textContent = `${this.told.steps[this.step]} (${this.step + 1} of ${this.told.steps.length})`;
    const {pen, width} = prepared(byId("map"), STEP * this.told.ops.length + 4);
    pen.textBaseline = "middle";
    this.wide = width - LEFT - 8;
    this.told.ops.forEach((op, line) => this.line(pen, op, line));
    const here = this.told.ops.filter((_, op) => this.cell(op)).length;
    const range = this.low <= this.high ? ` Dark is ${shown(10 ** this.low)}, bright ${shown(10 ** this.high)}; grey is zero, ✕ no number.` : "";
    byId("map-words").textContent = `${counted(here, "value")} at this step.${range}`;
    this.histogram();
  }

  line(pen, op, line) {
    const y = line * STEP, middle = y + STEP / 2, cell = this.cell(line);
    pen.fillStyle = themed(line === this.op ? "--accent" : "--soft");
    pen.textAlign = "right";
    pen.fillText(op.length > 34 ? `…${op.slice(-33)}` : op, LEFT - 8, middle, LEFT - 12);
    pen.textAlign = "left";
    if (!cell) return;
    if (cell.problem) { pen.fillText(cell.problem, LEFT, middle, this.wide); return; }
    const size = this.wide / cell.sizes.length;
    cell.sizes.forEach((one, i) => {
      const colour = this.colour(one);
      pen.fillStyle = colour || themed("--bad");
      if (colour) pen.fillRect(LEFT + i * size, y, Math.max(1, size - (size > 4 ? 1 : 0)), STEP - 1);
      else pen.fillText("✕", LEFT + (i + 0.5) * size - 4, middle);
    });
  }

  histogram() {
    const cell = this.cell(this.op), name = this.told.ops[this.op];
    const {pen, width} = prepared(byId("histogram"), TALL);
    byId("histogram-words").textContent = this.words(cell, name);
    if (!cell || cell.problem || !cell.counts.length) return;
    const most = Math.max(...cell.counts), wide = (width - 20) / cell.counts.length;
    pen.fillStyle = "#0072b2";
    cell.counts.forEach((count, i) => {
      const tall = count ? Math.max(1, count / most * (TALL - 30)) : 0;
      pen.fillRect(10 + i * wide, TALL - 20 - tall, Math.max(1, wide - 1), tall);
    });
    pen.fillStyle = themed("--soft");
    pen.textAlign = "left";
    pen.fillText(shown(cell.low), 10, TALL - 6);
    pen.textAlign = "right";
    pen.fillText(shown(cell.high), width - 10, TALL - 6);
  }

  words(cell, name) {
    if (!cell) return `${name} has no value at this step.`;
    const of = `${name}, ${cell.dtype} [${cell.shape.join(", ")}]${cell.note ? `, ${cell.note}` : ""}`;
    if (cell.problem) return `${of}: ${cell.problem}.`;
    const odd = cell.odd ? `; ${counted(cell.odd, "element")} NaN or Inf` : "";
    if (!cell.counts.length) return `${of}: no finite element${odd}.`;
    return `${of}: mean ${shown(cell.mean)}, standard deviation ${shown(cell.std)}${odd}.`;
  }

  lineAt(y) { return Math.max(0, Math.min(this.told.ops.length - 1, Math.floor(y / STEP))); }

  pick(op) { this.op = op; this.draw(); }

  hover(event) {
    const op = this.lineAt(event.offsetY), cell = this.cell(op);
    if (!cell || cell.problem || event.offsetX < LEFT) { byId("tip").hidden = true; return; }
    const at = Math.floor((event.offsetX - LEFT) / this.wide * cell.sizes.length);
    if (!(at in cell.sizes)) { byId("tip").hidden = true; return; }
    const length = cell.shape.length > 1 ? cell.shape[cell.shape.length - 2] : 1;
    const part = length > cell.sizes.length ? `span ${at} of ${cell.sizes.length}` : `position ${at}`;
    const size = cell.sizes[at] === null ? "no number" : shown(cell.sizes[at]);
    place(byId("tip"), byId("map").parentElement, event.offsetX, event.offsetY, `${this.told.ops[op]}, ${part}: ${size}`);
  }

  key(event) {
    const moves = {ArrowDown: 1, ArrowUp: -1};
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.pick(Math.max(0, Math.min(this.told.ops.length - 1, this.op + moves[event.key])));
  }
}

let activations = null;

async function begin() {
  wearTheme(() => { if (activations) activations.draw(); });
  activations = new Activations(await unpacked());
  document.documentElement.dataset.ready = "true";
}

begin();
