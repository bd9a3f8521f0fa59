"""The HTML page in a real browser: the answer, the drawings, the table, nothing from outside."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dumpcmp.cli import main
from dumpcmp.comparing import compare
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.jsonfile import as_json
from dumpcmp.report.page import chosen_rows, page_of, payload_of, write_html
from dumpcmp.report.reading import write_page
from tests.report.browser import WHY_NOT, Browser, browsing

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
ROOT_OP = "layers.1.attn.o_proj/linear"
HOSTILE = "</script><img src=x onerror=document.title='hacked'>"

needs_browser = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return compare(SAMPLES / "golden", SAMPLES / "target", closely=8)


@pytest.fixture(scope="module")
def told(outcome: Outcome) -> dict[str, Any]:
    return as_json(outcome)


@pytest.fixture(scope="module")
def page(outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_html(outcome, tmp_path_factory.mktemp("page") / "compare.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.open(page)
    yield browser
    assert browser.complaints() == []
    assert browser.requests() == []


INK = """
const canvas = document.querySelector(arguments[0]);
const copy = document.createElement('canvas');
[copy.width, copy.height] = [canvas.width, canvas.height];
const pen = copy.getContext('2d', {willReadFrequently: true});
pen.drawImage(canvas, 0, 0);
const pixels = pen.getImageData(0, 0, copy.width, copy.height).data;
const seen = new Set();
for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3]) seen.add(pixels.slice(i, i + 3).join());
return [...seen];
"""


def many(told: dict[str, Any], number: int) -> dict[str, Any]:
    """A report of so many rows, with as many digits as real ones have."""
    draw = random.Random(0).random
    kinds = told["rows"]
    rows = []
    for place in range(number):
        row = dict(kinds[place % len(kinds)], token=place // len(kinds))
        rows.append({n: c * draw() if isinstance(c, float) else c for n, c in row.items()})
    return told | {"rows": rows, "arrows": [], "close_ups": []}


@pytest.fixture(scope="module")
def long_page(told: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.html"
    return write_page(many(told, 20_000), path)


def test_the_page_is_small_and_holds_nothing_from_outside(page: Path, long_page: Path) -> None:
    text = page.read_text()
    assert len(text) < 400_000 and long_page.stat().st_size < 10_000_000
    assert re.findall(r"""(?:src|href)=["']?(?!#)[\w/]""", text) == []
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "default-src 'none'" in text


def test_rows_beyond_the_most_are_summed_up_and_none_is_lost(told: dict[str, Any]) -> None:
    rows = told["rows"]
    payload = payload_of(told, rows, most=200)
    rest = sum(group["number"] for group in payload["rest"])
    assert len(payload["positions"]) == 200 and rest == len(rows) - 200
    failing = {place for place, row in enumerate(rows) if row["root"] or row["verdict"] == "FAIL"}
    assert failing <= set(payload["positions"]) == set(chosen_rows(rows, 200))


@needs_browser
def test_the_answer_comes_first(opened: Browser) -> None:
    assert opened.text("h1").startswith(f"WRONG at {ROOT_OP}")
    first = opened.text("#first")
    for told in (ROOT_OP, "0.164", "return self.o_proj", "float32", "only inherit from it"):
        assert told in first
    assert "142 wrong" in opened.text("#coverage")


@needs_browser
def test_curve_and_map_are_drawn(opened: Browser) -> None:
    for canvas in ("#curve", "#map", "#closeup canvas"):
        assert len(opened.run(INK, canvas)) > 4, canvas
    assert "164,14,38" in opened.run(INK, "#curve")  # the diamond of a root
    assert "743" not in opened.text("#curve-words")  # modules repeat what functions give
    assert "something fails in" in opened.text("#map-words")


@needs_browser
def test_where_in_the_tensor_and_the_data_flow_are_shown(opened: Browser) -> None:
    closer = opened.text("#closeup")
    assert "mine is zero at index 7 of dim 2 only" in closer and "100 % of the diff" in closer
    assert opened.run("return document.querySelectorAll('#flow svg .box').length") >= 4
    assert opened.text("#heirs").count("FAIL") > 10


