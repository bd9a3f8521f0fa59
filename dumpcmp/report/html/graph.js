// The programs side by side, call by call, as modules that open and close: golden left, mine right.
// One line a module or call, in order of execution; only the lines in sight are drawn. The view is
// moved and made larger freely, down to all lines in one picture.

const ROW = 24, INDENT = 16, EDGES = 48; // pixels at zoom 1: of a line, of a depth, at most for arrows
const MOST_EDGES = 400; // that are drawn at once
const LARGEST = 4, FINEST = 2; // zoom; pixels of a line, below which several lines are one bar
const A_CLICK = 4; // pixels that a pointer may move in one
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
    this.left = this.top = 0; // of the view, in pixels of the picture
    this.focused = null;
    this.sides = model.hasBefore ? ["golden", "before", "mine"] : ["golden", "mine"];
    const choice = byId("graph-token");
    refill(choice, ...model.tokens.map(token => make("option", {value: String(token)}, `token ${token}`)));
    const first = model.told.first === null ? model.tokens[0] : model.cell(model.told.first, "token");
    choice.value = String(first ?? "");
    choice.addEventListener("change", () => { this.gather(); this.reopen(); });
    byId("graph-differs").addEventListener("change", () => this.lay());
    byId("graph-in").addEventListener("click", () => this.scale(1.25));
    byId("graph-out").addEventListener("click", () => this.scale(0.8));
    byId("graph-all").addEventListener("click", () => this.fit());
    byId("graph-open").addEventListener("click", () => this.openAll(true));
    byId("graph-close").addEventListener("click", () => this.openAll(false));
    this.listen();
    this.gather();
    this.reopen();
  }

  listen() {
    const canvas = this.canvas;
    let grip = null; // where the pointer went down, and what the view was
    canvas.addEventListener("pointerdown", event => {
      if (event.button) return;
      grip = {x: event.clientX, y: event.clientY, left: this.left, top: this.top, isDrag: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (!grip) { this.hover(event); return; }
      const dx = event.clientX - grip.x, dy = event.clientY - grip.y;
      grip.isDrag = grip.isDrag || Math.hypot(dx, dy) > A_CLICK;
      if (grip.isDrag) this.look(grip.left - dx, grip.top - dy);
    });
    canvas.addEventListener("pointerup", event => {
      if (grip && !grip.isDrag) this.act(this.nodeAt(event.offsetY));
      grip = null;
    });
    canvas.addEventListener("pointercancel", () => { grip = null; });
    canvas.addEventListener("pointerleave", () => { byId("graph-tip").hidden = true; });
    canvas.addEventListener("wheel", event => this.wheel(event), {passive: false});
    this.box.addEventListener("keydown", event => this.key(event));
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
    return {name, parent, depth, children: [], rows: [], golden: false, before: false, mine: false, tone: 0, toneBefore: 0, failed: 0, fails: 0, number: 0, isRoot: false, isOpen: false, site: null};
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
    call.before = call.before || model.cell(row, "before_shape") !== null;
    const before = model.cell(row, "before");
    if (before) { call.toneBefore = Math.max(call.toneBefore, TONES.indexOf(toneOf(before))); call.failed += FAILING.has(before) ? 1 : 0; }
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
      node.before = node.before || child.before;
      node.failed += child.failed;
      node.toneBefore = Math.max(node.toneBefore, child.toneBefore);
      node.isRoot = node.isRoot || child.isRoot;
    }
  }

  // Opens the way to every root, and nothing else.
  reopen() {
    this.openAll(false, true);
    for (const call of this.calls.values()) if (call.rows.some(row => this.model.isRoot(row))) this.reveal(call);
    this.lay();
    const first = this.lines.findIndex(node => node.rows.some(row => this.model.isRoot(row)));
    if (first >= 0) this.look(0, first * this.tall() - this.height() / 2);
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
    this.look(this.left, this.top);
  }

  height() { return this.box.clientHeight || 400; }
  tall() { return ROW * this.zoom; }
  wide() { return this.box.clientWidth * Math.max(1, this.zoom); } // lines never get narrower than the view

  // Moves the view, and keeps something of the picture in it.
  look(left, top) {
    const bottom = this.lines.length * this.tall() - this.height();
    this.left = Math.max(0, Math.min(this.wide() - this.box.clientWidth, left));
    this.top = Math.max(0, Math.min(bottom + Math.min(this.height() / 2, ROW), top));
    this.draw();
  }

  // What is at a place of the view stays there; that is its middle, unless it is stated.
  scale(factor, x = this.box.clientWidth / 2, y = this.height() / 2) {
    const zoom = Math.max(Math.min(1, this.fitting()), Math.min(LARGEST, this.zoom * factor));
    const [line, share] = [(this.top + y) / this.tall(), (this.left + x) / this.wide()];
    this.zoom = zoom;
    this.look(share * this.wide() - x, line * this.tall() - y);
  }

  fitting() { return this.height() / Math.max(1, this.lines.length) / ROW; }

  // All lines in one picture.
  fit() {
    this.zoom = Math.min(1, this.fitting());
    this.look(0, 0);
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); this.scale(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY); return; }
    const {left, top} = this, unit = event.deltaMode ? ROW : 1;
    this.look(left + event.deltaX * unit, top + event.deltaY * unit);
    if (left !== this.left || top !== this.top) event.preventDefault(); // else the page scrolls on
  }

  draw() {
    const {pen, width, height} = prepared(this.canvas, this.height());
    this.pen = pen;
    const tall = this.tall();
    const first = Math.floor(this.top / tall), last = Math.min(this.lines.length, Math.ceil((this.top + height) / tall) + 1);
    this.gap = Math.min(EDGES, width / 5 / this.sides.length); // less on a phone
    this.column = (this.wide() - this.gap * (this.sides.length - 1)) / this.sides.length;
    pen.font = `${Math.min(18, Math.max(7, 12 * this.zoom))}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.save();
    pen.translate(-this.left, 0);
    if (tall < FINEST) this.bars(first, last, tall);
    else {
      this.edges(first, last, tall);
      for (let i = first; i < last; i++) this.line(this.lines[i], i * tall - this.top, tall);
    }
    pen.restore();
    const sides = this.sides.length > 2 ? "Left golden, then mine before, right mine now" : "Left golden, right mine";
    byId("graph-words").textContent = `${counted(this.calls.size, "call")} in ${counted(this.lines.length, "line")}; something fails in ${this.failing}. ${sides}; a call that a side does not have is a gap.`;
  }

  // What a side has of a node: whether it is there, how bad it is, how much of it fails.
  state(node, side) {
    if (side === "before") return {isThere: node.before, tone: TONES[node.toneBefore], fails: node.failed};
    return {isThere: node[side], tone: TONES[node.tone], fails: node.fails};
  }

  // Lines that are thinner than a pixel or two: of each bar the worst is seen.
  bars(first, last, tall) {
    this.sides.forEach((side, column) => {
      const x = column * (this.column + this.gap);
      for (let i = first; i < last;) {
        const y = Math.floor(i * tall - this.top);
        let worst = -1;
        for (; i < last && Math.floor(i * tall - this.top) === y; i++) {
          const {isThere, tone} = this.state(this.lines[i], side);
          if (isThere) worst = Math.max(worst, TONES.indexOf(tone));
        }
        if (worst < 0) continue;
        this.pen.fillStyle = STROKES[TONES[worst]];
        this.pen.fillRect(x, y, this.column, Math.max(1, Math.ceil(tall)));
      }
    });
  }

  line(node, y, tall) {
    const pen = this.pen, from = (node.depth * INDENT + 6) * Math.min(1, this.zoom);
    const mark = node.children.length ? (node.isOpen ? "▾ " : "▸ ") : "";
    this.sides.forEach((side, column) => {
      const {isThere, tone, fails} = this.state(node, side);
      const x = column * (this.column + this.gap) + from, wide = this.column - from - 4;
      const told = node.children.length && !node.isOpen ? `  ${counted(node.number, "value")}${fails ? `, ${counted(fails, "fails", "fail")}` : ""}` : node.isRoot && !node.children.length && side !== "before" ? "  root" : "";
      pen.setLineDash(isThere ? [] : [3, 3]);
      pen.strokeStyle = isThere ? STROKES[tone] : themed("--line");
      pen.lineWidth = node === this.focused || node.rows.includes(selection.row) ? 3 : 1;
      if (isThere && fails) { pen.globalAlpha = node.isRoot && side !== "before" ? 0.35 : 0.14; pen.fillStyle = STROKES.bad; pen.fillRect(x, y + 2, wide, tall - 4); pen.globalAlpha = 1; }
      const inset = Math.min(2, tall / 8);
      pen.strokeRect(x, y + inset, wide, tall - 2 * inset);
      if (!isThere || tall < 9) return;
      pen.fillStyle = themed("--ink");
      pen.textAlign = "left";
      const name = side === "mine" && node.called ? node.called : node.name;
      pen.fillText(`${mark}${name}${told}`, x + 6, y + tall / 2, Math.max(10, wide - 10));
    });
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  // What was computed from what, between lines in sight: arcs beside the first column and the last.
  edges(first, last, tall) {
    const pen = this.pen, apart = this.column + this.gap;
    let number = 0;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.6;
    for (const [from, to, side] of this.links) {
      if (Math.max(to, from) < first || Math.min(to, from) > last) continue;
      if (number++ > MOST_EDGES) break;
      const y0 = (from + 0.5) * tall - this.top, y1 = (to + 0.5) * tall - this.top;
      const isMine = side === "mine", x = isMine ? apart * (this.sides.length - 1) : this.column;
      const reach = (isMine ? -1 : 1) * Math.min(this.gap * 0.8, 8 + Math.abs(to - from) * 3);
      pen.strokeStyle = isMine ? "#d55e00" : side === "golden" ? "#0072b2" : themed("--soft");
      pen.beginPath();
      pen.moveTo(x, y0);
      pen.bezierCurveTo(x + reach, y0, x + reach, y1, x, y1);
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  nodeAt(y) { return this.lines[Math.floor((y + this.top) / this.tall())]; }

  // A module opens or closes; a call is selected, by the row of it that tells most.
  act(node) {
    if (!node) return;
    this.focused = node;
    if (node.children.length) { node.isOpen = !node.isOpen; this.lay(); } else selection.select(page.flow.tellingRow(node.site), "graph");
    this.draw();
  }

  // The whole name, where a line is too thin or too short for it.
  hover(event) {
    const node = this.nodeAt(event.offsetY), tip = byId("graph-tip");
    if (!node) { tip.hidden = true; return; }
    const names = [];
    for (let at = node; at.parent; at = at.parent) names.unshift(at.name);
    place(tip, this.box, event.offsetX, Math.min(event.offsetY, this.height() - 40), `${names.join(" / ")}${node.fails ? `: ${counted(node.fails, "value fails", "values fail")}` : ""}`);
  }

  focus(node) {
    this.focused = node;
    const y = this.lines.indexOf(node) * this.tall(), height = this.height();
    if (y < this.top || y > this.top + height - 2 * ROW) this.look(this.left, y - height / 2); else this.draw();
  }

  // Arrows walk the tree, as in any tree of a desktop; with Shift they move the view.
  key(event) {
    const now = this.lines.indexOf(this.focused), last = this.lines.length - 1, node = this.focused, leaf = Math.max(1, Math.floor(this.height() / this.tall()) - 1);
    const to = place => { if (last >= 0) this.focus(this.lines[Math.max(0, Math.min(last, place))]); };
    const moves = {ArrowDown: [0, ROW], ArrowUp: [0, -ROW], ArrowRight: [4 * ROW, 0], ArrowLeft: [-4 * ROW, 0]};
    const acts = {
      ArrowDown: () => to(now + 1),
      ArrowUp: () => to(now - 1),
      PageDown: () => to(now + leaf),
      PageUp: () => to(now - leaf),
      Home: () => to(0),
      End: () => to(last),
      ArrowRight: () => { if (node && node.children.length && !node.isOpen) this.act(node); else to(now + 1); },
      ArrowLeft: () => { if (node && node.children.length && node.isOpen) this.act(node); else if (node && node.parent && node.parent.parent) this.focus(node.parent); },
      Enter: () => this.act(node),
      " ": () => this.act(node),
      "+": () => this.scale(1.25),
      "-": () => this.scale(0.8),
      "0": () => this.fit(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.shiftKey && event.key in moves) this.look(this.left + moves[event.key][0], this.top + moves[event.key][1]);
    else if (event.key in acts) acts[event.key]();
    else return;
    event.preventDefault();
  }
}
