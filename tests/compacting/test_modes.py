"""Laws of ``keep="summary"`` in every mode: what it keeps compares as full tensors would."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.row import Verdict

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MODES = {
    "eager": "eager",
    "fx": "fx",
    "aten": "aten",
    "compiled": dumpcmp.Compiled(twin=False),
    "boundary": dumpcmp.Boundary("aot_eager"),
}
FINE = {Verdict.PASS, Verdict.FUSED, Verdict.COVERED, Verdict.DEAD, Verdict.UNPAIRED}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.norm = nn.LayerNorm(64)
        self.fault = 0.0

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = x + torch.tanh(layer(x))
            if number == 1 and self.fault:
                x = x + self.fault * x.roll(1, 0)
        normed: Tensor = self.norm(x)
        return normed


def run(path: Path, device: str, fault: float = 0.0, **options: Any) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    net, x = Net().to(device), torch.randn(40, 64).to(device)
    net.fault = fault
    compiled = torch.compile(net)
    with dumpcmp.capture(None, path, **options), torch.no_grad():
        compiled(x)


@pytest.fixture(scope="module", params=DEVICES)
def golden(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    path = tmp_path_factory.mktemp("golden") / "d"
    run(path, request.param)
    return path, request.param


@pytest.mark.parametrize("mode", MODES)
def test_summaries_of_any_mode_compare_with_full_tensors(
    golden: tuple[Path, str], mode: str, tmp_path: Path
) -> None:
    whole, device = golden
    run(tmp_path / "same", device, mode=MODES[mode], keep="summary")
    run(tmp_path / "faulty", device, 0.05, mode=MODES[mode], keep="summary")
    kept = [r.kept for r in Archive(tmp_path / "same").values() if not r.same_as]
    assert Kept.SUMMARY in kept
    same = dumpcmp.compare(whole, tmp_path / "same")
    assert {row.verdict for row in same.rows} <= FINE
    assert any(row.metrics and not row.metrics.equal for row in same.rows) or mode != "compiled"
    assert dumpcmp.compare(whole, tmp_path / "faulty").first_divergence is not None


def test_segments_tell_which_tokens_differ(golden: tuple[Path, str], tmp_path: Path) -> None:
    device = golden[1]
    net, x = Net().to(device), torch.randn(40, 64).to(device)
    for path, shift in (("one", 0.0), ("two", 1.0)):
        kept = Retention("summary", segments=8)
        with dumpcmp.capture(net, tmp_path / path, keep=kept), torch.no_grad():
            moved = x.clone()
            moved[22] += shift
            net(moved)
    outcome = dumpcmp.compare(tmp_path / "one", tmp_path / "two")
    found = [row for row in outcome.rows if row.verdict is Verdict.FAIL]
    assert found and any("rows 20 to 24" in row.judgement.reason for row in found)


def test_checksums_tell_what_is_equal_bit_for_bit(golden: tuple[Path, str], tmp_path: Path) -> None:
    whole, device = golden
    kept = Retention("summary", checksum=True)
    for path, fault in (("one", 0.0), ("two", 0.0), ("other", 1e-6)):
        run(tmp_path / path, device, fault, keep=kept)
    held = [dict(r.stored.attributes) for r in Archive(tmp_path / "one").values() if r.stored]
    assert held and all({"digest", "checksum"} & told.keys() for told in held)
    for golden_path in (tmp_path / "one", whole):
        found = dumpcmp.compare(golden_path, tmp_path / "two").rows
        assert all(row.metrics.equal and row.metrics.exact for row in found if row.metrics)
    other = dumpcmp.compare(tmp_path / "one", tmp_path / "other").rows
    assert any(row.metrics and not row.metrics.equal for row in other)
    with pytest.raises(SelectionError):
        Retention("full", checksum=True)


def test_hashes_and_segments_are_kept_and_handed_to_the_compactor(tmp_path: Path) -> None:
    retention = Retention("summary", hashes=3, segments=5)
    assert {"--hashes=3", "--segments=5"} <= set(retention.command(tmp_path))
    run(tmp_path / "d", "cpu", keep=retention)
    stored = [dict(r.stored.attributes) for r in Archive(tmp_path / "d").values() if r.stored]
    assert stored
    assert {(told["sketch_hashes"], told["segments"]) for told in stored} == {(3, 5)}


@pytest.mark.parametrize(
    "options", [{"hashes": 0}, {"hashes": 9}, {"segments": 257}, {"sketch": 0, "segments": 2}]
)
def test_wishes_that_no_sketch_meets_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SelectionError):
        Retention("summary", **options)


def test_a_summary_leaves_the_storage_of_a_tensor_resizable(tmp_path: Path) -> None:
    net, x = Net(), torch.randn(40, 64)
    with dumpcmp.capture(net, tmp_path / "d", keep="summary"), torch.no_grad():
        net(x)
    x.untyped_storage().resize_(0)  # as FSDP does; a storage that numpy has seen refuses
    assert x.untyped_storage().nbytes() == 0