@needs_browser
def test_filters_search_and_sorting_narrow_the_table(opened: Browser) -> None:
    assert opened.text("#count") == "743 of 743 rows"
    opened.run("const s = document.querySelector('#filter-verdict'); s.value = 'FAIL';"
               "s.dispatchEvent(new Event('change'))")  # fmt: skip
    assert opened.text("#count") == "142 of 743 rows"
    opened.type("#search", "o_proj/linear")
    assert opened.text("#count").startswith(("2 of", "4 of"))
    opened.click("#clear")
    opened.click("[data-column=rel_l2] button")
    sizes = opened.run("return page.table.rows.map(row => page.model.number(row, 'rel_l2'))")
    numbers = [size for size in sizes if size is not None]
    assert numbers == sorted(numbers, reverse=True)


@needs_browser
def test_the_first_click_on_a_column_brings_up_the_worst(opened: Browser) -> None:
    opened.click("[data-column=verdict] button")
    assert opened.run("return page.model.verdict(page.table.rows[0])") == "FAIL"
    opened.click("[data-column=cosine] button")
    cosines = opened.run("return page.table.rows.map(row => page.model.number(row, 'cosine'))")
    assert cosines[0] == min(cosine for cosine in cosines if cosine is not None) < 1
    opened.click("[data-column=token] button")
    assert opened.run("return page.model.cell(page.table.rows[0], 'token')") == 0
    opened.click("[data-column=token] button")
    assert opened.run("return page.model.cell(page.table.rows[0], 'token')") == 1


@needs_browser
def test_links_to_roots_carry_their_token(opened: Browser) -> None:
    assert f"{ROOT_OP}#0 output.0, token 1" in opened.text("#first")
    ticks = opened.run("""
        const told = [], pen = page.curve.pen, fill = pen.fillText;
        pen.fillText = (text, ...at) => { told.push(text); fill.call(pen, text, ...at); };
        page.curve.layerTicks();
        delete pen.fillText;
        return told;
    """)
    assert any(tick.endswith("(0)") for tick in ticks) and any(t.endswith("(1)") for t in ticks)


@needs_browser
def test_names_in_the_data_flow_fit_into_their_boxes(opened: Browser) -> None:
    opened.run("selection.select(page.model.range().find(row => page.model.isRoot(row)), 'table')")
    over = opened.run("""
        return [...document.querySelectorAll('#flow svg .box')].filter(box =>
            box.querySelector('text').getBBox().width > box.querySelector('rect').getBBox().width)
            .length;
    """)
    assert over == 0
    fitted = opened.run("return fitted('layers.100.a_very_long_name.of_a_module/function', 100)")
    assert fitted.startswith("…") and fitted.endswith("/function")


@needs_browser
def test_the_kernel_of_a_root_is_shown(
    browser: Browser, told: dict[str, Any], tmp_path: Path
) -> None:
    key = f"TinyDecoder[0] {ROOT_OP}#0 output.0"
    kernel = {"kernel": "cpp_fused_0", "file": "d2/code-0-forward.txt", "first": 7, "meant": 8,
              "lines": ["void kernel()", "tmp0.tanh();<b>"], "roots": [key]}  # fmt: skip
    browser.open(write_page(told | {"kernels": [kernel]}, tmp_path / "kernel.html"))
    assert "cpp_fused_0, generated in d2/code-0-forward.txt:8" in browser.text("#first")
    browser.click("#first details.kernel summary")
    assert "8  tmp0.tanh();<b>" in browser.text("#first details.kernel .here")
    assert browser.complaints() == []


GRAPH_LINES = "return page.graph.lines.map(node => [node.name, node.isOpen, node.isRoot])"


@needs_browser
def test_both_programs_are_a_tree_that_is_open_where_it_begins(opened: Browser) -> None:
    lines = opened.run(GRAPH_LINES)
    assert ["o_proj", True, True] in lines and ["linear", False, True] in lines
    assert ["embed", False, False] in lines  # closed: nothing begins there
    assert "136 calls in 38 lines" in opened.text("#graph-words")
    assert len(opened.run(INK, "#graph")) > 4
    opened.click("#graph-open")
    assert "136 calls in 136 lines" in opened.text("#graph-words")
    opened.click("#graph-close")
    closed = [name for name, _, _ in opened.run(GRAPH_LINES)]
    assert "linear" not in closed and "layers.1" in closed
    opened.click("#graph-differs")
    assert "embed" not in [name for name, _, _ in opened.run(GRAPH_LINES)]


