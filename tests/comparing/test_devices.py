"""Runs whose values lie on other devices: recorded for each value, and no difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import dumpcmp
from dumpcmp import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Verdict
from tests.archive.values import Dense


def write(path: Path, devices: tuple[str, ...], wrong: int | None = None) -> None:
    """A model whose layers lie on `devices` in turn; layer `wrong` gives twice what it should."""
    with ArchiveWriter(path) as sink:
        for number in range(4):
            bits = np.random.default_rng(number).random((8, 16), np.float32)
            bits = bits * 2 if number == wrong else bits
            key = Key("Model", 0, f"layers.{number}", 0, "output.0")
            device = devices[number % len(devices)]
            told = Record(key, number, "float32", bits.shape, (16, 1), device=device)
            sink.put(told, Dense(bits))


def test_several_gpus_compare_with_one_and_with_none(tmp_path: Path) -> None:
    write(tmp_path / "golden", ("cpu",))
    write(tmp_path / "one", ("cuda:0",))
    write(tmp_path / "two", ("cuda:0", "cuda:1"))
    found = Archive(tmp_path / "two")
    assert [found[key].device for key in found] == ["cuda:0", "cuda:1"] * 2
    for golden in ("golden", "one"):
        outcome = dumpcmp.compare(tmp_path / golden, tmp_path / "two")
        assert {row.verdict for row in outcome.rows} == {Verdict.PASS}


def test_a_fault_on_one_of_them_is_found_there(tmp_path: Path) -> None:
    write(tmp_path / "one", ("cuda:0",))
    write(tmp_path / "two", ("cuda:0", "cuda:1"), wrong=1)
    outcome = dumpcmp.compare(tmp_path / "one", tmp_path / "two")
    assert outcome.first_divergence is not None
    assert outcome.first_divergence.key.op == "layers.1"
