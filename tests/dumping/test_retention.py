"""Laws of what a dump keeps: summaries taken at capture are those that compaction takes."""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import main
from dumpcmp.compacting import nbytes_of
from dumpcmp.comparing.summaries import load_summary
from dumpcmp.dumping import retention
from dumpcmp.dumping.retention import (
    Budgeted,
    Retention,
    compactor_beside,
    within_budget,
)
from dumpcmp.nouns.errors import CaptureWarning, SelectionError
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import Verdict
from tests.archive.values import Dense, key, record
from tests.compacting.archives import put_step


class Net(nn.Module):
    def __init__(self, fault: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.fault = fault

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(x))
            if number == 1 and self.fault:
                x = x + self.fault * x.roll(1, 0)
        return x


def run(path: Any, fault: float = 0.0, **options: Any) -> None:
    torch.manual_seed(1)
    x, net = torch.randn(40, 64), Net(fault)
    with dumpcmp.capture(net, path, **options), torch.no_grad():
        net(x)


def raising(numbers: Any) -> float:
    raise ValueError("no such numbers")


def computed(archive: Archive) -> list[Record]:
    """What is not a parameter, wherever it appears: those are known by sums of their own."""
    weights = ("param", "buffer")
    return [r for r in archive.values() if (r.same_as or r.key).slot.kind not in weights]


def test_a_reducer_that_raises_leaves_values_whole_and_warns(tmp_path: Path) -> None:
    """Kept as Summaries, the elements would be gone, and the user's numbers with them."""
    keep = Retention("summary", reduce=f"{__name__}:raising")
    with pytest.warns(CaptureWarning, match="stays whole.*no such numbers"):
        run(tmp_path / "d", keep=keep)
    archive = Archive(tmp_path / "d")
    assert {record.kept for record in computed(archive)} == {Kept.FULL}


def test_a_reducer_that_is_not_there_is_named_before_the_program_runs(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match="missing"):
        run(tmp_path / "d", keep=Retention(compact=True, reduce=f"{__name__}:missing"))
    assert not list(tmp_path.rglob("part-*.h5"))


def test_a_budget_that_cannot_be_met_is_told_at_the_end(tmp_path: Path) -> None:
    with pytest.warns(CaptureWarning, match="above its budget|cannot be kept under"):
        run(tmp_path / "d", keep=Retention(disk_budget=4096))


def test_an_archive_that_stays_too_large_is_waited_for_once(tmp_path: Path) -> None:
    """The compactor lives, and has nothing to do: one of many values is kept waiting."""
    kept = Retention(disk_budget=4096)
    with ExitStack() as after, ArchiveWriter(tmp_path / "d", run={}) as out:
        beside = after.enter_context(compactor_beside(tmp_path / "d", kept, 0))
        sink = Budgeted(out, 4096, beside)
        put_step(out, 0, (64, 64), 0)
        put_ones(out, 0)
        out.settle()
        with pytest.warns(CaptureWarning, match="cannot be kept under"):
            put_ones(sink, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Budgeted, "_round", lambda _: pytest.fail("it waits again"))
            for number in range(2, 10):
                put_ones(sink, number)


def put_ones(sink: ArchiveWriter | Budgeted, number: int) -> None:
    bits = np.ones(1000)
    sink.put(record(key(f"op{number}"), bits, order=number), Dense(bits))


class StoppedCompactor:
    """What `time` is to the sink: it looks at the archive while it waits, and lets go at last."""

    def __init__(self, path: Path, child: int) -> None:
        self.path, self.child, self.sizes = path, child, list[int]()

    def sleep(self, seconds: float) -> None:
        self.sizes.append(nbytes_of(self.path))
        if len(self.sizes) == 10:
            os.kill(self.child, signal.SIGCONT)
        time.sleep(seconds)


