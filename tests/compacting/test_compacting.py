"""Laws of compaction: the same Keys with less behind them, however often and whenever it runs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

import dumpcmp
from dumpcmp.archive.locks import COMPACTING, alone
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.rewrite import is_sealed, parts_of
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import main
from dumpcmp.compacting import compact, nbytes_of
from dumpcmp.nouns.errors import ArchiveError, SelectionError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.options import parse_nbytes
from dumpcmp.nouns.record import Call, Kept
from dumpcmp.nouns.row import Verdict
from dumpcmp.report.csvfile import write_csv
from dumpcmp.summary.packing import load_reduction, unpack
from dumpcmp.summary.summary import Recipe, Summary, summarise
from tests.compacting.archives import put, put_step, write_archive
from tests.summary.test_summary import sums_of


def kept(archive: Archive) -> dict[Key, Kept]:
    return {key: record.kept for key, record in archive.items()}


def summary_of(archive: Archive, key: Key) -> Summary:
    record = archive[key]
    assert record.stored is not None
    return unpack(record.stored, archive.load(record).numbers(), record.dtype, record.shape)


def contents(path: Path) -> dict[Key, bytes]:
    archive = Archive(path)
    return {key: archive.load(record).bits.tobytes() for key, record in archive.items()}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    write_archive(tmp_path / "d")
    return tmp_path / "d"


def test_large_tensors_become_summaries_and_all_else_stays(whole: Path) -> None:
    before, plain = Archive(whole), contents(whole)
    values = {key: before.load(record) for key, record in before.items()}
    calls = dict(before.calls)
    done = compact(whole)
    assert done.total.num_values == 10 and done.total.nbytes_freed > 50_000 and not done.problems
    after = Archive(whole)
    assert list(after) == list(before) and dict(after.calls) == calls and after.complete
    for key, record in after.items():
        assert (record.shape, record.dtype, record.same_as) == (
            before[key].shape, before[key].dtype, before[key].same_as,
        )  # fmt: skip
        if values[key].numel > 512:
            assert record.kept is Kept.SUMMARY
            got, expected = summary_of(after, key), summarise(values[key])
            assert got.digest == expected.digest == before[key].digest
            assert np.array_equal(sums_of(got), sums_of(expected))
        else:
            assert record.kept is Kept.FULL
            assert after.load(record).bits.tobytes() == plain[key]


def test_many_processes_come_to_the_same(tmp_path: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        write_archive(tmp_path / name, steps=3)
        assert compact(tmp_path / name, jobs=jobs).total.num_parts == 3
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_compacting_again_changes_nothing(whole: Path) -> None:
    compact(whole)
    before = {part: part.read_bytes() for part in whole.glob("*/*/*/*.h5")}
    assert compact(whole).total.num_parts == 0
    assert {part: part.read_bytes() for part in whole.glob("*/*/*/*.h5")} == before


def test_kept_ops_stay_whole_and_can_be_compacted_later(whole: Path) -> None:
    compact(whole, keep_full=["layers.0.*"])
    held = {
        key.op
        for key, how in kept(Archive(whole)).items()
        if how is Kept.FULL and key.slot == "output.0"
    }
    assert held == {"layers.0.attn", "layers.0.attn/softmax"}
    compact(whole)
    assert {how for key, how in kept(Archive(whole)).items() if key.slot == "output.0"} == {
        Kept.SUMMARY
    }


def test_a_compacted_part_is_plain_hdf5(whole: Path) -> None:
    compact(whole)
    part = next(filter(is_sealed, parts_of(whole)))
    with h5py.File(part, "r") as file:
        dataset = file["layers.0.attn#0/output.0"]
        names = dataset.attrs["fields"]
        names = names.decode() if isinstance(names, bytes) else names
        numbers = dict(zip(names.split(), dataset[()], strict=False))
        assert numbers["count"] == 40 * 64 and numbers["min"] < 0 < numbers["max"]
        assert dataset.attrs["sketch_size"] == 512 and dataset.shape == (16 + 512,)
        assert (
            dataset == file["layers.0.attn#0/softmax#0/input.0"]
            if "softmax#0" in file["layers.0.attn#0"]
            else True
        )


def test_links_across_parts_follow_what_they_lead_to(tmp_path: Path) -> None:
    write_archive(tmp_path / "d", steps=1, part_nbytes=20_000)
    parts = list(filter(is_sealed, parts_of(tmp_path / "d")))
    assert len(parts) > 2
    before = Archive(tmp_path / "d")
    values = {key: before.load(record) for key, record in before.items()}
    for count in range(1, len(parts) + 1):
        compact(tmp_path / "d", disk_budget=nbytes_of(tmp_path / "d") - 1)
        after = Archive(tmp_path / "d")
        assert list(after) == list(before)
        for key, record in after.items():
            if record.kept is Kept.SUMMARY:
                assert summary_of(after, key).digest == before[key].digest
            else:
                assert np.array_equal(after.load(record).bits, values[key].bits)
        assert count > len(parts) or Kept.SUMMARY in kept(after).values()


@pytest.mark.parametrize("options, recipe", [
    ({"sketch": 64}, Recipe(64)),
    ({"min_max_only": True}, Recipe(0)),
    ({"hashes": 3, "seed": 7}, Recipe(512, 7, 3)),
    ({"segments": 16}, Recipe(512, 0, 1, 16)),
])  # fmt: skip
def test_the_recipe_is_in_the_file(whole: Path, options: dict[str, Any], recipe: Recipe) -> None:
    compact(whole, **options)
    assert summary_of(Archive(whole), Key("Model", 0, "embed", 0, "output.0")).recipe == recipe


def test_segments_name_the_tokens_in_the_reason(tmp_path: Path) -> None:
    for name, error in (("golden", 0.0), ("target", 1.0)):
        with ArchiveWriter(tmp_path / name, run={}) as sink:
            sink.call(Call("Model", 0, Op("up"), 0, 0))
            numbers = np.random.default_rng(0).standard_normal((160, 40)).astype(np.float32)
            numbers[73] += error
            put(sink, Key("Model", 0, "up", 0, "output.0"), 0, numbers)
        compact(tmp_path / name, segments=16)
    row = dumpcmp.compare(tmp_path / "golden", tmp_path / "target").rows[0]
    assert row.verdict is Verdict.FAIL and "mostly in rows 70 to 79" in row.judgement.reason


def spread_of(numbers: np.ndarray) -> dict[str, float]:
    return {"spread": numbers.max() - numbers.min()}


def test_own_reductions_are_kept_beside(whole: Path) -> None:
    compact(whole, reduce=f"{__name__}:spread_of")
    got = summary_of(Archive(whole), Key("Model", 0, "embed", 0, "output.0"))
    assert got.reduced["spread"] == pytest.approx(got.max - got.min)


def extremes_of(numbers: np.ndarray) -> list[float]:
    return [numbers.min(), numbers.max()]


def largest_of(numbers: np.ndarray) -> float:
    return float(np.abs(numbers).max())


def failing_on_five(numbers: np.ndarray) -> float:
    if numbers.ndim:
        raise ValueError("not five")
    return 5.0


OWN = {
    "a number": (largest_of, {"largest_of"}),
    "a list": (extremes_of, {"extremes_of.0", "extremes_of.1"}),
    "a dict": (spread_of, {"spread"}),
}


@pytest.mark.parametrize("case", OWN)
def test_own_numbers_are_shown_and_in_every_table(case: str, whole: Path, tmp_path: Path) -> None:
    function, names = OWN[case]
    compact(whole, reduce=f"{__name__}:{function.__name__}")
    got = summary_of(Archive(whole), Key("Model", 0, "embed", 0, "output.0"))
    assert set(got.reduced) == names
    shown = CliRunner().invoke(main, ["show", str(whole), "embed"]).output
    outcome = dumpcmp.compare(whole, whole)
    text = write_csv(outcome, tmp_path / "compare.csv").read_text().splitlines()[0]
    for name, number in got.reduced.items():
        assert f"{name} {number:.6g}" in shown
        assert number in Archive(whole).to_pandas()[name].tolist()
        for side in ("golden", "my"):
            assert f"{side}.{name}" in text
            assert number in outcome.to_pandas()[f"{side}.{name}"].tolist()


def test_a_reducer_that_raises_is_told_and_nothing_is_deleted(whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("part-*.h5")}
    done = compact(whole, reduce=f"{__name__}:failing_on_five")
    assert "ValueError: not five" in done.problems[0]
    assert {path: path.read_bytes() for path in whole.rglob("part-*.h5")} == before
    command = ["compact", str(whole), "--reduce", f"{__name__}:failing_on_five"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "not five" in result.stderr


def test_a_budget_that_cannot_be_met_is_told(whole: Path) -> None:
    done = compact(whole, disk_budget=1000)
    assert "above 1.0 KB" in done.problems[0]


@pytest.mark.parametrize("name", ["nothing", "no.such.module:f", "math:nothing", "math:pi"])
def test_a_reduction_that_cannot_be_loaded_is_named(name: str) -> None:
    with pytest.raises(SelectionError, match=name.partition(":")[0]):
        load_reduction(name)


def test_a_budget_compacts_the_oldest_parts_only(tmp_path: Path) -> None:
    write_archive(tmp_path / "d", steps=4, shape=(100, 400))
    size = nbytes_of(tmp_path / "d")
    compact(tmp_path / "d", disk_budget=size - 1000)
    steps = {key.step for key, how in kept(Archive(tmp_path / "d")).items() if how is Kept.SUMMARY}
    assert steps == {0}
    compact(tmp_path / "d", disk_budget=size // 2)
    assert nbytes_of(tmp_path / "d") <= size // 2


def test_a_damaged_part_stays_and_the_others_are_compacted(tmp_path: Path) -> None:
    write_archive(tmp_path / "d", steps=2)
    part = next(filter(is_sealed, parts_of(tmp_path / "d")))
    key = Key("Model", 0, "embed", 0, "output.0")
    location = Archive(tmp_path / "d")[key].location
    assert location is not None
    offset = location.offset
    content = bytearray(part.read_bytes())
    content[offset] ^= 1
    part.write_bytes(content)
    done = compact(tmp_path / "d")
    assert done.total.num_parts == 1
    assert len(done.problems) == 1 and "embed#0 output.0 is damaged" in done.problems[0]
    assert part.read_bytes() == bytes(content)


def test_two_compactors_exclude_each_other(whole: Path) -> None:
    with alone(whole), pytest.raises(ArchiveError, match="another process"):
        compact(whole)
    compact(whole)
    assert not (whole / COMPACTING).exists()


def test_a_part_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d", run={}) as sink:
        put_step(sink, 0, (40, 64), 0)
        before = Archive(tmp_path / "d")
        assert compact(tmp_path / "d").total.num_parts <= 1
        put_step(sink, 1, (40, 64), 0)
        del before
    compact(tmp_path / "d")
    archive = Archive(tmp_path / "d")
    assert archive.complete and len(archive) == 28


def test_watching_compacts_what_a_running_capture_finishes_and_then_stops(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with ArchiveWriter(path, run={}) as sink:
        watcher = subprocess.Popen(
            [sys.executable, "-m", "dumpcmp", "compact", str(path), "--watch"]
        )
        for step in range(3):
            put_step(sink, step, (40, 64), 0)
    assert watcher.wait(60) == 0
    assert {how for key, how in kept(Archive(path)).items() if key.slot == "output.0"} == {
        Kept.SUMMARY
    }


def test_watching_lets_others_go_first_in_a_process_of_its_own(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    niced: list[int] = []
    monkeypatch.setattr(os, "nice", niced.append)
    words = ["compact", str(whole), "--watch"]
    assert CliRunner().invoke(main, words).exit_code == 0 and not niced
    monkeypatch.setattr(sys, "argv", ["dumpcmp", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and niced == [10]


def test_a_reader_that_is_overtaken_says_so(whole: Path) -> None:
    archive = Archive(whole)
    record = archive[Key("Model", 0, "embed", 0, "output.0")]
    compact(whole)
    with pytest.raises(ArchiveError, match="was sealed or compacted while"):
        archive.load(record)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="not an archive"):
        compact(tmp_path)


@pytest.mark.parametrize(
    "text, nbytes",
    [
        ("20G", 20 << 30),
        ("512M", 512 << 20),
        ("1.5K", 1536),
        ("7", 7),
        ("2GB", 2 << 30),
        ("2GiB", 2 << 30),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "many"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(SelectionError):
        parse_nbytes(text)
