// Three runs: golden, mine as it was before, and mine now. What is mended, and what is not?

const CHANGES = {"mended": "good", "still failing": "bad", "newly failing": "bad"};

function showBefore(model) {
  const told = model.told.before, section = byId("before-section");
  section.hidden = !told;
  if (!told) return;
  const line = (name, path, word, code) => make("tr", {}, make("th", {scope: "row"}, name), make("td", {class: "text"}, path),
    make("td", {class: "text"}, make("span", {class: `verdict ${["good", "bad", "doubt"][code]}`}, word)));
  const {golden, mine} = model.told.runs;
  const runs = make("table", {class: "numbers facts"}, line("golden", golden.path, "", 0), line("mine before", told.path, told.word, told.exit_code),
    line("mine now", mine.path, model.told.word, model.told.exit_code));
  const counts = Object.entries(told.counts).map(([change, count]) => make("button", {type: "button", "data-change": change, disabled: count ? null : "",
    on: {click: () => { page.table.show({change}); byId("table-section").scrollIntoView({block: "start"}); }}}, `${count.toLocaleString("en")} ${change}`));
  refill(byId("before"), runs, make("div", {class: "tools"}, "Values: ", ...counts));
  const left = told.num_roots - told.roots.length;
  refill(byId("before-roots"), ...told.roots.map(root => earlierRoot(model, root)), left ? make("li", {}, `and ${left} more`) : null);
}

// Where it went wrong before, and what has become of that.
function earlierRoot(model, root) {
  const row = model.keys.has(root.key) ? model.keys.get(root.key) : null;
  const name = row === null ? root.key : linkTo(model, row);
  return make("li", {}, make("span", {class: `verdict ${CHANGES[root.change] || "doubt"}`}, root.change), ": ", name, root.reason ? `: ${root.reason}` : "");
}
