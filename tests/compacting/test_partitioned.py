"""Laws of summaries over a mesh: shards' and partial terms' add up to the whole's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dumpcmp
from dumpcmp.align.mesh.held import Held
from dumpcmp.align.mesh.regions import Shard, portion_of
from dumpcmp.align.mesh.unshard import plan_unshard
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.compacting import compact
from dumpcmp.comparing.summaries import joined, whole_summary
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.layouts import parse_layout, parse_mesh
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.value import DTYPES, Value
from dumpcmp.summary.summary import Recipe, Summary, summarise
from tests.align.mesh.sharding import shard
from tests.align.mesh.test_unshard import LAYOUTS, UNEVEN
from tests.compacting.archives import Numbers
from tests.summary.test_summary import sums_of

SHAPE = (12, 12, 24)


def drawn(dtype: str = "float32", seed: int = 0) -> Value:
    numbers = np.random.default_rng(seed).standard_normal(SHAPE)
    return Value(DTYPES[dtype], numbers.astype(DTYPES[dtype].storage))


def alike(got: Summary, expected: Summary) -> None:
    assert (got.count, got.shape, got.whole) == (expected.count, expected.shape, expected.whole)
    assert got.norm == pytest.approx(expected.norm, rel=0.2)
    assert got.sum == pytest.approx(expected.sum, abs=1e-6)
    assert np.allclose(sums_of(got), sums_of(expected), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("text, mesh", LAYOUTS + UNEVEN)
def test_the_sketches_of_any_layout_add_up(text: str, mesh: str) -> None:
    whole = drawn()
    held = []
    for one, value in shard(whole, parse_layout(text), parse_mesh(mesh)):
        layout = str(replace(one.layout, shape=SHAPE))
        portion = portion_of(layout, value.shape)
        assert portion is not None
        held.append(
            (replace(one, layout=parse_layout(layout)), summarise(value, Recipe(), portion))
        )
    plan = plan_unshard([one for one, _ in held])
    got = joined(plan, [summary for _, summary in held])
    alike(got, summarise(whole))
    if ":partial" not in text:
        expected = summarise(whole)
        assert (got.min, got.max, got.num_zero) == (expected.min, expected.max, expected.num_zero)


UNKNOWN = ["", "b s h[tp]", "b s h[tp] @ tp:0/2", "b s h[tp] @ cp:0/2 of 12x12x48"]


@pytest.mark.parametrize("layout", UNKNOWN)
def test_a_layout_that_does_not_tell_places_nothing(layout: str) -> None:
    assert portion_of(layout, SHAPE) is None


def test_summaries_of_shards_alone_do_not_add_up() -> None:
    shards = [Shard(r, SHAPE, parse_layout(f"b s h[tp] @ tp:{r}/2 of 12x12x48")) for r in range(2)]
    alone = [summarise(drawn(seed=r)) for r in range(2)]
    with pytest.raises(LayoutError, match="of shards alone"):
        joined(plan_unshard(shards), alone)


def write_ranks(path: Path, shards: list[tuple[str, np.ndarray]]) -> None:
    """One op's output as `shards`, one a rank, each with its layout."""
    for rank, (layout, bits) in enumerate(shards):
        with ArchiveWriter(path, rank=rank, world_size=len(shards), run={}) as sink:
            sink.call(Call("Model", 0, Op("up"), 0, 0))
            key = Key("Model", 0, "up", 0, "output.0")
            record = Record(key, 0, "float32", bits.shape, layout=layout, rank=rank)
            sink.put(record, Numbers(bits))


KEY = Key("Model", 0, "up", 0, "output.0")


def summed(archive: Archive, records: tuple[Record, ...]) -> Summary:
    return whole_summary(archive, Held(records, archive.load)).summary


def test_a_compacted_tensor_parallel_run_gives_the_whole_without_raw_tensors(
    tmp_path: Path,
) -> None:
    whole = drawn().bits.repeat(4, axis=0)
    shards = [
        (f"b s h[tp] @ tp:{r}/2 of 48x12x24", np.ascontiguousarray(half))
        for r, half in enumerate(np.split(whole, 2, axis=2))
    ]
    write_ranks(tmp_path / "d", shards)
    compact(tmp_path / "d")
    archive = Archive(tmp_path / "d")
    records = archive.shards(KEY)
    assert [record.kept for record in records] == [Kept.SUMMARY] * 2
    alike(summed(archive, records), summarise(Value(DTYPES["float32"], whole)))


def test_partial_sums_and_averages(tmp_path: Path) -> None:
    terms = [drawn(seed=s).bits for s in range(2)]
    for mode, divisor in (("partial", 1), ("partial.avg", 2)):
        path = tmp_path / mode
        shards = [(f"b s h[tp:{mode}] @ tp:{r}/2 of 12x12x24", t) for r, t in enumerate(terms)]
        write_ranks(path, shards)
        compact(path)
        archive = Archive(path)
        exact = (terms[0].astype(np.float64) + terms[1].astype(np.float64)) / divisor
        alike(summed(archive, archive.shards(KEY)), summarise(Value(DTYPES["float64"], exact)))


def test_compare_adds_up_the_sketches_of_a_compacted_partitioned_run(tmp_path: Path) -> None:
    whole = drawn().bits.repeat(4, axis=0)
    write_ranks(tmp_path / "golden", [("", whole)])
    for name, error in (("right", 0), ("wrong", 1e-2)):
        other = (whole * (1 + error * np.sign(drawn(seed=9).bits.repeat(4, axis=0)))).astype("<f4")
        halves = np.split(other, 2, axis=2)
        shards = [
            (f"b s h[tp] @ tp:{r}/2 of 48x12x24", np.ascontiguousarray(half))
            for r, half in enumerate(halves)
        ]
        write_ranks(tmp_path / name, shards)
    expected = dumpcmp.compare(tmp_path / "golden", tmp_path / "wrong").rows[0]
    for compacted in (("right", "wrong"), ("golden",)):
        for name in compacted:
            compact(tmp_path / name)
        right, wrong = (
            dumpcmp.compare(tmp_path / "golden", tmp_path / n).rows[0] for n in ("right", "wrong")
        )
        assert (right.verdict, wrong.verdict) == (Verdict.PASS, Verdict.FAIL)
        assert wrong.metrics is not None and expected.metrics is not None
        assert not wrong.metrics.exact
        assert wrong.metrics.rel_l2 == pytest.approx(expected.metrics.rel_l2, rel=0.2)


def test_replicas_that_differ_are_a_finding(tmp_path: Path) -> None:
    write_ranks(tmp_path / "golden", [("", drawn().bits)])
    other = drawn().numbers() * np.float32(1.5)
    shards = [(f"b s h @ tp:{r}/2 of 12x12x24", b) for r, b in enumerate((drawn().bits, other))]
    write_ranks(tmp_path / "target", shards)
    compact(tmp_path / "target")
    row = dumpcmp.compare(tmp_path / "golden", tmp_path / "target").rows[0]
    assert row.verdict is Verdict.FAIL and "REPLICA" in row.judgement.reason
