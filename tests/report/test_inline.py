"""Pages in a notebook: in a frame of their own, with what the values of a run look like."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp.dumping.capturing import capture
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.report import activations
from dumpcmp.report.activations import drawn
from tests.report.browser import WHY_NOT, Browser, browsing

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
needs_browser = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


class Cast(nn.Module):
    """A module whose output is no float, beside one with a NaN in its second position."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.flag = nn.Identity(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.scale(x) * self.flag(x > 0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps: ones and threes, and the same with a NaN."""
    path = tmp_path_factory.mktemp("run") / "d1"
    model, x = Cast(), torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    with capture(model, path):
        model(x)
        model(x.index_put((torch.tensor(1), torch.tensor(0)), torch.tensor(float("nan"))))
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


def test_numbers_are_those_of_the_values(run: Path) -> None:
    told = drawn(run, None, None, "output.0")
    cells = {(told["ops"][one["op"]], told["steps"][one["step"]]): one for one in told["cells"]}
    assert cells["scale", 0]["sizes"] == [1.0, 3.0]
    assert cells["scale", 1]["sizes"] == [1.0, None] and cells["scale", 1]["odd"] == 1
    assert cells["scale", 0]["mean"] == 2.0 and sum(cells["scale", 0]["counts"]) == 4
    assert cells["flag", 0]["problem"] == "bool is no float" and "sizes" not in cells["flag", 0]


def test_what_is_left_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "MOST_OPS", 4)
    monkeypatch.setattr(activations, "MOST_STEPS", 3)
    model = nn.Sequential(*(nn.Identity() for _ in range(9)))
    with capture(model, tmp_path / "d1", level="modules"):
        for _ in range(6):
            model(torch.ones(2, 2))
    told = drawn(tmp_path / "d1", None, None, "output.0")
    assert len(told["ops"]) == 4 and told["steps"] == [0, 2, 5]
    assert len(told["notes"]) == 2 and "layers=" in told["notes"][0]
    with pytest.raises(SelectionError, match="no value"):
        drawn(tmp_path / "d1", "nowhere", None, "output.0")


def test_a_summary_is_told_and_not_drawn(run: Path, tmp_path: Path) -> None:
    model, x = nn.Linear(64, 64), torch.randn(64, 64)
    with capture(model, tmp_path / "d1", keep="summary"):
        model(x)
    (cell,) = drawn(tmp_path / "d1", None, None, "output.0")["cells"]
    assert "Summary" in cell["problem"] and "sizes" not in cell


def test_a_page_is_a_frame_in_a_notebook_and_a_file_if_asked(run: Path, tmp_path: Path) -> None:
    page = dumpcmp.activations(run)
    shown = page._repr_html_()
    assert shown.startswith("<iframe sandbox=") and "allow-same-origin" not in shown
    assert unescape(re.findall('srcdoc="(.*)">', shown, re.S)[0]) == page.text
    path = page.write(tmp_path / "page.html")
    assert path.read_text() == page.text and repr(page).startswith("<Page output.0 of")
    with pytest.raises(SelectionError, match="is there already"):
        page.write(path)
    assert page.write(path, overwrite=True) == path


@needs_browser
def test_the_slider_chooses_the_step_and_a_click_the_value(
    run: Path, tmp_path: Path, browser: Browser
) -> None:
    browser.open(dumpcmp.activations(run).write(tmp_path / "page.html"))
    assert browser.text("#step-shown") == "0 (1 of 2)"
    browser.run("activations.pick(activations.told.ops.indexOf('scale'))")
    assert "mean 2, standard deviation 1." in browser.text("#histogram-words")
    browser.run("const s = document.querySelector('#step'); s.value = 1;"
                "s.dispatchEvent(new Event('input'))")  # fmt: skip
    assert "1 element NaN or Inf" in browser.text("#histogram-words")
    assert "2 of 2" in browser.text("#step-shown")
    assert browser.complaints() == [] and browser.requests() == []


@needs_browser
def test_the_page_of_an_outcome_works_inside_of_a_notebook(
    tmp_path: Path, browser: Browser
) -> None:
    outcome = dumpcmp.compare(SAMPLES / "golden", SAMPLES / "target")
    host = tmp_path / "notebook.html"
    host.write_text(
        "<!DOCTYPE html><title>n</title><body>" + dumpcmp.page(outcome)._repr_html_()
        + "<script>document.documentElement.dataset.ready = 'true'</script>"
    )  # fmt: skip
    browser.open(host)
    browser.ask("POST", "/frame", id=0)
    ready = "const done = arguments[0]; const look = () => document.documentElement.dataset."
    ready += "ready ? done(true) : setTimeout(look, 20); look();"
    assert browser.ask("POST", "/execute/async", script=ready, args=[]) is True
    assert browser.text("h1").startswith("WRONG at layers.1.attn.o_proj/linear")
    browser.run("selection.select(5, 'curve')")
    assert browser.text("#row")
    browser.ask("POST", "/frame", id=None)
    assert browser.complaints() == []
