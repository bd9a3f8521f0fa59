"""An outcome in a notebook: the curve and the map are there, and names are text."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from dumpcmp.comparing import compare
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.pictures import MOST_POINTS, as_svg, pictured

SAMPLES = Path(__file__).parents[2] / "sample_dumps"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return compare(SAMPLES / "golden", SAMPLES / "target")


def test_a_notebook_shows_the_curve_and_the_map(outcome: Outcome) -> None:
    shown = outcome._repr_html_()
    assert "WRONG at layers.1.attn.o_proj/linear" in shown and shown.count("<svg") == 2
    drawing = ET.fromstring(as_svg(outcome.rows))
    titles = [element.text or "" for element in drawing.iter() if element.tag.endswith("title")]
    points = pictured(outcome.rows).points
    assert len(titles) == len(points) + 12  # and the cells of 6 layers at 2 tokens
    assert any("layers.1, token 0" in title and "0 fail" not in title for title in titles)


def test_every_root_is_drawn_however_long_the_run_is(outcome: Outcome) -> None:
    rows = [*outcome.rows] * 20
    drawn = pictured(rows)
    assert len(drawn.points) <= MOST_POINTS + 40
    assert sum(point.root for point in drawn.points) == 40


def test_names_in_pictures_are_text(outcome: Outcome) -> None:
    row = outcome.rows[20]
    key = replace(row.key, op=type(row.key.op)("<script>alert(1)</script>/x"))
    assert "<script>" not in as_svg([replace(row, key=key)])


def test_plot_gives_a_figure_or_says_what_to_install(outcome: Outcome) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(DumpcmpError, match="matplotlib, which is not installed"):
            outcome.plot()
        return
    figure = outcome.plot()
    assert len(figure.axes) == 3 and figure.axes[0].get_ylabel() == "rel_l2"
    shown = figure._repr_png_()  # a notebook asks for it, where pyplot has not been imported
    assert shown.startswith(b"\x89PNG")