@needs_browser
def test_a_call_of_the_programs_leads_to_its_row_and_keys_walk(opened: Browser) -> None:
    opened.run("selection.select(0, 'table')")
    opened.run("page.graph.act(page.graph.lines.find(n => n.name === 'linear' && n.isRoot))")
    assert ROOT_OP in opened.text("#row") and opened.text("#rows tr.picked")
    before = opened.run("return page.graph.lines.indexOf(page.graph.focused)")
    opened.type("#graph-box", "\ue015+")  # down, and larger
    assert opened.run("return page.graph.lines.indexOf(page.graph.focused)") == before + 1
    assert opened.run("return page.graph.zoom") == 1.25


@needs_browser
def test_what_one_side_alone_runs_has_a_gap_on_the_other(
    browser: Browser, told: dict[str, Any], tmp_path: Path
) -> None:
    alone = {"golden_shape": None, "verdict": "UNPAIRED", "root": False}
    rows = [row | (alone if row["op"] == "embed/embedding" else {}) for row in told["rows"]]
    browser.open(write_page(told | {"rows": rows}, tmp_path / "alone.html"))
    sides = """
        const visit = node => [node, ...node.children.flatMap(visit)];
        const found = visit(page.graph.tree).filter(node => node.name === 'embedding');
        return found.map(node => [node.golden, node.mine]);
    """
    assert browser.run(sides) == [[False, True]]
    assert browser.complaints() == []


VIEW = "return [page.graph.left, page.graph.top, page.graph.zoom]"
MIDDLE = """
    const box = byId('graph-box');
    box.scrollIntoView({block: 'center'});
    const at = box.getBoundingClientRect();
    return [at.x + at.width / 2, at.y + at.height / 2];
"""


def mouse(browser: Browser, kind: str, x: float, y: float, **more: Any) -> None:
    """One event of a real mouse."""
    asked = {"x": x, "y": y, "button": "left", "clickCount": 1} | more
    browser.order("Input.dispatchMouseEvent", type=kind, **asked)


@needs_browser
def test_the_view_of_the_programs_is_dragged_scrolled_and_zoomed(opened: Browser) -> None:
    opened.click("#graph-open")
    x, y = opened.run(MIDDLE)
    opened.run("page.graph.look(0, 600)")
    chosen = opened.run("return selection.row")
    mouse(opened, "mousePressed", x, y)
    mouse(opened, "mouseMoved", x, y + 40)
    mouse(opened, "mouseMoved", x, y + 100)
    mouse(opened, "mouseReleased", x, y + 100)
    assert opened.run(VIEW) == [0, 500, 1]
    assert opened.run("return selection.row") == chosen  # a drag is no click
    mouse(opened, "mouseWheel", x, y, deltaX=0, deltaY=70, button="none")
    assert opened.run(VIEW) == [0, 570, 1]
    line = "return (page.graph.top + page.graph.height() / 2) / page.graph.tall()"
    before = opened.run(line)
    mouse(opened, "mouseWheel", x, y, deltaX=0, deltaY=-300, button="none", modifiers=2)  # Ctrl
    left, _, zoom = opened.run(VIEW)
    assert 2.5 < zoom < 3 and left > 0 and abs(opened.run(line) - before) < 0.1
    mouse(opened, "mousePressed", x, y)
    mouse(opened, "mouseMoved", x + 60, y)
    mouse(opened, "mouseReleased", x + 60, y)
    assert opened.run(VIEW)[0] == pytest.approx(left - 60)
    opened.click("#graph-all")
    assert opened.run("return page.graph.lines.length * page.graph.tall() <= page.graph.height()")
    assert len(opened.run(INK, "#graph")) > 1


@needs_browser
def test_arrow_keys_walk_the_tree_and_move_the_view(opened: Browser) -> None:
    left, right, down, shift = "\ue012", "\ue014", "\ue015", "\ue008"
    opened.click("#graph-close")
    opened.run("page.graph.focus(page.graph.lines[0])")
    names = "return [page.graph.focused.name, page.graph.lines.length]"
    opened.type("#graph-box", down)
    name, lines = opened.run(names)
    opened.type("#graph-box", right)  # opens
    assert opened.run(names)[1] > lines
    opened.type("#graph-box", right)  # enters
    assert opened.run("return page.graph.focused.parent.name") == name
    opened.type("#graph-box", left)  # leaves
    assert opened.run(names)[0] == name
    opened.type("#graph-box", left)  # closes
    assert opened.run(names) == [name, lines]
    opened.click("#graph-open")
    opened.run("page.graph.look(0, 0)")
    opened.type("#graph-box", shift + down + down)
    assert opened.run(VIEW)[1] == 48


