// The selected row: its numbers in words, and where in the tensor the difference lies.

function showRow(model, row) {
  byId("row-hint").hidden = row !== null;
  if (row === null) return;
  const cell = name => shown(model.cell(row, name));
  const parts = [make("p", {}, make("strong", {}, model.nameOf(row)), `, token ${cell("token")}, ${model.cell(row, "model")}`)];
  parts.push(make("p", {}, verdictOf(model, row), `: ${cell("reason") || "nothing is wrong with it"}`));
  const origin = cell("origin");
  if (origin) parts.push(make("p", {}, `origin: ${origin}; introduced ${cell("introduced") || "?"}, inherited ${cell("inherited") || "?"}; paired by ${cell("paired_by") || "nothing"}${cell("layout") ? `; ${cell("layout")}` : ""}`));
  const cause = model.causeOf(row);
  if (cause !== null) parts.push(make("p", {}, "it inherits from ", linkTo(model, cause)));
  parts.push(...code(model, row), ...kernel(model, row), sides(model, row), metrics(model, row));
  refill(byId("row"), ...parts);
  showCloseUp(model, row);
}

function metrics(model, row) {
  const names = ["rel_l2", "tolerance", "cosine", "max_abs_diff", "worst", "max_rel_err", "max_ulp", "mismatched", "count", "condition", "amplification"];
  const known = names.filter(name => model.cell(row, name) !== null);
  return make("table", {class: "numbers"}, make("tr", {}, ...known.map(name => make("th", {scope: "col"}, name))),
    make("tr", {}, ...known.map(name => make("td", {}, shown(model.cell(row, name))))));
}

function showCloseUp(model, row) {
  const box = byId("closeup");
  const one = model.closeUp(row);
  if (!one) {
    refill(box, make("p", {class: "hint"}, "No closer look was taken at this row: the roots and the worst rows have one."));
    return;
  }
  if (one.problem) { refill(box, make("p", {class: "hint"}, `No closer look: ${one.problem}.`)); return; }
  const grid = make("div", {class: "pair"}, errorMap(one), histogram(one), profiles(one), worstElements(one));
  const said = [...one.hypotheses.map(h => `${h.said} (explains ${(100 * h.fit).toFixed(1)} % of the difference)`), ...one.places];
  refill(box, make("h3", {}, "Where in the tensor"), make("ul", {}, ...said.map(text => make("li", {}, text))), grid);
  for (const canvas of box.querySelectorAll("canvas")) canvas.paint();
}

function drawing(caption, height, paint) {
  const canvas = make("canvas", {role: "img", "aria-label": caption});
  canvas.paint = () => paint(prepared(canvas, height), canvas);
  return make("figure", {}, canvas, make("figcaption", {}, caption));
}

function asNumber(cell) { return cell === "inf" ? Infinity : cell; }

function errorMap(one) {
  const [rows, columns] = one.map_shape;
  const tiles = one.error_map.map(line => line.map(asNumber));
  let largest = 0, least = Infinity;
  for (const line of tiles) for (const size of line) if (Number.isFinite(size) && size > 0) { largest = Math.max(largest, size); least = Math.min(least, size); }
  const caption = `largest |mine - golden| in each tile; ${rows} rows down, ${columns} columns across; darkest ${shown(largest)}`;
  return drawing(caption, 240, ({pen, width, height}) => {
    const wide = width / tiles[0].length, high = height / tiles.length;
    tiles.forEach((line, y) => line.forEach((size, x) => {
      const span = Math.max(1, Math.log10(largest / least));
      pen.fillStyle = size === 0 ? themed("--sheet") : Number.isFinite(size) ? between(BEYOND, 1 - Math.log10(largest / size) / span) : "#000";
      pen.fillRect(x * wide, y * high, Math.ceil(wide), Math.ceil(high));
    }));
  });
}

function histogram(one) {
  const {low, high, counts, num_equal: equal, num_other: other} = one.histogram;
  const most = counts.reduce((a, b) => Math.max(a, b), 1);
  const caption = `how many elements differ by how much; ${equal} are equal${other ? `, ${other} are not finite` : ""}`;
  return drawing(caption, 240, ({pen, width, height}) => {
    const wide = (width - 20) / Math.max(1, counts.length);
    pen.fillStyle = "#0072b2";
    counts.forEach((count, i) => {
      const tall = count ? Math.max(2, Math.log(1 + count) / Math.log(1 + most) * (height - 34)) : 0;
      pen.fillRect(10 + i * wide, height - 22 - tall, wide - 1, tall);
    });
    pen.fillStyle = themed("--soft");
    pen.fillText(shown(10 ** low), 10, height - 6);
    pen.textAlign = "right";
    pen.fillText(shown(10 ** high), width - 10, height - 6);
  });
}

// For each dim, the rms of the difference index by index: which tokens, heads, channels hold it.
function profiles(one) {
  const caption = `rms of the difference along each dim of [${one.shape.join(", ")}]`;
  return drawing(caption, 30 + 50 * one.profiles.length, ({pen, width}) => {
    one.profiles.forEach((profile, dim) => {
      const largest = profile.reduce((a, b) => Math.max(a, asNumber(b)), 0) || 1;
      const top = 6 + 50 * dim, wide = (width - 60) / profile.length;
      pen.fillStyle = themed("--soft");
      pen.fillText(`dim ${dim}`, 4, top + 26);
      pen.fillStyle = "#d55e00";
      profile.forEach((size, i) => {
        const tall = size > 0 ? Math.max(1, size / largest * 40) : 0;
        pen.fillRect(50 + i * wide, top + 42 - tall, Math.max(1, wide - (wide > 4 ? 1 : 0)), tall);
      });
    });
  });
}

function worstElements(one) {
  const heads = ["element", "golden", "mine", "mine - golden"];
  const lines = one.worst.map(e => make("tr", {}, make("th", {scope: "row"}, `[${e.at.join(", ")}]`),
    make("td", {}, shown(e.golden)), make("td", {}, shown(e.target)), make("td", {}, shown(typeof e.golden === "number" && typeof e.target === "number" ? e.target - e.golden : null))));
  const table = make("table", {class: "numbers"}, make("tr", {}, ...heads.map(head => make("th", {scope: "col"}, head))), ...lines);
  return make("figure", {}, table, make("figcaption", {}, "the worst elements"));
}
