// A page that knows few rows at a time: it asks for those in sight, and for news of the comparison.

const PIECE = 200; // rows in one request
const MOST_PIECES = 40; // that are kept
const TALLEST = 8000000; // pixels: browsers draw no element that is much taller
const POLL = 1000; // milliseconds
const NAMES = FIRST.filter(name => name !== "before" && name !== "change"); // there are two runs

async function asked(path) {
  const answer = await fetch(path, {cache: "no-store"});
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// The rows that the filters leave, of which pieces are here.
class Pieces {
  constructor(changed) { this.changed = changed; this.chosen = {verdict: "", text: ""}; this.forget(); }

  forget() {
    this.pieces = new Map();
    this.waiting = new Set();
    this.total = 0;
    this.complete = false;
    this.era = (this.era || 0) + 1; // answers to what was asked before it are of no use
    this.fetch(0);
  }

  // Rows were added: a piece that was not full may have more.
  grow() {
    for (const [number, rows] of this.pieces) if (rows.length < PIECE) this.pieces.delete(number);
    this.complete = false;
    this.fetch(Math.floor(this.total / PIECE));
  }

  row(place) {
    const rows = this.pieces.get(Math.floor(place / PIECE));
    return rows ? rows[place % PIECE] : undefined;
  }

  need(first, last) {
    for (let number = Math.floor(first / PIECE); number * PIECE < Math.min(last, this.total); number++)
      if (!this.pieces.has(number)) this.fetch(number);
  }

  async fetch(number) {
    if (this.waiting.has(number)) return;
    this.waiting.add(number);
    const era = this.era;
    const query = new URLSearchParams({offset: number * PIECE, limit: PIECE, ...this.chosen});
    try {
      const told = await asked(`rows?${query}`);
      if (era !== this.era) return;
      this.waiting.delete(number);
      this.total = told.total;
      this.complete = told.complete;
      this.pieces.delete(number);
      this.pieces.set(number, told.rows);
      if (this.pieces.size > MOST_PIECES) this.pieces.delete(this.pieces.keys().next().value);
      if (!told.complete) this.fetch(told.rows.length < PIECE ? number : Math.floor(told.total / PIECE));
    } catch (error) {
      if (era !== this.era) return;
      this.waiting.delete(number);
      byId("status").textContent = `No rows came: ${error.message}`;
    }
    this.changed();
  }
}

class LiveTable {
  constructor() {
    this.box = byId("table");
    this.box.style.overflowAnchor = "none"; // lines change under the scroll bar, and it must not follow
    this.body = byId("rows").tBodies[0];
    this.first = 0; // the row on top, which a scroll bar of so many pixels cannot always tell
    this.picked = null;
    this.rows = new Pieces(() => this.paint());
    refill(byId("rows").tHead, make("tr", {}, ...NAMES.map(name => make("th", {scope: "col"}, name))));
    this.box.addEventListener("scroll", () => { if (Math.abs(this.box.scrollTop - this.topOf(this.first)) > 1) this.first = this.placeAt(this.box.scrollTop); this.paint(); });
    this.box.addEventListener("wheel", event => { if (this.height() < this.rows.total * LINE) { event.preventDefault(); this.go(this.first + Math.sign(event.deltaY) * Math.ceil(Math.abs(event.deltaY) / LINE)); } }, {passive: false});
    this.box.addEventListener("keydown", event => this.key(event));
    this.body.addEventListener("click", event => { const line = event.target.closest("tr[data-row]"); if (line) this.pick(Number(line.dataset.row)); });
    window.addEventListener("resize", () => this.paint());
  }

  filter(chosen) {
    Object.assign(this.rows.chosen, chosen);
    byId("verdict").value = this.rows.chosen.verdict;
    if (chosen.text !== undefined && byId("search").value !== chosen.text) byId("search").value = chosen.text;
    this.restart();
  }

  restart() {
    this.picked = null;
    this.first = 0;
    this.box.scrollTop = 0;
    this.rows.forget();
    this.paint();
  }

  // offsetHeight: what a scroll bar below leaves changes with the rows in sight.
  inSight() { return Math.max(1, Math.floor(this.box.offsetHeight / LINE) - 2); }
  height() { return Math.min(this.rows.total * LINE, TALLEST); }
  reach() { return Math.max(1, this.height() + LINE - this.box.offsetHeight); }
  last() { return Math.max(0, this.rows.total - this.inSight()); }
  topOf(place) { return this.height() < TALLEST ? place * LINE : place / Math.max(1, this.last()) * this.reach(); }
  placeAt(top) { return this.height() < TALLEST ? Math.floor(top / LINE) : Math.min(this.last(), Math.round(top / this.reach() * this.last())); }

  go(place) {
    this.first = Math.max(0, Math.min(this.last(), place));
    this.box.scrollTop = this.topOf(this.first);
    this.paint();
  }

  paint() {
    const {total, complete} = this.rows;
    byId("count").textContent = counted(total, "row") + (complete ? "" : " so far, searching");
    byId("rows").setAttribute("aria-rowcount", total);
    const last = Math.min(total, this.first + this.inSight() + 4);
    this.rows.need(this.first, last);
    const spacer = height => spacerLine(height, NAMES.length);
    const lines = [];
    for (let place = this.first; place < last; place++) lines.push(this.line(place));
    const above = this.topOf(this.first);
    refill(this.body, spacer(above), ...lines, spacer(this.height() - above - lines.length * LINE));
  }

  line(place) {
    const row = this.rows.row(place);
    if (!row) return make("tr", {"data-row": place}, make("td", {colspan: NAMES.length}, "…"));
    const cells = NAMES.map(name => cellOf(name, row[name]));
    return make("tr", {"data-row": place, "aria-rowindex": place + 1, class: place === this.picked ? "picked" : ""}, ...cells);
  }

  key(event) {
    const steps = {ArrowDown: 1, ArrowUp: -1, PageDown: this.inSight(), PageUp: -this.inSight()};
    if (event.target !== this.box || !this.rows.total) return;
    if (event.key === "Home" || event.key === "End") { event.preventDefault(); this.go(event.key === "Home" ? 0 : this.last()); return; }
    if (!(event.key in steps)) return;
    event.preventDefault();
    const from = this.picked ?? this.first - 1;
    const next = Math.max(0, Math.min(this.rows.total - 1, from + steps[event.key]));
    if (next < this.first || next >= this.first + this.inSight()) this.go(next - Math.floor(this.inSight() / 2));
    this.pick(next);
  }

  pick(place) {
    this.picked = place;
    const row = this.rows.row(place);
    if (row) showCells(row);
    this.paint();
  }
}

function showCells(row) {
  const lines = Object.entries(row).map(([name, cell]) => make("tr", {}, make("th", {scope: "row"}, name), make("td", {class: "text"}, shown(cell))));
  refill(byId("row").tBodies[0], ...lines);
}

const live = {table: null, told: null};

function showState(told) {
  const before = live.told;
  live.told = told;
  const word = byId("word");
  word.textContent = told.word;
  word.className = ["good", "bad", "doubt"][told.exit_code] || "";
  document.title = `${told.word.slice(0, 60)} - dumpcmp`;
  byId("made").textContent = `${told.dumpcmp}, ${counted(told.num_rows, "row")}`;
  const [done, total] = told.progress;
  byId("status").textContent = told.has_ended ? "" : total ? `comparing: ${Math.floor(100 * done / total)} % is measured` : "comparing";
  byId("runs").textContent = `golden: ${told.runs.golden}, mine: ${told.runs.mine}`;
  refill(byId("roots"), ...told.roots.map(rootItem));
  refill(byId("remarks"), ...told.remarks.map(remark => make("li", {}, remark)));
  refill(byId("next"), ...told.next.map(([command, why]) => make("li", {}, make("code", {}, command), ` ${why}`)));
  showVerdicts(told);
  if (!before || before.generation !== told.generation) live.table.restart();
  else if (before.num_rows !== told.num_rows) live.table.rows.grow();
}

function rootItem(row) {
  const find = () => { live.table.filter({verdict: row.verdict, text: row.op}); showCells(row); };
  const link = make("button", {type: "button", class: "link", on: {click: find}}, `${row.op}#${row.call} ${row.slot}`);
  return make("li", {}, link, ` token ${shown(row.token)}: ${row.reason || row.verdict}`);
}

function showVerdicts(told) {
  const select = byId("verdict"), chosen = select.value;
  const failing = Object.entries(told.tally).reduce((sum, [name, count]) => sum + (FAILING.has(name) ? count : 0), 0);
  const names = [["", "any"], ["failing", `failing (${failing})`], ...Object.entries(told.tally).map(([name, count]) => [name, `${name} (${count})`])];
  refill(select, ...names.map(([value, text]) => make("option", {value}, text)));
  select.value = chosen;
  if (select.selectedIndex < 0) select.value = "";
}

// Asks for news until there can be none.
async function watch() {
  try {
    showState(await asked("state"));
  } catch (error) {
    byId("status").textContent = `dumpcmp serve does not answer any more: ${error.message}`;
    return;
  }
  document.documentElement.dataset.ready = "true";
  if (!live.told.has_ended) setTimeout(watch, POLL);
}

wearTheme();
live.table = new LiveTable();
byId("verdict").addEventListener("change", event => live.table.filter({verdict: event.target.value}));
byId("search").addEventListener("input", event => live.table.filter({text: event.target.value}));
watch();
