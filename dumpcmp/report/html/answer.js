// The answer first: the verdict, what was seen of both runs, and the first divergence.

const SIDES = [["golden", "golden"], ["mine before", "before"], ["mine", "my"]];

function showAnswer(model) {
  const told = model.told;
  const word = byId("word");
  word.textContent = told.word;
  word.className = told.exit_code === 0 ? "good" : told.exit_code === 1 ? "bad" : "doubt";
  document.title = `${told.conclusion} - dumpcmp`;
  byId("made").textContent = `${told.dumpcmp}, ${counted(told.num_rows, "value")}`;
  refill(byId("coverage"), ...coverage(told));
  refill(byId("remarks"), ...remarks(model).map(remark => make("li", {}, remark)));
  if (told.first === null) {
    byId("answer-title").textContent = "What was compared";
    return;
  }
  refill(byId("first"), ...firstDivergence(model, told.first));
}

function remarks(model) {
  const left = model.told.num_rows - model.length;
  const said = left ? [`${counted(left, "row that is nearest to golden is", "rows that are nearest to golden are")} summed up by layer and token: the table has the other ${model.length.toLocaleString("en")}. The CSV has all.`] : [];
  return [...said, ...model.told.remarks];
}

// A bar of what became of all values: held against each other, seen otherwise, not seen.
function coverage(told) {
  const groups = {
    "within rounding": ["PASS", "DTYPE"],
    "chose otherwise": ["FLIP"],
    "computed in another way, agrees after": ["COVERED", "DEAD"],
    "inside a kernel": ["FUSED"],
    "nothing to compare": ["EMPTY", "SKIPPED"],
    "could not be judged": ["INCONCLUSIVE"],
    "one side only": ["UNPAIRED"],
    "wrong": ["FAIL", "NONFINITE", "SHAPE", "ERROR", "REFUSED"],
  };
  const colours = ["#4292c6", "#56b4e9", "#9ecae1", "#bdbdbd", "#dddddd", "#f0e442", "#e69f00", "#b3280a"];
  const counts = Object.values(groups).map(words => words.reduce((sum, word) => sum + (told.tally[word] || 0), 0));
  const names = Object.keys(groups);
  const seen = names.map((name, i) => [name, counts[i], colours[i]]).filter(([, count]) => count);
  const bar = make("div", {class: "bar", role: "img", "aria-label": seen.map(([name, count]) => `${count} ${name}`).join(", ")});
  for (const [name, count, colour] of seen) {
    const part = make("span", {title: `${count} ${name}`});
    part.style.flexGrow = count;
    part.style.background = colour;
    bar.append(part);
  }
  const legend = make("div", {class: "legend"}, ...seen.map(([name, count, colour]) => swatch(colour, `${count.toLocaleString("en")} ${name}`)));
  return [bar, legend];
}

function firstDivergence(model, row) {
  const heirs = model.range().filter(other => model.causeOf(other) === row).length;
  const roots = model.range().filter(other => model.isRoot(other)).length;
  const parts = [make("p", {}, linkTo(model, row)), make("p", {class: "hint"}, `call ${shown(model.cell(row, "call"))}, token ${shown(model.cell(row, "token"))}`)];
  parts.push(make("p", {}, verdictOf(model, row), `: ${model.cell(row, "reason") || ""}`));
  parts.push(...code(model, row), ...kernel(model, row), sides(model, row));
  const said = [];
  const number = (name, words) => { if (model.number(row, name) !== null) said.push(`${words} ${shown(model.number(row, name))}`); };
  number("introduced", "introduced");
  number("inherited", "inherited");
  number("rel_l2", "rel_l2");
  number("tolerance", "of at most");
  number("max_abs_diff", "largest difference");
  parts.push(make("p", {}, said.join(", ")));
  if (heirs) parts.push(make("p", {}, `${counted(heirs, "failing row after it only inherits", "failing rows after it only inherit")} from it.`));
  if (roots > 1) parts.push(make("p", {}, `${counted(roots - 1, "further root does", "further roots do")} not follow from it: `, ...furtherRoots(model, row)));
  return parts;
}

function furtherRoots(model, first) {
  const others = model.range().filter(row => model.isRoot(row) && row !== first).slice(0, 8);
  return others.flatMap((row, i) => [i ? ", " : "", linkTo(model, row)]);
}

function verdictOf(model, row) {
  const verdict = model.verdict(row);
  const role = model.isRoot(row) ? " (root)" : "";
  return make("span", {class: `verdict ${toneOf(verdict)}`}, `${verdict}${role}`);
}

// A row by its name, and by its token where there are several.
function linkTo(model, row) {
  const token = model.tokens.length > 1 ? `, token ${shown(model.cell(row, "token"))}` : "";
  return make("button", {type: "button", class: "link", on: {click: () => selection.select(row, "link")}}, `${model.nameOf(row)}${token}`);
}

// The line of the program that ran the op, with a few lines around it.
function code(model, row) {
  const source = model.cell(row, "source");
  if (!source) return [];
  const excerpt = model.told.excerpts.find(one => one.source === source);
  const lines = [make("p", {}, make("code", {}, source))];
  if (!excerpt) return lines;
  const line = Number(source.slice(source.lastIndexOf(":") + 1));
  const text = make("pre", {"aria-label": `lines around ${source}, as the file is now`});
  excerpt.lines.forEach((written, i) => {
    const number = excerpt.first + i;
    const shownLine = `${String(number).padStart(5)}  ${written}`;
    text.append(number === line ? make("span", {class: "here"}, shownLine) : `${shownLine}\n`);
  });
  return [...lines, text];
}

// The generated kernel that computes a root of a compiled run.
function kernel(model, row) {
  const one = (model.told.kernels || []).find(other => other.roots.includes(model.keyOf(row)));
  if (!one) return [];
  const text = make("pre", {"aria-label": `source of the kernel ${one.kernel}`});
  one.lines.forEach((written, i) => {
    const number = one.first + i, line = `${String(number).padStart(5)}  ${written}`;
    text.append(number === one.meant ? make("span", {class: "here"}, line) : `${line}\n`);
  });
  const head = make("summary", {}, "kernel ", make("code", {}, one.kernel), `, generated in ${one.file}:${one.meant}`);
  return [make("details", {class: "kernel"}, head, text)];
}

function sides(model, row) {
  const heads = ["", "dtype", "shape", "min", "max", "mean", "norm", "NaN", "Inf"];
  const names = ["dtype", "shape", "min", "max", "mean", "norm", "nan", "inf"];
  const table = make("table", {class: "numbers"}, make("tr", {}, ...heads.map(head => make("th", {scope: "col"}, head))));
  for (const [side, prefix] of SIDES) {
    if (prefix === "before" && !model.hasBefore) continue;
    const cells = names.map(name => make("td", {}, shown(model.cell(row, `${prefix}_${name}`))));
    table.append(make("tr", {}, make("th", {scope: "row"}, side), ...cells));
  }
  return table;
}