@needs_browser
def test_three_runs_stand_side_by_side(browser: Browser, outcome: Outcome, tmp_path: Path) -> None:
    mended = compare(SAMPLES / "golden", SAMPLES / "golden")
    browser.open(write_html(mended, tmp_path / "three.html", before=outcome))
    seen = browser.text("#before-section")
    assert "142 mended" in seen and "0 still failing" in seen and outcome.word in seen
    assert f"mended: {outcome.roots[0].key.op}" in seen
    browser.click("[data-change=mended]")
    assert browser.text("#count").startswith("142 of")
    browser.click("#before-roots button")
    assert ROOT_OP in browser.text("#row") and "mine before" in browser.text("#row")
    assert browser.run("return page.graph.sides") == ["golden", "before", "mine"]
    assert "mine before" in browser.text("#graph-words") and len(browser.run(INK, "#graph")) > 4
    told = browser.run("""
        const row = selection.row, node = page.graph.callOf.get(row);
        return page.graph.sides.map(side => page.graph.state(node, side));
    """)
    assert [one["isThere"] for one in told] == [True, True, True]
    assert told[1]["tone"] == "bad" and told[2]["tone"] == "good" and told[1]["fails"]
    assert browser.complaints() == []


@needs_browser
def test_a_page_of_two_runs_says_nothing_of_a_third(opened: Browser) -> None:
    assert opened.run("return byId('before-section').hidden") is True


@needs_browser
@pytest.mark.long
def test_twenty_thousand_calls_scroll_smoothly(
    browser: Browser, told: dict[str, Any], tmp_path: Path
) -> None:
    (kind,) = [row for row in told["rows"] if row["root"] and row["token"] == 0]
    plain = kind | {"root": False, "verdict": "PASS", "cause": None}
    rows = [plain | {"op": f"layers.{n // 100}.m{n % 100}/f"} for n in range(20_000)]
    arrows = [[n, n - 1 - n % 40, "both"] for n in range(50, 20_000)]
    many_calls = told | {"rows": rows, "arrows": arrows, "close_ups": []}
    browser.open(write_page(many_calls, tmp_path / "calls.html"))
    browser.run("page.graph.openAll(true)")
    assert "20,000 calls in 40,200 lines" in browser.text("#graph-words")
    before = browser.busy()
    browser.run("for (let i = 0; i < 50; i++) page.graph.look(0, i * 9000)")
    assert browser.busy() - before < 2.5  # 50 frames, of which each may take 50 ms
    browser.click("#graph-all")
    before = browser.busy()
    browser.run("for (let i = 0; i < 50; i++) page.graph.draw()")  # all lines in each
    assert browser.busy() - before < 2.5


@needs_browser
def test_a_click_in_the_map_leads_to_rows_and_a_row_to_its_address(opened: Browser) -> None:
    opened.run("page.map.pick([...page.map.cells.values()].find(c => c.fails))")
    assert "of 743 rows" in opened.text("#count") and "743 of" not in opened.text("#count")
    opened.run("document.querySelector('#rows tr[data-row]').click()")
    address = opened.run("return location.hash")
    assert address.startswith("#row=TinyDecoder")
    assert opened.run("return page.model.keyOf(selection.row) ==="
                      "decodeURIComponent(location.hash.slice(5))")  # fmt: skip


@needs_browser
def test_a_click_on_the_curve_selects_the_row_everywhere(opened: Browser) -> None:
    opened.run("selection.select(0, 'table')")
    opened.run("""
        const point = page.curve.points.find(p => page.model.isRoot(p.row));
        const at = {offsetX: page.curve.x(point.x), offsetY: page.curve.y(point.error)};
        page.curve.drag = at.offsetX; page.curve.released(at);
    """)
    assert ROOT_OP in opened.text("#row")
    assert ROOT_OP in opened.text("#rows tr.picked")


@needs_browser
def test_a_deep_link_selects_its_row(browser: Browser, page: Path) -> None:
    browser.open(page, "#row=TinyDecoder%5B1%5D%20layers.0.mlp%2Fmul%230%20output.0")
    assert "layers.0.mlp/mul#0 output.0" in browser.text("#row")


