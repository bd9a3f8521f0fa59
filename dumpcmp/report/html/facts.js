// The facts of both runs side by side, what differs marked, and what to run next.

function showFacts(model) {
  const {golden, mine} = model.told.runs;
  const names = [...new Set([...Object.keys(golden.facts), ...Object.keys(mine.facts)])];
  const line = (name, ours, theirs) => make("tr", {class: ours === theirs ? "" : "differs"}, make("th", {scope: "row"}, name),
    make("td", {class: "text"}, ours ?? ""), make("td", {class: "text"}, theirs ?? ""), make("td", {class: "text"}, ours === theirs ? "" : "differs"));
  const table = make("table", {class: "numbers facts"},
    make("tr", {}, ...["", "golden", "mine", ""].map(head => make("th", {scope: "col"}, head))),
    line("path", golden.path, mine.path), ...names.map(name => line(name, golden.facts[name], mine.facts[name])));
  refill(byId("facts"), table);
  const commands = model.told.next;
  refill(byId("next"), ...commands.map(({command, why}) => make("li", {}, make("code", {}, command), ` - ${why}`)));
  if (!commands.length) byId("next").append(make("li", {}, "nothing: there is no divergence to look at"));
}
