"""Laws of sampled rows: chosen before they travel, paired row by row, never taken for the whole."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.walk import walk
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.errors import ArchiveError, SelectionError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.sampled import Sample
from dumpcmp.nouns.value import value_of
from dumpcmp.summary.sampler import Sampler

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool,
    torch.complex64, torch.complex128,
]  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.fault: tuple[int, float] | None = None

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        if self.fault:
            x = x.clone()
            x[0, self.fault[0]] += self.fault[1]
        return torch.dropout(x, 0.0, train=True)


def run(
    path: Path, fault: tuple[int, float] | None = None, device: str = "cpu", **options: Any
) -> Path:
    torch.manual_seed(1)
    net, x = Net().to(device), torch.randn(2, 40, 64).to(device)
    net.fault = fault
    with dumpcmp.capture(net, path, **options), torch.no_grad():
        net(x)
    return path


@pytest.fixture(scope="module", params=DEVICES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    room = tmp_path_factory.mktemp("runs")
    device = request.param
    run(room / "whole", device=device)
    run(room / "sampled", device=device, sample_rows=9)
    run(room / "other", device=device, sample_rows=5)
    run(room / "summary", device=device, keep="summary")
    return room


def device_of(runs: Path) -> str:
    return next(iter(Archive(runs / "whole").values())).device


def sampled(archive: Archive) -> list[Record]:
    return [record for record in archive.values() if record.sample is not None]


def test_the_rows_are_those_of_the_whole_bit_for_bit(runs: Path) -> None:
    whole, some = Archive(runs / "whole"), Archive(runs / "sampled")
    found = sampled(some)
    assert len(found) > 9
    for record in found:
        assert record.sample == Sample(9, 80) and record.shape == (2, 40, 64)
        rows = whole.load(whole[record.key]).bits.reshape(80, 64)[record.sample.rows]
        assert np.array_equal(some.load(record).bits, rows)


def test_a_sample_has_the_first_row_and_the_last_and_no_row_twice() -> None:
    for kept, rows in ((2, 3), (7, 8), (64, 8192), (1000, 1001)):
        places = Sample(kept, rows).rows
        assert (places[0], places[-1]) == (0, rows - 1)
        assert (np.diff(places) > 0).all() and places.size == kept
    assert Sample(1, 8).rows.tolist() == [0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_any_dtype_and_stride(device: str, dtype: torch.dtype) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    bits = torch.randint(0, 2, (40, 3, 16 * dtype.itemsize), dtype=torch.uint8)
    dense = bits.view(dtype).to(device)
    for tensor in (dense, dense.transpose(0, 1), dense[::2], dense.reshape(-1)):
        made = Sampler(6)(tensor)
        assert made is not None
        row = tensor.shape[-1] if tensor.dim() > 1 else 1
        places = Sample.of(6, tuple(tensor.shape)).rows
        whole = value_of(tensor.contiguous()).bits.reshape(-1, row)
        assert value_of(made.numbers).bits.tobytes() == whole[places].tobytes()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_stream_does_not_take_places_that_another_still_computes() -> None:
    sampler, x = Sampler(6), torch.randn(4000, 64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
    sampler(x)  # whose places are behind that
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        made = sampler(x)
        assert made is not None
        rows = made.numbers.cpu()
    assert torch.equal(rows, x.cpu()[torch.from_numpy(Sample(6, 4000).rows)])


def test_equal_rows_pass_and_nobody_calls_the_whole_equal(runs: Path) -> None:
    for golden in ("whole", "sampled"):
        outcome = dumpcmp.compare(runs / golden, runs / "sampled")
        assert outcome.passed
        assert outcome.remarks[0].startswith("rows were sampled")
        assert outcome.word.startswith("SAME: ") and outcome.word.endswith(
            "only some rows were compared"
        )
        rows = [row for row in outcome.rows if row.metrics and row.metrics.sample]
        assert rows and all("9 of 80 rows" in row.reason for row in rows)
        assert not any(row.metrics and row.metrics.equal for row in rows)


def test_a_fault_in_a_row_that_is_kept_is_found_at_its_place(runs: Path, tmp_path: Path) -> None:
    faulty = run(tmp_path / "d", (39, 0.5), device_of(runs), sample_rows=9)
    for golden in ("whole", "sampled", "other"):
        outcome = dumpcmp.compare(runs / golden, faulty)
        assert outcome.first_divergence is not None
        assert outcome.first_divergence.key.op == "<root>/setitem"  # which golden has not
        first = next(row for row in outcome.failures if row.metrics)
        assert first.metrics is not None
        assert first.metrics.worst[:2] == (0, 39)
        assert first.metrics.max_abs_diff == pytest.approx(0.5, rel=1e-3)


def test_a_fault_in_another_row_passes_with_a_word_on_it(runs: Path, tmp_path: Path) -> None:
    faulty = run(tmp_path / "d", (12, 0.5), device_of(runs), sample_rows=9)
    outcome = dumpcmp.compare(runs / "sampled", faulty)
    assert not [row for row in outcome.rows if row.verdict is Verdict.FAIL]
    assert "11.25% of the rows" in outcome.remarks[0]
    assert dumpcmp.compare(runs / "whole", run(tmp_path / "e", (12, 0.5))).first_divergence


def test_samples_of_other_sizes_meet_in_the_rows_of_both(runs: Path) -> None:
    outcome = dumpcmp.compare(runs / "sampled", runs / "other")
    assert outcome.passed
    found = {row.metrics.sample for row in outcome.rows if row.metrics}
    assert Sample(5, 80) in found


def test_rows_and_summaries_are_not_held_against_each_other(runs: Path) -> None:
    outcome = dumpcmp.compare(runs / "summary", runs / "sampled")
    verdicts = {row.verdict for row in outcome.rows if "the other a Summary" in row.reason}
    assert verdicts == {Verdict.INCONCLUSIVE}
    assert not outcome.passed


def test_what_could_not_be_run_again_says_that_rows_are_kept(runs: Path, tmp_path: Path) -> None:
    faulty = run(tmp_path / "d", (39, 0.5), device_of(runs), sample_rows=9)
    outcome = dumpcmp.compare(runs / "whole", faulty)
    said = {row.replay.unknown for row in outcome.rows if row.replay}
    assert {
        "only a summary of it was kept",
        "only some rows are kept, and setitem may need others",
    } <= said


class Ops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64)
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(x, approximate="tanh" if self.factor != 1 else "none")
        y = torch.softmax(self.norm(F.silu(self.first(y))), -1)
        sum_of_both: Tensor = self.last(y) + x
        return sum_of_both.transpose(0, 1)


def test_ops_that_take_row_by_row_are_run_again_on_the_rows(tmp_path: Path) -> None:
    """Which op is wrong, and which only inherits, is known from rows and whole weights."""
    net, x = Ops(), torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(2))
    for path, factor in (("golden", 1.0), ("mine", 1.01)):
        net.factor = factor
        with dumpcmp.capture(net, tmp_path / path, sample_rows=9, weights=True), torch.no_grad():
            net(x)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    known = {
        row.key.op: row.replay for row in outcome.rows if row.replay and row.key.slot.is_output
    }
    for op in ("first/linear", "<root>/silu", "norm/layer_norm", "<root>/softmax", "last/linear"):
        assert known[Op(op)].is_known, known[Op(op)].unknown
    assert "transpose may need others" in known[Op("<root>/transpose")].unknown
    first = outcome.first_divergence
    assert first is not None and first.key.op == "<root>/gelu"
    assert outcome.conclusion is Conclusion.PROGRAM and "tanh" in first.reason
    assert first.origin is Origin.INTRODUCED
    last = next(row for row in outcome.rows if row.key.op == "last/linear" and row.replay)
    assert last.origin is Origin.INHERITED


def test_weights_keep_their_summaries_and_generators_their_states(runs: Path) -> None:
    archive = Archive(runs / "sampled")
    weights = [record for key, record in archive.items() if key.slot.is_weight]
    assert weights and all(record.sample is None for record in weights)
    states = [record for key, record in archive.items() if key.slot.is_generator]
    assert states and all(record.stored is None for record in states)


def test_rows_are_never_given_out_as_the_tensor(runs: Path) -> None:
    archive = Archive(runs / "sampled")
    with pytest.raises(ArchiveError, match="only 9 of 80 rows"):
        archive.tensor("layers.0")


def test_ops_that_stay_whole_and_wishes_that_cannot_be(tmp_path: Path) -> None:
    path = run(tmp_path / "d", keep=Retention(sample_rows=9, keep_full=("layers.0*",)))
    assert Archive(path)[Key("Net", 0, "layers.0", 0, "output.0")].stored is None
    for options in ({"sample_rows": 0}, {"keep": "summary", "sample_rows": 9}):
        with pytest.raises(SelectionError, match="--sample-rows"):
            Retention(**options)


def test_rows_in_a_part_that_another_tool_wrote_are_read_by_their_attributes(
    tmp_path: Path,
) -> None:
    archive = Archive(run(tmp_path / "d", sample_rows=9, level="modules", dtype="bfloat16"))
    record = next(r for r in sampled(archive) if r.same_as is None)
    assert record.location is not None and record.dtype == "bfloat16"
    with h5py.File(record.location.part) as part, h5py.File(tmp_path / "part.h5", "w") as made:
        made.attrs.update(part.attrs)
        for name in part.keys() - {"_index"}:
            part.copy(name, made)
    found = walk(tmp_path / "part.h5", record.key.model, 0, 0)
    assert record.stored in {form.stored for form in found.forms}


class Masked(nn.Module):
    noise = 0.0

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(40)
        mask = places <= places[:, None]
        scores = (x @ x.transpose(1, 2) * (1 + self.noise)).masked_fill(~mask, -100.0)
        return scores.softmax(-1) @ x


def test_rows_in_which_nothing_differs_are_no_other_choice(tmp_path: Path) -> None:
    """A mask of which some rows are kept is never known to be equal, and excuses nothing."""
    net, x = Masked(), torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(2))
    for path, noise in (("golden", 0.0), ("mine", 1e-6)):
        net.noise = noise
        with dumpcmp.capture(net, tmp_path / path, sample_rows=9):
            net(x)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert not [row for row in outcome.rows if "another computation" in row.reason]
    assert outcome.tally[Verdict.FLIP] == 0


def run_ranks(
    path: Path, patch: pytest.MonkeyPatch, fault: tuple[int, float] | None = None
) -> Path:
    """A run of two processes, each with inputs of its own; the second one has the `fault`."""
    patch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        patch.setenv("RANK", str(rank))
        torch.manual_seed(rank)
        net, x = Net(), torch.randn(2, 40, 64)
        net.fault = fault if rank else None
        with dumpcmp.capture(net, path, sample_rows=9, io="output"), torch.no_grad():
            net(x)
    return path


def test_ranks_that_lie_alike_are_compared_rank_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = run_ranks(tmp_path / "golden", monkeypatch)
    assert dumpcmp.compare(golden, run_ranks(tmp_path / "same", monkeypatch)).passed
    faulty = run_ranks(tmp_path / "faulty", monkeypatch, (39, 0.5))
    outcome = dumpcmp.compare(golden, faulty)
    wrong = [row for row in outcome.rows if row.verdict is Verdict.FAIL]
    assert wrong and all(dict(row.by_rank)[0] == 0 < dict(row.by_rank)[1] for row in wrong)


def test_ranks_and_one_process_are_not_judged_by_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = run_ranks(tmp_path / "ranks", monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    outcome = dumpcmp.compare(run(tmp_path / "one", sample_rows=9), target)
    said = {row.verdict for row in outcome.rows if "lie over ranks" in row.reason}
    assert said == {Verdict.INCONCLUSIVE}
