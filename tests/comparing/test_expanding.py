"""Gradients of what one side had expanded: they are held against the other side's as sums."""

from pathlib import Path

import numpy as np
import pytest

import dumpcmp
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call
from tests.archive.values import put


def written(path: Path, gradient: np.ndarray, slot: str = "grad_input.attn_mask") -> Path:
    with ArchiveWriter(path, run={"mode": "eager"}) as sink:
        sink.call(Call("M", 0, Op("attn/mul"), 0, 0, target="torch.mul"))
        put(sink, Key("M", 0, Op("attn/mul"), 0, slot), gradient.astype(np.float32))
    return path


@pytest.mark.parametrize("factor, verdict", [(1.0, "PASS"), (1.01, "FAIL")])
def test_a_gradient_of_what_was_expanded_is_summed_up(
    factor: float, verdict: str, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).normal(size=(2, 4, 6))
    golden = written(tmp_path / "golden", rows.sum(0, keepdims=True))
    (row,) = dumpcmp.compare(golden, written(tmp_path / "mine", rows * factor)).rows
    assert row.verdict == verdict


def test_other_values_and_other_shapes_are_not(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(2, 4, 6))
    forward = [
        written(tmp_path / f"f{n}", each, "output.0")
        for n, each in enumerate((rows.sum(0, keepdims=True), rows))
    ]
    backward = [written(tmp_path / f"b{n}", each) for n, each in enumerate((rows[:, :2], rows))]
    for pair in (forward, backward):
        rows_of_pair = dumpcmp.compare(*pair).rows
        assert not any(row.verdict == "PASS" for row in rows_of_pair)
