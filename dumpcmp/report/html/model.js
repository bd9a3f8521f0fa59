"use strict";
// The report as the page knows it: columns of cells, and what follows from them. No drawing here.

async function unpacked() {
  const octets = Uint8Array.from(atob(byId("payload").textContent), c => c.charCodeAt(0));
  const stream = new Blob([octets]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function byId(name) { return document.getElementById(name); }

// An element with attributes and children. Children that are no elements become text, never markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

function refill(element, ...children) { element.replaceChildren(...children.filter(child => child !== null)); return element; }

const FAILING = new Set(["FAIL", "UNPAIRED", "SHAPE", "NONFINITE", "ERROR", "REFUSED"]);
const DOUBTFUL = new Set(["INCONCLUSIVE", "FLIP", "DTYPE", "SKIPPED", "EMPTY"]);

function toneOf(verdict) {
  return FAILING.has(verdict) ? "bad" : DOUBTFUL.has(verdict) ? "doubt" : "good";
}

// The numbered module that an op is in, or else the outermost one: "layers.3", "embed".
function layerOf(op) {
  const segments = op.split("/")[0].split("@")[0].split(".");
  const numbered = segments.findIndex(segment => /^[0-9]+$/.test(segment));
  return numbered < 0 ? segments[0] : segments.slice(0, numbered + 1).join(".");
}

class Model {
  constructor(told) {
    this.told = told;
    this.columns = told.columns;
    this.names = Object.keys(told.columns);
    const any = told.columns.op || {at: []};
    this.length = (any.at || any.numbers).length;
    this.keys = new Map();
    this.layers = [];
    this.layerAt = new Array(this.length);
    const layers = new Map();
    for (let row = 0; row < this.length; row++) {
      const key = this.keyOf(row);
      if (!this.keys.has(key)) this.keys.set(key, row);
      const layer = layerOf(this.cell(row, "op"));
      if (!layers.has(layer)) { layers.set(layer, layers.size); this.layers.push(layer); }
      this.layerAt[row] = layers.get(layer);
    }
    for (const group of told.rest) {
      if (!layers.has(group.layer)) { layers.set(group.layer, layers.size); this.layers.push(group.layer); }
    }
    this.layerNumbers = layers;
    const tokens = new Set([...this.range().map(row => this.cell(row, "token")), ...told.rest.map(g => g.token)]);
    this.tokens = [...tokens].sort((a, b) => a - b);
    this.hasBefore = Boolean(told.before);
    this.limits = this.knownLimits();
    this.closeUps = new Map(told.close_ups.map(one => [one.row, one]));
    this.sources = new Map();
    this.takers = new Map();
    for (const [row, source, side] of told.arrows) {
      put(this.sources, row, [source, side]);
      put(this.takers, source, [row, side]);
    }
  }

  range() { return Array.from({length: this.length}, (_, row) => row); }

  cell(row, name) {
    const column = this.columns[name];
    if (!column) return null;
    return column.words ? column.words[column.at[row]] : column.numbers[row];
  }

  // A number, or null: infinities are words in JSON.
  number(row, name) {
    const cell = this.cell(row, name);
    if (cell === "inf") return Infinity;
    if (cell === "-inf") return -Infinity;
    return typeof cell === "number" ? cell : null;
  }

  verdict(row) { return this.cell(row, "verdict"); }
  isRoot(row) { return this.cell(row, "root") === true; }
  isBackward(row) { return this.cell(row, "slot").startsWith("grad"); }
  position(row) { return this.told.positions ? this.told.positions[row] : row; }
  layer(row) { return this.layers[this.layerAt[row]]; }

  siteOf(row) {
    const cell = name => this.cell(row, name);
    return `${cell("model")}[${cell("token")}] ${cell("op")}#${cell("call")}`;
  }

  keyOf(row) { return `${this.siteOf(row)} ${this.cell(row, "slot")}`; }

  nameOf(row) {
    const call = this.cell(row, "call");
    return `${this.cell(row, "op")}#${call} ${this.cell(row, "slot")}`;
  }

  causeOf(row) {
    const cause = this.cell(row, "cause");
    return cause && this.keys.has(cause) ? this.keys.get(cause) : null;
  }

  // The tolerance of each row; where another rule decided, that of the row before.
  knownLimits() {
    const limits = this.range().map(row => this.number(row, "tolerance"));
    let last = limits.find(limit => limit > 0) ?? null;
    return limits.map(limit => { if (limit > 0) last = limit; return last; });
  }

  // An error of a row in units of what is admissible: null where nothing was measured.
  inTolerances(row, error) {
    const fails = FAILING.has(this.verdict(row));
    if (error === null) return fails ? Infinity : null;
    if (error === 0) return fails ? Infinity : 0;
    const limit = this.limits[row], ratio = limit > 0 ? error / limit : null;
    return fails ? Math.max(ratio ?? Infinity, 1.01) : ratio;
  }

  ratio(row) { return this.inTolerances(row, this.number(row, "rel_l2")); }

  // rel_l2 by rank, of a partitioned run: "0:1e-07 1:0.3".
  byRank(row) {
    const told = this.cell(row, "by_rank");
    return told ? told.split(" ").map(word => word.split(":").map(Number)) : [];
  }

  // The closer look at a row, or at the value that it repeats.
  closeUp(row) {
    if (this.closeUps.has(row)) return this.closeUps.get(row);
    for (const [source] of this.sources.get(row) || []) {
      if (this.closeUps.has(source) && this.cell(source, "rel_l2") === this.cell(row, "rel_l2")) return this.closeUps.get(source);
    }
    for (const [taker] of this.takers.get(row) || []) {
      if (this.closeUps.has(taker) && this.cell(taker, "rel_l2") === this.cell(row, "rel_l2")) return this.closeUps.get(taker);
    }
    return null;
  }
}

function put(map, key, value) {
  if (map.has(key)) map.get(key).push(value); else map.set(key, [value]);
}

function shown(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  return Number.isFinite(value) ? String(Number(value.toPrecision(4))) : String(value);
}

// A count with the form of the word that fits it.
function counted(count, one, several = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
}

// What is selected, and who wants to know.
const selection = {
  row: null,
  listeners: [],
  select(row, from) {
    this.row = row;
    for (const listener of this.listeners) listener(row, from);
  },
};
