"""Pieces of a merged projection are found where they lie, in whatever order."""

from __future__ import annotations

import numpy as np
import pytest

from dumpcmp.align.pieces import cut_out, parts_of
from dumpcmp.align.port.features import FeatureRows, locate
from dumpcmp.align.port.lines import braced, starred
from dumpcmp.nouns.row import Cut

RANDOM = np.random.default_rng(0)
PIECES = [RANDOM.standard_normal((rows, 20)) for rows in (8, 4, 4)]


def merged(groups: int) -> np.ndarray:
    """The pieces in one, taking turns in so many groups."""
    turns = [np.split(piece, groups) for piece in PIECES]
    return np.concatenate([turn[n] for n in range(groups) for turn in turns])


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_pieces_are_found_in_what_they_make_up(groups: int, noise: float) -> None:
    whole = merged(groups) * (1 + noise * RANDOM.standard_normal((16, 20)))
    parts = parts_of([piece.shape for piece in PIECES], whole.shape, groups=groups)
    assert parts is not None
    for piece, part in zip(PIECES, parts, strict=True):
        found = locate(FeatureRows.of(piece), FeatureRows.of(whole))
        assert found is not None and found.rel_l2 <= 2 * noise
        assert (found.start, found.groups, found.run) == (part.start, groups, len(piece) // groups)
        assert np.allclose(cut_out(whole, part), piece, atol=20 * noise + 1e-12)


def test_what_is_not_there_is_not_found() -> None:
    whole = FeatureRows.of(merged(1))
    assert locate(FeatureRows.of(RANDOM.standard_normal((4, 20))), whole) is None
    assert locate(FeatureRows.of(PIECES[0][::-1]), whole) is None
    assert locate(FeatureRows.of(np.zeros((4, 20))), whole) is None


STACKED = [
    ([(3, 5)] * 4, (4, 3, 5), Cut(0, 1, 2, True)),
    ([(3, 5)] * 4, (2, 6, 5), Cut(0, 0, 1, True, inner=Cut(0, 3, 6))),
]


@pytest.mark.parametrize("shapes, whole, second", STACKED)
def test_experts_are_found_in_their_stack(
    shapes: list[tuple[int, ...]], whole: tuple[int, ...], second: Cut
) -> None:
    parts = parts_of(shapes, whole)
    assert parts is not None and parts[1] == second
    values = np.arange(np.prod(whole)).reshape(whole)
    again = np.stack([cut_out(values, part) for part in parts]).reshape(whole)
    assert (again == values).all()


NAMES = [
    (["layers.0.attn.q", "layers.0.attn.k"], "layers.0.attn.{q,k}"),
    (["experts.0.w1", "experts.1.w1"], "experts.{0,1}.w1"),
    (["q", "k"], "{q,k}"),
    (["a.q.lin", "a.b.k.lin"], "a.{q,b.k}.lin"),
]


@pytest.mark.parametrize("names, one", NAMES)
def test_several_names_are_written_as_one(names: list[str], one: str) -> None:
    assert braced(names) == one


def test_numbers_become_stars_only_where_both_sides_have_the_same() -> None:
    assert starred(["h.2.mlp", "layers.2.ffn"]) == ("h.*.mlp", "layers.*.ffn")
    assert starred(["h.2.mlp", "layers.3.ffn"]) == ("h.2.mlp", "layers.3.ffn")
    assert starred(["w2.mlp", "w3.ffn"]) == ("w2.mlp", "w3.ffn")
