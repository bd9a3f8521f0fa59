// Both programs side by side, call by call, as modules that open and close: golden left, mine right.
// One line a module or call, in order of execution; only the lines in sight are drawn.

const ROW = 24, INDENT = 16, EDGES = 48; // pixels at zoom 1: of a line, of a depth, for arrows
const MOST_EDGES = 400; // that are drawn at once
const TONES = ["good", "doubt", "bad"];
const STROKES = {good: "#0072b2", doubt: "#e69f00", bad: "#d55e00"};

// The modules around an op, a number with the name before it: ["layers.3", "attn"].
function modulesOf(op) {
  const parts = [];
  for (const segment of op.split("/")[0].split("@")[0].split(".")) {
    if (/^[0-9]+$/.test(segment) && parts.length) parts.push(`${parts.pop()}.${segment}`);
    else parts.push(segment);
  }
  return parts;
}

class Graph {
  constructor(model) {
    this.model = model;
    this.canvas = byId("graph");
    this.box = byId("graph-box");
    this.zoom = 1;
    this.focused = null;
    const choice = byId("graph-token");
    refill(choice, ...model.tokens.map(token => make("option", {value: String(token)}, `token ${token}`)));
    const first = model.told.first === null ? model.tokens[0] : model.cell(model.told.first, "token");
    choice.value = String(first ?? "");
    choice.addEventListener("change", () => { this.gather(); this.reopen(); });
    byId("graph-differs").addEventListener("change", () => this.lay());
    byId("graph-in").addEventListener("click", () => this.scale(1.25));
    byId("graph-out").addEventListener("click", () => this.scale(0.8));
    byId("graph-open").addEventListener("click", () => this.openAll(true));
    byId("graph-close").addEventListener("click", () => this.openAll(false));
    this.box.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("click", event => this.act(this.nodeAt(event.offsetY)));
    this.box.addEventListener("keydown", event => this.key(event));
    this.gather();
    this.reopen();
  }

  // The tree of the chosen token. A module that is entered again later is a node of its own.
  gather() {
    const model = this.model, token = Number(byId("graph-token").value);
    this.tree = this.node("", null, -1);
    this.calls = new Map();
    this.callOf = new Map();
    for (const row of model.range()) {
      if (model.cell(row, "token") !== token) continue;
      const site = model.siteOf(row), known = this.calls.get(site);
      const call = known || this.place(model.cell(row, "op"), site);
      if (!known) this.calls.set(site, call);
      this.callOf.set(row, call);
      this.note(call, row);
    }
    this.count(this.tree);
    const calls = [...this.calls.values()];
    this.failing = calls.filter(call => call.rows.some(row => FAILING.has(model.verdict(row)))).length;
    this.arrows = model.told.arrows.map(([row, source, side]) => [this.callOf.get(row), this.callOf.get(source), side])
      .filter(([call, source]) => call && source && call !== source);
  }

  node(name, parent, depth) {
    return {name, parent, depth, children: [], rows: [], golden: false, mine: false, tone: 0, fails: 0, number: 0, isRoot: false, isOpen: false, site: null};
  }

  place(op, site) {
    const modules = modulesOf(op), called = op.includes("/") ? op.slice(op.indexOf("/") + 1) : null;
    let at = this.tree;
    for (const name of modules) {
      const last = at.children[at.children.length - 1];
      if (last && last.name === name && !last.site) { at = last; continue; }
      const made = this.node(name, at, at.depth + 1);
      at.children.push(made);
      at = made;
    }
    if (called === null) { at.module = site; return at; } // its values stand with the module itself
    const call = this.node(called, at, at.depth + 1);
    call.site = site;
    at.children.push(call);
    return call;
  }

