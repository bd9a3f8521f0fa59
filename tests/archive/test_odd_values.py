"""One bad value is one row: whatever is wrong with a value, the others are compared."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import dumpcmp
from dumpcmp import audit, compact
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write import dense
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Kept
from dumpcmp.nouns.row import Verdict
from tests.archive.test_hostile import rewritten
from tests.archive.values import key, parts, put

OPS, BAD = tuple(f"op{number}" for number in range(6)), 3


def written(path: Path, change: float = 0.0) -> Path:
    with ArchiveWriter(path) as sink:
        for order, name in enumerate(OPS):
            sink.call(Call("Model", 0, Op(name), 0, order, "torch.f", "m.py:1"))
            dtype = "int16" if order == BAD else "float64"
            put(sink, key(name), np.arange(8, dtype=dtype) + np.dtype(dtype).type(change), order)
    return path


def of_unknown_type(path: Path) -> Path:
    """What the index, and the journal, call int16 is called otherwise, in as many letters."""
    part = parts(path)[0]
    part.write_bytes(part.read_bytes().replace(b'"int16"', b'"int99"'))
    return path


@pytest.mark.parametrize("bad", ["golden", "target", "both"])
@pytest.mark.parametrize("change", [0.0, 1.0])
def test_a_value_of_an_unknown_type_is_one_row(bad: str, change: float, tmp_path: Path) -> None:
    golden, target = written(tmp_path / "golden"), written(tmp_path / "target", change)
    for path in (golden, target):
        if bad in (path.name, "both"):
            of_unknown_type(path)
    outcome = dumpcmp.compare(golden, target)
    assert outcome.exit_code != 0 and any("int99" in said for said in outcome.missing)
    rows = {row.key.op: row.verdict for row in outcome.rows}
    assert rows.keys() == set(OPS)
    assert rows[Op(OPS[BAD])] not in (Verdict.PASS, Verdict.FAIL)
    for name in OPS[:BAD] + OPS[BAD + 1 :]:
        assert (rows[Op(name)] is Verdict.PASS) == (change == 0.0)


def test_a_part_with_such_a_value_is_not_written_anew(tmp_path: Path) -> None:
    path = of_unknown_type(written(tmp_path / "d"))
    before = parts(path)[0].read_bytes()
    assert "int99" in compact(path, min_max_only=True).problems[0]
    assert parts(path)[0].read_bytes() == before


def test_one_that_another_tool_wrote_is_one_row_too(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        file[f"{OPS[BAD]}#0/output.0"].attrs["dtype"] = "int99"

    path = written(tmp_path / "d")
    rewritten(parts(path)[0], change)
    archive = Archive(path)
    kept = {record.key.op: record.kept for record in archive.values()}
    assert kept.pop(Op(OPS[BAD])) is Kept.NOTHING and set(kept.values()) == {Kept.FULL}
    assert archive.load(archive[key(OPS[0])]).bits.tolist() == list(range(8))


ODD_NUMBERS = {
    "NaNs with payloads": np.array([0x7FF8000000000001, 0xFFF80000DEADBEEF], "u8").view("f8"),
    "negative zero": np.array([-0.0, 0.0, -0.0]),
    "subnormal numbers": np.array([5e-324, -5e-324]),
}


@pytest.mark.parametrize("name", ODD_NUMBERS)
def test_bits_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("a"), ODD_NUMBERS[name])
    archive = Archive(tmp_path / "d")
    assert archive.load(archive[key("a")]).bits.tobytes() == ODD_NUMBERS[name].tobytes()


@pytest.mark.parametrize("is_dense", [False, True])
def test_a_bit_that_flips_in_any_region_is_named_by_an_audit(
    is_dense: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it is of no value: what fills records up, and what only other HDF5 readers look at.

    Whatever it is, no value is read as another one without an audit saying so.
    """
    monkeypatch.setattr(dense, "FEWEST", 2 if is_dense else 1 << 30)
    path = written(tmp_path / "d")
    part = parts(path)[0]
    whole, expected = part.read_bytes(), _read(path)
    chance, num_named = np.random.default_rng(0), 0
    places = np.linspace(0, len(whole) - 1, 300).astype(int)
    for at in places.tolist():
        changed = bytearray(whole)
        changed[at] ^= 1 << int(chance.integers(8))
        part.write_bytes(changed)
        is_named = not audit(path).sound
        num_named += is_named
        assert is_named or _read(path) == expected, f"byte {at} changed what is read, unnoticed"
    assert num_named > 30


def _read(path: Path) -> dict[str, bytes]:
    archive = Archive(path)
    return {str(record.key): archive.load(record).bits.tobytes() for record in archive.values()}