def test_a_budget_holds_while_the_compactor_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it has no processor: the sink waits, and writes nothing meanwhile."""
    budget, kept = 6 << 20, Retention(disk_budget=6 << 20)
    path, most = tmp_path / "d", 0
    with ExitStack() as after, ArchiveWriter(path, part_nbytes=kept.part_nbytes) as out:
        beside = after.enter_context(compactor_beside(path, kept, 0))
        assert beside.child is not None
        os.kill(beside.child.pid, signal.SIGSTOP)
        after.callback(beside.child.send_signal, signal.SIGCONT)
        waiting = StoppedCompactor(path, beside.child.pid)
        monkeypatch.setattr(retention, "time", waiting)
        sink = Budgeted(out, budget, beside)
        for step in range(24):
            bits = np.full(1 << 16, float(step))
            sink.put(record(replace(key("op"), step=step), bits, order=0), Dense(bits))
            sink.finish_step("Model", step)
            most = max(most, nbytes_of(path))
    assert len(waiting.sizes) >= 10, "it had to wait"
    assert len(set(waiting.sizes[:10])) == 1, "nothing is written while the compactor is stopped"
    assert max(most, *waiting.sizes) <= budget and beside.trouble == ""
    archive = Archive(path)
    assert len(archive) == 24 and archive.complete


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    room = tmp_path_factory.mktemp("runs")
    run(room / "full")
    run(room / "summary", keep="summary")
    run(room / "compacted", keep=Retention(compact=True))
    run(room / "faulty", 0.01)
    run(room / "faulty_summary", 0.01, keep="summary")
    return room


def test_a_summary_at_capture_is_what_compaction_gives(runs: Any) -> None:
    one, two = Archive(runs / "summary"), Archive(runs / "compacted")
    assert list(one) == list(two)
    summarised = [key for key, record in one.items() if record.kept is Kept.SUMMARY]
    assert len(summarised) > 9
    for name in summarised:
        got, expected = load_summary(one, one[name]), load_summary(two, two[name])
        assert got.digest == expected.digest
        assert got.sketch is not None and expected.sketch is not None
        assert np.array_equal(got.sketch.sums, expected.sketch.sums)


def test_links_are_kept_between_summaries(runs: Any) -> None:
    full, summary = Archive(runs / "full"), Archive(runs / "summary")
    assert {k: r.same_as for k, r in full.items()} == {k: r.same_as for k, r in summary.items()}


MIXES = [(a, b) for a in ("full", "summary", "compacted") for b in ("full", "summary", "compacted")]


@pytest.mark.parametrize("golden, target", MIXES)
def test_any_mix_of_one_run_is_the_same(runs: Any, golden: Any, target: Any) -> None:
    outcome = dumpcmp.compare(runs / golden, runs / target)
    assert {row.verdict for row in outcome.rows} == {Verdict.PASS}
    metrics = [row.metrics for row in outcome.rows]
    assert all(each is not None and each.exact and each.equal for each in metrics)


@pytest.mark.each_value_once
@pytest.mark.parametrize("golden", ["full", "summary", "compacted"])
@pytest.mark.parametrize("target", ["faulty", "faulty_summary"])
def test_any_mix_finds_the_same_first_divergence(runs: Any, golden: Any, target: Any) -> None:
    found = dumpcmp.compare(runs / golden, runs / target).first_divergence
    expected = dumpcmp.compare(runs / "full", runs / "faulty").first_divergence
    assert expected is not None and found is not None
    assert found.key == expected.key


def test_estimates_are_said_to_be_estimates(runs: Any) -> None:
    frame = dumpcmp.compare(runs / "summary", runs / "faulty").to_pandas()
    exact = dumpcmp.compare(runs / "full", runs / "faulty").to_pandas()
    assert set(frame["metrics"].dropna()) == {"exact", "estimated"}
    assert set(exact["metrics"].dropna()) == {"exact"}
    assert (frame["confidence"][frame["metrics"] == "estimated"] > 0).all()


def test_chosen_ops_stay_whole(tmp_path: Path) -> None:
    run(tmp_path / "d", keep=Retention("summary", keep_full=("layers.0*",)))
    kept: dict[str, Kept] = {key.op: record.kept for key, record in Archive(tmp_path / "d").items()}
    assert kept["layers.0/linear"] is Kept.FULL and kept["layers.1/linear"] is Kept.SUMMARY


def largest(numbers: Any) -> Any:
    return abs(numbers).max()


def test_own_reductions_at_capture(tmp_path: Path) -> None:
    run(tmp_path / "d", keep=Retention("summary", reduce=f"{__name__}:largest"))
    archive = Archive(tmp_path / "d")
    held = [load_summary(archive, r) for r in computed(archive) if r.kept is Kept.SUMMARY]
    assert held and all(s.reduced["largest"] == pytest.approx(max(-s.min, s.max)) for s in held)


def test_a_budget_is_kept_while_the_run_goes_on(tmp_path: Path) -> None:
    path, kept = tmp_path / "d", Retention(disk_budget=8 << 20)
    most = 0
    nbytes = kept.part_nbytes
    with ExitStack() as after, ArchiveWriter(path, run={}, part_nbytes=nbytes) as out:
        beside = after.enter_context(compactor_beside(path, kept, 0))
        sink = within_budget(out, kept, beside)
        assert isinstance(sink, Budgeted)
        for step in range(24):
            put_step(sink, step, (64, 2000), step)
            most = max(most, nbytes_of(path))
    assert len(Archive(path)) == 24 * 14
    assert most < (8 << 20) + (4 << 20)  # what lies in the ring when the sink begins to wait
    assert nbytes_of(path) <= 8 << 20


@pytest.mark.parametrize(
    "options", [{"keep": "some"}, {"sketch": 100}, {"keep": "summary", "compact": True}]
)
def test_wishes_that_clash_are_refused(options: Any) -> None:
    with pytest.raises(SelectionError):
        Retention(**options)


def test_the_command_line(tmp_path: Path) -> None:
    words = ["dump", "--path", str(tmp_path / "d"), "--compact", "--seed", "0"]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 0, ended.output
    assert "values in 4 parts" in ended.stderr and "freed" in ended.stderr