  note(call, row) {
    const model = this.model;
    call.rows.push(row);
    call.golden = call.golden || model.cell(row, "golden_shape") !== null;
    call.mine = call.mine || model.cell(row, "my_shape") !== null;
    call.tone = Math.max(call.tone, TONES.indexOf(toneOf(model.verdict(row))));
    const mine = model.cell(row, "my_op");
    if (mine && model.cell(row, "slot").startsWith("output")) call.called = mine.replace(/^.*?\] /, "").replace(/ output\.0$/, ""); // by another name on my side
    call.fails += FAILING.has(model.verdict(row)) ? 1 : 0;
    call.isRoot = call.isRoot || model.isRoot(row);
  }

  // Lets a module have what its calls have.
  count(node) {
    node.number = node.rows.length;
    for (const child of node.children) {
      this.count(child);
      node.number += child.number;
      node.fails += child.fails;
      node.tone = Math.max(node.tone, child.tone);
      node.golden = node.golden || child.golden;
      node.mine = node.mine || child.mine;
      node.isRoot = node.isRoot || child.isRoot;
    }
  }

  // Opens the way to every root, and nothing else.
  reopen() {
    this.openAll(false, true);
    for (const call of this.calls.values()) if (call.rows.some(row => this.model.isRoot(row))) this.reveal(call);
    this.lay();
    const first = this.lines.findIndex(node => node.rows.some(row => this.model.isRoot(row)));
    if (first >= 0) this.box.scrollTop = Math.max(0, first * ROW * this.zoom - this.box.clientHeight / 2);
  }

  reveal(node) { for (let at = node.parent; at; at = at.parent) at.isOpen = true; }

  openAll(isOpen, isQuiet = false) {
    const visit = node => { node.isOpen = isOpen; node.children.forEach(visit); };
    visit(this.tree);
    this.tree.isOpen = true;
    if (!isQuiet) this.lay();
  }

  // The lines that are open, in order, and in which line each call is, or the module around it.
  lay() {
    const differs = byId("graph-differs").checked;
    this.lines = [];
    const lineOf = new Map();
    const visit = (node, shownAs) => {
      for (const child of node.children) {
        if (differs && !child.fails && child.golden && child.mine) continue;
        const at = shownAs ?? this.lines.push(child) - 1;
        lineOf.set(child, at);
        visit(child, shownAs ?? (child.isOpen ? null : at));
      }
    };
    visit(this.tree, null);
    const known = new Map();
    for (const [call, source, side] of this.arrows) {
      const to = lineOf.get(call), from = lineOf.get(source);
      if (to !== undefined && from !== undefined && to !== from) known.set(`${from} ${to} ${side}`, [from, to, side]);
    }
    this.links = [...known.values()];
    byId("graph-space").style.height = `${this.lines.length * ROW * this.zoom + 8}px`;
    this.draw();
  }

  scale(factor) {
    const middle = (this.box.scrollTop + this.box.clientHeight / 2) / this.zoom;
    this.zoom = Math.max(0.25, Math.min(3, this.zoom * factor));
    byId("graph-space").style.height = `${this.lines.length * ROW * this.zoom + 8}px`;
    this.box.scrollTop = middle * this.zoom - this.box.clientHeight / 2;
    this.draw();
  }

  draw() {
    const height = this.box.clientHeight || 400;
    const {pen, width} = prepared(this.canvas, height);
    this.pen = pen;
    const tall = ROW * this.zoom;
    this.half = (width - EDGES) / 2;
    pen.font = `${Math.max(7, 12 * this.zoom)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    const first = Math.floor(this.box.scrollTop / tall), last = Math.min(this.lines.length, Math.ceil((this.box.scrollTop + height) / tall) + 1);
    this.edges(first, last, tall);
    for (let i = first; i < last; i++) this.line(this.lines[i], i * tall - this.box.scrollTop, tall);
    byId("graph-words").textContent = `${counted(this.calls.size, "call")} in ${counted(this.lines.length, "line")}; something fails in ${this.failing}. Left golden, right mine; a call of one side alone has a gap on the other.`;
  }

  line(node, y, tall) {
    const pen = this.pen, from = (node.depth * INDENT + 6) * Math.min(1, this.zoom), tone = TONES[node.tone];
    const mark = node.children.length ? (node.isOpen ? "▾ " : "▸ ") : "";
    const told = node.children.length && !node.isOpen ? `  ${counted(node.number, "value")}${node.fails ? `, ${counted(node.fails, "fails", "fail")}` : ""}` : node.isRoot && !node.children.length ? "  root" : "";
    for (const [left, isThere] of [[0, node.golden], [this.half + EDGES, node.mine]]) {
      const x = left + from, wide = this.half - from - 4;
      pen.setLineDash(isThere ? [] : [3, 3]);
      pen.strokeStyle = isThere ? STROKES[tone] : themed("--line");
      pen.lineWidth = node === this.focused || node.rows.includes(selection.row) ? 3 : 1;
      if (isThere && node.fails) { pen.globalAlpha = node.isRoot ? 0.35 : 0.14; pen.fillStyle = STROKES.bad; pen.fillRect(x, y + 2, wide, tall - 4); pen.globalAlpha = 1; }
      pen.strokeRect(x, y + 2, wide, tall - 4);
      if (!isThere || tall < 9) continue;
      pen.fillStyle = themed("--ink");
      pen.textAlign = "left";
      const name = left && node.called ? node.called : node.name;
      pen.fillText(`${mark}${name}${told}`, x + 6, y + tall / 2, Math.max(10, wide - 10));
    }
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  // What was computed from what, between lines in sight: arcs in the middle.
  edges(first, last, tall) {
    const pen = this.pen;
    let number = 0;
    pen.lineWidth = 1;
    for (const [from, to, side] of this.links) {
      if (Math.max(to, from) < first || Math.min(to, from) > last) continue;
      if (number++ > MOST_EDGES) break;
      const y0 = (from + 0.5) * tall - this.box.scrollTop, y1 = (to + 0.5) * tall - this.box.scrollTop;
      const x = side === "mine" ? this.half + EDGES : this.half, bend = side === "mine" ? -1 : 1;
      const reach = bend * Math.min(EDGES - 8, 8 + Math.abs(to - from) * 3);
      pen.strokeStyle = side === "mine" ? "#d55e00" : side === "golden" ? "#0072b2" : themed("--soft");
      pen.globalAlpha = 0.6;
      pen.beginPath();
      pen.moveTo(x, y0);
      pen.bezierCurveTo(x + reach, y0, x + reach, y1, x, y1);
      pen.stroke();
      pen.globalAlpha = 1;
    }
  }

  nodeAt(y) { return this.lines[Math.floor((y + this.box.scrollTop) / (ROW * this.zoom))]; }

  // A module opens or closes; a call is selected, by the row of it that tells most.
  act(node) {
    if (!node) return;
    this.focused = node;
    if (node.children.length) { node.isOpen = !node.isOpen; this.lay(); } else selection.select(page.flow.tellingRow(node.site), "graph");
    this.draw();
  }

  key(event) {
    const now = this.lines.indexOf(this.focused), moves = {ArrowDown: 1, ArrowUp: -1};
    if (event.key in moves && this.lines.length) {
      this.focused = this.lines[Math.max(0, Math.min(this.lines.length - 1, now + moves[event.key]))];
      const y = this.lines.indexOf(this.focused) * ROW * this.zoom;
      if (y < this.box.scrollTop || y > this.box.scrollTop + this.box.clientHeight - 2 * ROW) this.box.scrollTop = y - this.box.clientHeight / 2;
      this.draw();
    } else if (event.key === "Enter" || event.key === " ") this.act(this.focused);
    else if (event.key === "+" || event.key === "-") this.scale(event.key === "+" ? 1.25 : 0.8);
    else return;
    event.preventDefault();
  }
}
