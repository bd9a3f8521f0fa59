"""Runs of many ranks: their indexes are read together, and only where they are asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.synthetic import Shape, write
from dumpcmp.archive.read import captured, captures, loading
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.comparing import compare
from dumpcmp.comparing.side import open_run
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.selection import make_tap
from tests.archive.values import put


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    room = tmp_path_factory.mktemp("ranks")
    shape = Shape(ranks=12, steps=2, ops=6)
    write(room / "golden", shape)
    write(room / "target", shape, shards=True)
    return room / "golden", room / "target"


@pytest.mark.parametrize("at_once", [1, 5, 64])
def test_all_ranks_are_found_however_many_are_read_at_once(
    runs: tuple[Path, Path], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "_AT_ONCE", at_once)
    archive = Archive(runs[1])
    key = next(iter(archive.keys_of("Model", 1)))
    archive.forget()
    assert archive[key].rank == 0 and len(archive._steps) == min(at_once, 12)
    assert [record.rank for record in archive.shards(key)] == list(range(12))
    calls = archive.calls_by_rank(archive.ranks)
    assert calls == {rank: archive.calls_of(rank) for rank in range(12)}
    assert len(archive.calls) == len(calls[3]) == 12


def test_each_rank_is_asked_a_few_times_how_it_ended(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not once for every other rank, which opening 4,096 of them would never end."""
    asked: list[Path] = []
    ask = captures.why_incomplete

    def noted(facts: dict[str, Any], directory: Path) -> str:
        asked.append(directory)
        return ask(facts, directory)

    monkeypatch.setattr(captured, "why_incomplete", noted)
    open_run(runs[1], make_tap())
    assert max(Counter(asked).values()) <= 2


def test_a_step_is_listed_as_its_values_are_one_by_one(runs: tuple[Path, Path]) -> None:
    for whole in map(Archive, runs):
        for archive in (whole, whole.select("layers.0.mlp.3*")):
            listed = archive.shards_at("Model", 1)
            assert list(listed) == list(archive.keys_of("Model", 1))
            assert listed == {key: archive.shards(key) for key in listed}


def test_ranks_that_ran_the_same_share_its_calls_and_others_do_not(tmp_path: Path) -> None:
    for rank, line in enumerate(("a.py:1", "a.py:1", "b.py:2")):
        with ArchiveWriter(tmp_path, rank=rank, world_size=3) as sink:
            sink.call(Call("Net", 0, Op("f"), 0, 0, "torch.neg", line))
            put(sink, Key("Net", 0, Op("f"), 0, "output.0"), np.full(4, rank, np.float32))
    archive = Archive(tmp_path)
    one, same, other = (next(iter(archive.calls_of(rank).values())) for rank in range(3))
    assert one is same and (one.source, other.source) == ("a.py:1", "b.py:2")
    key = Key("Net", 0, Op("f"), 0, "output.0")
    assert [float(archive.load(each).bits[0]) for each in archive.shards(key)] == [0, 1, 2]


def test_a_value_on_many_ranks_is_held_against_the_whole(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MOST_MAPPED", 3)
    outcome = compare(*runs)
    assert outcome.exit_code == 0 and {row.layout for row in outcome.rows} == {"layout 'h[tp]'"}
