"""Long runs are compared span by span: the same answer, in memory that does not grow with them."""

import gc
import json
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from benchmarks.faults import dumped
from benchmarks.subjects import SUBJECTS
from benchmarks.synthetic import Shape, write
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.comparing import compare, spans
from dumpcmp.dumping.capturing import capture
from dumpcmp.nouns import rows
from dumpcmp.nouns.equal_rows import EqualRows
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Judgement, Row, Verdict
from dumpcmp.nouns.rows import Rows
from dumpcmp.report.csvfile import write_csv
from dumpcmp.report.jsonfile import write_json
from dumpcmp.report.terminal import summary
from dumpcmp.taps.distributed import ranks
from tests.archive.values import put

FAULTS = ("none", "rounding", "later", "choice", "weight", "one sided", "input")


class Sampler(nn.Module):
    """A step of something that feeds on what it gave out before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(16, 8)
        self.mix = nn.Linear(8, 8)
        self.fault, self.step = "none", 0

    def forward(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(self.mix(self.table(token)) + 0.5 * state)
        if self.fault == "rounding":
            state = (state.double() * (1 + 1e-7)).float()
        if self.fault == "later" and self.step >= 4:
            state = state * 1.25
        if self.fault == "one sided":
            state = state + torch.zeros(8)
        scores = state @ self.table.weight.T
        if self.fault == "choice" and self.step == 3:
            scores = scores.roll(1, -1)
        self.step += 1
        return scores.argmax(-1), state


def sampled(path: Path, fault: str) -> Path:
    model = Sampler()
    model.fault = fault
    token, state = torch.tensor([5 if fault == "input" else 3]), torch.zeros(1, 8)
    if fault == "weight":
        with torch.no_grad():
            model.mix.bias[2] += 0.25
    with capture(model, path), torch.no_grad():
        for _ in range(7):
            token, state = model(token, state)
    return path


def told(outcome: Outcome, room: Path) -> list[object]:
    """All that a reader gets to see."""
    room.mkdir()
    csv, report = write_csv(outcome, room / "a.csv"), write_json(outcome, room / "a.json")
    found = json.loads(report.read_text())
    shown = [str(part) for part in summary(outcome).renderables if hasattr(part, "plain")]
    return [
        outcome.headline, outcome.exit_code, outcome.remarks, outcome.message(),
        csv.read_text(), found, shown, repr(outcome), len(outcome.rows),
        [str(row.key) for row in outcome.roots],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sampled(tmp_path_factory.mktemp("spans") / "d1", "none")


@dataclass(frozen=True)
class Whole:
    """A run, and what is told of it in one span, value by value."""

    mine: Path
    told: list[object]


ByFault = Callable[[str], Whole]


@pytest.fixture(scope="module")
def whole(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> ByFault:
    """The run with each fault, which is made and compared in one span once."""

    @cache
    def get(fault: str) -> Whole:
        room = tmp_path_factory.mktemp("whole")
        mine = sampled(room / "d2", fault)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(spans, "same_step", lambda *_: None)
            outcome = compare(golden, mine)
        assert isinstance(outcome.rows, tuple)
        return Whole(mine, told(outcome, room / "told"))

    return get


@pytest.mark.each_value_once
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("most", [1, 90])
def test_spans_change_nothing(
    golden: Path,
    whole: ByFault,
    tmp_path: Path,
    fault: str,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = whole(fault)
    monkeypatch.setattr(spans, "MOST_VALUES", most)
    monkeypatch.setattr(rows, "KEPT", most)  # the others lie in a file
    cut = compare(golden, one.mine)
    assert isinstance(cut.rows, Rows)
    assert told(cut, tmp_path / "cut") == one.told


def test_the_file_of_rows_is_closed_when_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if garbage is what they become: nobody closes an answer."""
    monkeypatch.setattr(rows, "KEPT", 1)
    verdict = Judgement(Verdict.PASS, "")
    many = [Row(Key("Model", 0, f"op{n}", 0, "output.0"), n, verdict) for n in range(3)]
    kept = Rows()
    kept.extend(many)
    cycle: list[object] = [kept]
    cycle.append(cycle)
    gc.collect()  # what other tests left open is no matter here
    assert [row.key for row in kept] == [row.key for row in many]
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del kept, cycle
        gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open - 1
    assert not [one for one in said if one.category is ResourceWarning]