@needs_browser
def test_a_partitioned_run_has_a_map_of_its_ranks(
    browser: Browser, told: dict[str, Any], tmp_path: Path
) -> None:
    ranks = {True: "0:1e-07 1:0.3", False: "0:1e-08 1:1e-08"}
    rows = [row | {"by_rank": ranks[row["verdict"] == "FAIL"]} for row in told["rows"]]
    browser.open(write_page(told | {"rows": rows}, tmp_path / "ranks.html"))
    browser.run("const s = document.querySelector('#map-across'); s.value = 'rank';"
                "s.dispatchEvent(new Event('change'))")  # fmt: skip
    assert "layers, 2 ranks" in browser.text("#map-words")
    fails = "return [...page.map.cells.values()].filter(c => c.fails).map(c => c.head)"
    assert set(browser.run(fails)) == {1}
    assert browser.complaints() == []


@needs_browser
def test_keys_walk_and_zoom(opened: Browser) -> None:
    before = opened.run("return selection.row")
    opened.type("#curve", "\ue014\ue014")  # to the right, twice
    assert opened.run("return selection.row") > before
    span = "return page.curve.to - page.curve.from"
    whole = opened.run(span)
    opened.type("#curve", "+")
    assert opened.run(span) < whole
    opened.click("#zoom-all")
    assert opened.run(span) == whole


@needs_browser
def test_dark_pages_are_dark_and_the_button_changes_them(browser: Browser, page: Path) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    browser.media(prefers_color_scheme="dark")
    browser.open(page)
    assert browser.run(colour) == "rgb(13, 17, 23)"
    assert browser.text("#theme") == "Light" and browser.run("return heat(0)") == "rgb(28,46,68)"
    browser.click("#theme")
    assert browser.text("#theme") == "Dark" and browser.run("return heat(0)") == "rgb(222,235,247)"
    assert browser.run(colour) == "rgb(255, 255, 255)"
    browser.media(prefers_color_scheme="light")


@needs_browser
def test_nothing_is_wider_than_a_phone(browser: Browser, page: Path) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.order("Emulation.setDeviceMetricsOverride", **phone)
    browser.open(page)
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run(wide) <= 0
    browser.order("Emulation.clearDeviceMetricsOverride")


@needs_browser
def test_facts_that_differ_are_marked(opened: Browser) -> None:
    marked = opened.run(
        "return [...document.querySelectorAll('.differs th')].map(e => e.innerText)"
    )
    assert "path" in marked and "versions.torch" not in marked
    assert "dumpcmp explain" in opened.text("#next")


@needs_browser
def test_names_of_archives_are_text(browser: Browser, told: dict[str, Any], tmp_path: Path) -> None:
    written = json.dumps(told).replace(ROOT_OP, json.dumps(HOSTILE)[1:-1])
    hostile = json.loads(written) | {"word": HOSTILE, "remarks": [HOSTILE]}
    hostile["runs"]["golden"]["facts"]["command"] = HOSTILE
    browser.open(write_page(hostile, tmp_path / "hostile.html"))
    assert browser.text("h1") == HOSTILE
    for place in ("#first", "#remarks", "#row", "#facts"):
        assert HOSTILE in browser.text(place)
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") != "hacked"
    assert browser.complaints() == [] and browser.requests() == []


@needs_browser
def test_twenty_thousand_rows_are_there_in_seconds(browser: Browser, long_page: Path) -> None:
    browser.open(long_page)
    seconds = browser.busy()
    assert browser.text("#count") == "20,000 of 20,000 rows"
    assert browser.run("return document.querySelectorAll('#rows tr').length") < 100
    assert 0 < seconds < 3


def test_report_makes_a_page_and_refuses_to_overwrite(
    outcome: Outcome, told: dict[str, Any], page: Path, tmp_path: Path
) -> None:
    def report(*options: str) -> Any:
        return CliRunner().invoke(main, ["report", str(tmp_path), *options])

    assert "has no report" in report().output
    (tmp_path / "compare.json").write_text("{}")
    assert "version None" in report().output
    (tmp_path / "compare.json").write_text(json.dumps(told))
    assert report().exit_code == 0
    again = report()
    assert again.exit_code == 2 and "is there already" in again.output
    assert report("--overwrite").exit_code == 0
    assert (tmp_path / "compare.html").read_text() == page.read_text()
    assert page.read_text() == page_of(told, told["rows"])
