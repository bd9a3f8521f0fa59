// The heat map: layers down, tokens (or ranks) across, coloured by the error in units of the
// tolerance; a cross where something fails.

const CELL = 18;

class HeatMap {
  constructor(model) {
    this.model = model;
    this.canvas = byId("map");
    this.tip = byId("map-tip");
    this.across = "token";
    const choice = byId("map-across");
    const hasRanks = Boolean(model.columns.by_rank);
    refill(choice, make("option", {value: "token"}, "tokens"), ...(hasRanks ? [make("option", {value: "rank"}, "ranks")] : []));
    choice.addEventListener("change", () => { this.across = choice.value; this.gather(); this.draw(); });
    this.canvas.addEventListener("pointermove", event => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", event => this.pick(this.cellAt(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("keydown", event => this.key(event));
    this.focused = null;
    this.gather();
    this.draw();
  }

  gather() {
    const model = this.model;
    this.cells = new Map();
    const heads = new Set();
    const add = (layer, head, ratio, fails, row, number) => {
      heads.add(head);
      const name = `${layer} ${head}`;
      const cell = this.cells.get(name) || {layer, head, worst: null, fails: 0, number: 0, row: null};
      cell.number += number;
      cell.fails += fails;
      if (ratio !== null && (cell.worst === null || ratio > cell.worst)) { cell.worst = ratio; cell.row = row ?? cell.row; }
      if (cell.row === null) cell.row = row;
      this.cells.set(name, cell);
    };
    for (const row of model.range()) {
      const fails = FAILING.has(model.verdict(row)) ? 1 : 0;
      const layer = model.layerAt[row];
      if (this.across === "token") add(layer, model.cell(row, "token"), model.ratio(row), fails, row, 1);
      else for (const [rank, error] of model.byRank(row)) {
        const limit = model.limits[row], ratio = limit > 0 ? error / limit : error === 0 ? 0 : null;
        add(layer, rank, ratio, fails && ratio > 1 ? 1 : 0, row, 1);
      }
    }
    if (this.across === "token") for (const group of model.told.rest) add(model.layerNumbers.get(group.layer), group.token, group.worst, 0, null, group.number);
    this.heads = [...heads].sort((a, b) => a - b);
    const layers = new Set([...this.cells.values()].map(cell => cell.layer));
    this.lines = [...layers].sort((a, b) => a - b);
  }

  draw() {
    const wide = Math.min(220, 20 + Math.max(40, ...this.lines.map(line => this.model.layers[line].length * 7)));
    this.left = wide;
    const room = (this.canvas.parentElement.clientWidth || 800) - wide - 10;
    this.size = Math.max(2, Math.min(46, Math.floor(room / Math.max(1, this.heads.length))));
    this.step = this.lines.length > 60 ? Math.max(5, Math.floor(900 / this.lines.length)) : CELL;
    const {pen} = prepared(this.canvas, 26 + this.step * this.lines.length + 6);
    this.pen = pen;
    pen.textBaseline = "middle";
    this.lines.forEach((line, y) => this.name(line, y));
    this.heads.forEach((head, x) => this.head(head, x));
    for (const cell of this.cells.values()) this.cell(cell);
    this.describe();
  }

  name(line, y) {
    if (this.step < 11 && y % Math.ceil(11 / this.step)) return;
    const pen = this.pen;
    pen.fillStyle = themed("--soft");
    pen.textAlign = "right";
    const name = this.model.layers[line];
    pen.fillText(name.length > 28 ? `${name.slice(0, 27)}…` : name, this.left - 8, 26 + (y + 0.5) * this.step);
  }

  head(head, x) {
    if (x % Math.ceil(26 / this.size)) return;
    this.pen.fillStyle = themed("--soft");
    this.pen.textAlign = "center";
    this.pen.fillText(String(head), this.left + (x + 0.5) * this.size, 12);
  }

  at(cell) { return [this.left + this.heads.indexOf(cell.head) * this.size, 26 + this.lines.indexOf(cell.layer) * this.step]; }

  cell(cell) {
    const pen = this.pen, [x, y] = this.at(cell);
    const gap = this.size > 4 ? 1 : 0;
    const colour = heat(cell.worst);
    pen.fillStyle = colour || themed("--line");
    pen.fillRect(x, y, this.size - gap, this.step - (this.step > 6 ? 1 : 0));
    if (cell.fails && this.size > 7) {
      pen.strokeStyle = cell.worst > 1e3 ? "#fff" : "#000";
      const cx = x + this.size / 2, cy = y + this.step / 2;
      pen.beginPath();
      pen.moveTo(cx - 3, cy - 3); pen.lineTo(cx + 3, cy + 3); pen.moveTo(cx + 3, cy - 3); pen.lineTo(cx - 3, cy + 3);
      pen.stroke();
    }
    if (cell === this.focused || (cell.row !== null && cell.row === selection.row)) {
      pen.strokeStyle = themed("--accent");
      pen.lineWidth = 2;
      pen.strokeRect(x, y, this.size - 1, this.step - 1);
      pen.lineWidth = 1;
    }
  }

  describe() {
    const failing = [...this.cells.values()].filter(cell => cell.fails).length;
    const word = this.across === "token" ? "tokens" : "ranks";
    byId("map-title").textContent = `Layers and ${word}`;
    byId("map-words").textContent = `${counted(this.lines.length, "layer")}, ${counted(this.heads.length, this.across)}; something fails in ${failing} of ${counted(this.cells.size, "cell")}. Colour: the largest error in units of the tolerance.`;
    refill(byId("map-legend"), ...[[0, "equal"], [0.01, "1/100"], [1, "the tolerance"], [10, "10 times"], [1e3, "1000 times"], [Infinity, "more, or no number"]]
      .map(([ratio, text]) => swatch(heat(ratio), text)), make("span", {}, "✕ something fails"));
  }

  cellAt(x, y) {
    const head = this.heads[Math.floor((x - this.left) / this.size)], line = this.lines[Math.floor((y - 26) / this.step)];
    return x < this.left ? undefined : this.cells.get(`${line} ${head}`);
  }

  hover(event) {
    const cell = this.cellAt(event.offsetX, event.offsetY);
    if (!cell) { this.tip.hidden = true; return; }
    place(this.tip, this.canvas.parentElement, event.offsetX, event.offsetY, this.told(cell));
  }

  told(cell) {
    const word = this.across === "token" ? "token" : "rank";
    const worst = cell.worst === null ? "nothing was measured" : cell.worst === Infinity ? "no number" : `at most ${shown(cell.worst)} times the tolerance`;
    return `${this.model.layers[cell.layer]}, ${word} ${cell.head}: ${counted(cell.number, "value")}, ${counted(cell.fails, "fails", "fail")}; ${worst}`;
  }

  // Goes to the rows of a cell: the table shows them, and the worst is selected.
  pick(cell) {
    if (!cell) return;
    this.focused = cell;
    page.table.show({layer: this.model.layers[cell.layer], ...(this.across === "token" ? {token: String(cell.head)} : {})});
    if (cell.row !== null) selection.select(cell.row, "map"); else this.draw();
  }

  key(event) {
    const moves = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]};
    if (!(event.key in moves) || !this.cells.size) return;
    event.preventDefault();
    const now = this.focused || {layer: this.lines[0], head: this.heads[0]};
    const [dy, dx] = moves[event.key];
    const line = this.lines[this.lines.indexOf(now.layer) + dy], head = this.heads[this.heads.indexOf(now.head) + dx];
    this.pick(this.cells.get(`${line} ${head}`));
  }
}
