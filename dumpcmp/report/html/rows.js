// Lines of a table of rows, of which only those in sight are elements.

const LINE = 24; // pixels
const FIRST = ["token", "op", "call", "slot", "verdict", "before", "change", "root", "origin", "rel_l2", "tolerance", "introduced", "inherited", "cosine", "max_abs_diff", "reason", "cause", "source"];

// What stands for the lines above and below those in sight.
function spacerLine(height, columns) {
  const cell = make("td", {colspan: columns});
  cell.style.height = `${Math.max(0, height)}px`;
  return make("tr", {class: "spacer", "aria-hidden": "true"}, cell);
}

function cellOf(name, cell) {
  if (name === "verdict" || name === "before" && cell) return make("td", {}, make("span", {class: `verdict ${toneOf(cell)}`}, cell));
  if (name === "root") return make("td", {}, cell ? "root" : "");
  return make("td", {class: typeof cell === "number" ? "number" : "", title: typeof cell === "string" && cell.length > 40 ? cell : null}, shown(cell));
}
