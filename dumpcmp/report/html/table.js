// The table of all rows: sorted, filtered, searched; only the lines in sight are elements.

const PRINTED = 400; // lines on paper
const FILTERS = ["verdict", "change", "token", "layer", "function", "slot", "origin", "model", "role"];
const NATURAL = new Set(["token", "call", "order", "rank", "cosine", "pcc"]); // smallest first

class Table {
  constructor(model) {
    this.model = model;
    this.chosen = {};
    this.words = [];
    this.sorting = null;
    this.shownColumns = FIRST.filter(name => model.columns[name]);
    this.box = byId("table");
    this.body = byId("rows").tBodies[0];
    this.build();
    this.filter();
  }

  value(row, name) {
    const model = this.model;
    if (name === "layer") return model.layer(row);
    if (name === "role") return model.isRoot(row) ? "root" : model.causeOf(row) !== null ? "inherits" : FAILING.has(model.verdict(row)) ? "fails alone" : "does not fail";
    if (name === "function") { const op = model.cell(row, "op"); return op.includes("/") ? op.slice(op.indexOf("/") + 1) : "(module)"; }
    if (name === "slot") return model.cell(row, "slot").split(".")[0];
    const cell = model.cell(row, name);
    return cell === null ? "" : String(cell);
  }

  build() {
    const model = this.model;
    this.selects = {};
    for (const name of FILTERS) {
      const values = new Map();
      for (const row of model.range()) { const value = this.value(row, name); values.set(value, (values.get(value) || 0) + 1); }
      if (values.size < 2) continue;
      const options = [...values].filter(([value]) => value !== "");
      if (name === "token" || name === "rank") options.sort((a, b) => a[0] - b[0]);
      const select = make("select", {id: `filter-${name}`}, make("option", {value: ""}, "any"),
        ...options.map(([value, count]) => make("option", {value}, `${value} (${count})`)));
      select.addEventListener("change", () => { this.chosen[name] = select.value; this.filter(); });
      this.selects[name] = select;
      byId("choices").append(make("label", {}, `${name} `, select), " ");
    }
    byId("search").addEventListener("input", event => { this.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean); this.filter(); });
    byId("clear").addEventListener("click", () => this.show({}));
    byId("export").addEventListener("click", () => this.save());
    this.buildColumnMenu();
    this.buildHead();
    this.box.addEventListener("scroll", () => this.paint());
    this.box.addEventListener("keydown", event => this.key(event));
    this.body.addEventListener("click", event => {
      const line = event.target.closest("tr[data-row]");
      if (line) selection.select(Number(line.dataset.row), "table");
    });
    window.addEventListener("beforeprint", () => this.paint(true));
    window.addEventListener("afterprint", () => this.paint());
  }

  buildColumnMenu() {
    refill(byId("shown-columns"), ...this.model.names.map(name => {
      const tick = make("input", {type: "checkbox", ...(this.shownColumns.includes(name) ? {checked: ""} : {})});
      tick.addEventListener("change", () => {
        this.shownColumns = this.model.names.filter(other => other === name ? tick.checked : this.shownColumns.includes(other));
        this.shownColumns.sort((a, b) => (FIRST.indexOf(a) + 1 || 99) - (FIRST.indexOf(b) + 1 || 99));
        this.buildHead();
        this.paint();
      });
      return make("label", {}, tick, ` ${name}`);
    }));
  }

  buildHead() {
    const heads = this.shownColumns.map(name => {
      const order = this.sorting && this.sorting.name === name ? (this.sorting.up ? "ascending" : "descending") : "none";
      const arrow = order === "none" ? "" : this.sorting.up ? " ▲" : " ▼";
      const button = make("button", {type: "button", on: {click: () => this.sort(name)}}, `${name}${arrow}`);
      return make("th", {scope: "col", "aria-sort": order, "data-column": name}, button);
    });
    refill(byId("rows").tHead, make("tr", {}, ...heads));
  }

  // Shows the rows that these filters leave, and no others.
  show(chosen) {
    this.chosen = chosen;
    this.words = [];
    byId("search").value = "";
    for (const [name, select] of Object.entries(this.selects)) select.value = chosen[name] || "";
    this.filter();
  }

  filter() {
    const active = Object.entries(this.chosen).filter(([, value]) => value);
    const texts = ["op", "slot", "verdict", "reason", "source", "my_op"];
    const fits = row => active.every(([name, value]) => this.value(row, name) === value)
      && this.words.every(word => texts.some(name => String(this.model.cell(row, name) ?? "").toLowerCase().includes(word)));
    this.rows = this.model.range().filter(row => fits(row));
    this.order();
    byId("count").textContent = `${this.rows.length.toLocaleString("en")} of ${counted(this.model.length, "row")}`;
    this.box.scrollTop = 0;
    this.paint();
  }

  // The first click brings up what a reader looks for: the worst of numbers, failures, roots.
  sort(name) {
    const worstFirst = NATURAL.has(name) || !this.isNumeric(name) && name !== "verdict" && name !== "root";
    const up = this.sorting && this.sorting.name === name ? !this.sorting.up : worstFirst;
    this.sorting = {name, up};
    this.buildHead();
    this.filter();
    byId("rows").tHead.querySelector(`[data-column="${CSS.escape(name)}"] button`).focus();
  }

  isNumeric(name) {
    return this.model.range().some(row => this.model.number(row, name) !== null);
  }

  // What rows are sorted by: verdicts by how bad they are, everything else as it is.
  sortKey(row, name) {
    const cell = this.model.cell(row, name);
    if (name === "verdict") return ["good", "doubt", "bad"].indexOf(toneOf(cell));
    if (name === "root") return cell ? 1 : 0;
    return this.model.number(row, name) ?? cell;
  }

  order() {
    if (!this.sorting) return;
    const {name, up} = this.sorting, sign = up ? 1 : -1;
    const keyed = this.rows.map(row => [this.sortKey(row, name), row]);
    const isEmpty = key => key === null || key === "";
    keyed.sort(([a, i], [b, j]) => {
      if (isEmpty(a) || isEmpty(b)) return isEmpty(a) - isEmpty(b) || i - j;
      return sign * (a < b ? -1 : a > b ? 1 : 0) || i - j;
    });
    this.rows = keyed.map(([, row]) => row);
  }

  paint(onPaper = false) {
    const first = onPaper ? 0 : Math.max(0, Math.floor(this.box.scrollTop / LINE) - 10);
    const last = onPaper ? Math.min(this.rows.length, PRINTED) : Math.min(this.rows.length, first + Math.ceil(this.box.clientHeight / LINE) + 20);
    const spacer = height => spacerLine(height, this.shownColumns.length);
    const lines = this.rows.slice(first, last).map((row, i) => this.line(row, first + i));
    byId("rows").setAttribute("aria-rowcount", this.rows.length);
    refill(this.body, spacer(first * LINE), ...lines, spacer(onPaper ? 0 : (this.rows.length - last) * LINE));
  }

  line(row, place) {
    const model = this.model;
    const cells = this.shownColumns.map(name => cellOf(name, model.cell(row, name)));
    const picked = row === selection.row;
    return make("tr", {"data-row": row, "aria-rowindex": place + 1, class: picked ? "picked" : "", "aria-selected": String(picked)}, ...cells);
  }

  key(event) {
    const steps = {ArrowDown: 1, ArrowUp: -1};
    if (!(event.key in steps) || !this.rows.length || event.target !== this.box) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(this.rows.length - 1, this.rows.indexOf(selection.row) + steps[event.key]));
    selection.select(this.rows[next], "table-keys");
  }

  // Brings the selected row into sight; a row that a filter hides makes the filters go.
  reveal(row, from) {
    if (row === null) return;
    if (!this.rows.includes(row) && from !== "map") this.show({});
    const place = this.rows.indexOf(row);
    const top = place * LINE, height = this.box.clientHeight - 2 * LINE;
    if (from !== "table" && place >= 0 && (top < this.box.scrollTop || top > this.box.scrollTop + height)) this.box.scrollTop = Math.max(0, top - height / 2);
    this.paint();
  }

  // The rows in sight of the filters, with all columns. No cell is taken for a formula.
  save() {
    const names = this.model.names;
    const cell = value => {
      let text = value === null || value === undefined ? "" : String(value);
      if (typeof value === "string" && /^[=+\-@]/.test(text)) text = ` ${text}`;
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const lines = [names.join(","), ...this.rows.map(row => names.map(name => cell(this.model.cell(row, name))).join(","))];
    const link = make("a", {href: URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], {type: "text/csv"})), download: "rows.csv"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    return lines.length - 1;
  }
}