@pytest.mark.parametrize("fault", FAULTS)
def test_steps_that_are_the_same_say_what_they_would_value_by_value(
    golden: Path, whole: ByFault, tmp_path: Path, fault: str
) -> None:
    one = whole(fault)
    apart = compare(golden, one.mine)
    assert told(apart, tmp_path / "apart") == one.told
    chunks = apart.rows.chunks() if isinstance(apart.rows, Rows) else ()
    same = {chunk.step for chunk in chunks if isinstance(chunk, EqualRows)}
    known = {"none": set(range(7)), "later": {0, 1, 2, 3}, "choice": {0, 1, 2}}
    assert same == known.get(fault, set())


def test_a_step_that_is_damaged_is_no_step_that_is_the_same(tmp_path: Path) -> None:
    one, other = (sampled(tmp_path / name, "none") for name in ("d1", "d2"))
    (part,) = (one / "worldsize1_global_rank0").glob("*/3/part-*.h5")
    damaged = bytearray(part.read_bytes())
    place = next(r.location for r in Archive(one).values() if r.key.step == 3 and r.location)
    damaged[place.offset] ^= 1
    part.write_bytes(damaged)
    wrong = [row for row in compare(one, other).rows if row.verdict is Verdict.ERROR]
    assert {row.key.step for row in wrong} == {3}


@pytest.mark.each_value_once
@pytest.mark.parametrize("apart, every", [(0.0, 10), (1e-3, 10), (1e-3, 3), (1e-8, 1)])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_spans_of_runs_on_several_ranks_change_nothing(
    tmp_path: Path, apart: float, every: int, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(ranks=3, steps=5, ops=10)
    write(tmp_path / "d1", shape, shards=num_ranks > 1)
    write(tmp_path / "d2", shape, shards=True, apart=apart, every=every)
    whole = compare(tmp_path / "d1", tmp_path / "d2")
    monkeypatch.setattr(spans, "MOST_VALUES", 1)
    cut = compare(tmp_path / "d1", tmp_path / "d2")
    assert isinstance(cut.rows, Rows) and isinstance(whole.rows, tuple)
    assert whole.exit_code == (apart == 1e-3)
    assert told(cut, tmp_path / "cut") == told(whole, tmp_path / "whole")


def test_where_layouts_are_learnt_from_other_steps_there_is_one_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    monkeypatch.setattr(spans, "MOST_VALUES", 1)
    for rank in range(2):
        dumpcmp.set_rank(rank, 2)
        model, token, state = Sampler(), torch.tensor([3 + rank]), torch.zeros(1, 8)
        with capture(model, tmp_path / "d"), torch.no_grad():
            for _ in range(2):
                token, state = model(token, state)
    assert isinstance(compare(tmp_path / "d", tmp_path / "d").rows, tuple)


def test_spans_of_another_count_and_selection(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = sampled(tmp_path / "d2", "later")
    options = {"tokens": "1-5", "layers": "mix", "token_offset": 1}
    whole = compare(golden, mine, **options)  # type: ignore[arg-type]
    monkeypatch.setattr(spans, "MOST_VALUES", 1)
    cut = compare(golden, mine, **options)  # type: ignore[arg-type]
    assert told(cut, tmp_path / "cut") == told(whole, tmp_path / "whole")


@pytest.mark.long  # so it is of a smaller model, above
def test_spans_of_a_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps hand a cache on, in which nothing may look like an input from outside."""
    decoder = SUBJECTS["decoder"]
    both = [dumped(decoder, tmp_path / dtype, dtype=dtype) for dtype in ("float32", "bfloat16")]
    whole = compare(*both)
    monkeypatch.setattr(spans, "MOST_VALUES", 1)
    assert told(compare(*both), tmp_path / "cut") == told(whole, tmp_path / "whole")


def written(path: Path, num_steps: int, scale: float) -> Path:
    numbers = np.linspace(1, 2, 12)
    with ArchiveWriter(path) as sink:
        for step in range(num_steps):
            for number, op in enumerate(("layers.0", "layers.1", "layers.2", ROOT)):
                key = Key("Model", step, op, 0, "output.0")
                put(sink, key, numbers * (number + step + 1) * scale, number)
            sink.finish_step("Model", step)
    return path


def test_memory_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST_VALUES", 80)
    monkeypatch.setattr(rows, "KEPT", 80)
    peaks: list[int] = []
    for num_steps in (10, 30, 150):  # the first of them pays for what is imported
        room = tmp_path / f"{len(peaks)}"
        sides = [written(room / name, num_steps, scale) for name, scale in (("d", 1), ("e", 2))]
        gc.collect()
        tracemalloc.start()
        outcome = compare(*sides)
        write_csv(outcome, room / "a.csv")
        write_json(outcome, room / "a.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert outcome.exit_code == 1 and len(outcome.rows) == 4 * num_steps
    assert peaks[2] < 1.5 * peaks[1] + (1 << 20)
