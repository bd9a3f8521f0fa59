"""Parts that are written straight to their place, without a ring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.straight import PartPlace, StraightRun, straight
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Kept
from dumpcmp.nouns.value import DTYPES
from tests.archive.values import SMALL_NUMBERS, Dense, key, record

CALL = Call("Model", 0, Op("layers.0"), 0, 0)
LARGE = np.arange(1 << 19, dtype=np.float64)


def begun(root: Path) -> tuple[StraightRun, PartPlace]:
    run = StraightRun.begin(root, 1, {0: {"mode": "eager"}}, overwrite=False)
    return run, PartPlace(root, 0, 1, "Model", 0)


def test_all_that_was_written_is_read_back_and_sound(tmp_path: Path) -> None:
    run, place = begun(tmp_path / "d")
    written = {key(slot=f"output.{name}"): (name, bits) for name, bits in SMALL_NUMBERS.items()}
    written[key(slot="output.large")] = "float64", LARGE
    with straight(place) as part:
        part.call(CALL)
        for name, (dtype, bits) in written.items():
            part.put(record(name, bits, dtype), Dense(bits))
        link, lost = (record(key(slot=f"input.{i}"), LARGE) for i in range(2))
        part.put(replace(link, same_as=key(slot="output.large")), None)
        part.put(replace(lost, problem="quantised"), None)
    run.end({0: part.told})
    archive = Archive(tmp_path / "d")
    assert archive.complete and audit(tmp_path / "d").sound
    assert {name: archive.load(archive[name]).bits.tobytes() for name in written} == {
        name: bits.tobytes() for name, (_, bits) in written.items()
    }
    assert archive[key(slot="input.0")].same_as == key(slot="output.large")
    assert archive[key(slot="input.1")].kept is Kept.NOTHING
    assert part.told.num_records == len(written) + 2 == len(DTYPES) + 3


def test_a_part_that_is_not_finished_is_not_there_and_its_run_is_not_whole(tmp_path: Path) -> None:
    _, place = begun(tmp_path / "d")
    with pytest.raises(ZeroDivisionError), straight(place) as part:
        part.call(CALL)
        raise ZeroDivisionError
    assert not list(tmp_path.rglob("*.h5"))
    assert not Archive(tmp_path / "d").complete


def test_who_writes_a_part_again_replaces_it(tmp_path: Path) -> None:
    run, place = begun(tmp_path / "d")
    for number in (1.0, 2.0):
        with straight(place) as part:
            part.call(CALL)
            part.put(record(key(), np.array([number])), Dense(np.array([number])))
    run.end({0: part.told})
    archive = Archive(tmp_path / "d")
    assert archive.load(archive[key()]).bits.tolist() == [2.0]


def test_another_run_is_not_replaced_unasked(tmp_path: Path) -> None:
    run, _ = begun(tmp_path / "d")
    run.end({})
    with pytest.raises(ArchiveError, match="already holds a run"):
        begun(tmp_path / "d")
