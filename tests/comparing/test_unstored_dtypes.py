"""Values of types that are not stored: each is a row that says so, and all others are compared."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive, Conclusion
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.row import Verdict

CAST = ("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "complex32")
VIEWED = ("float4_e2m1fn_x2", "bits8")
QUANTISED = ("qint8",)
NAMES = [name for name in (*CAST, *VIEWED, *QUANTISED) if hasattr(torch, name)]


def converted(x: Tensor, name: str) -> Tensor:
    """`x` as elements of a type, as far as torch converts to it."""
    dtype = getattr(torch, name)
    if name in QUANTISED:
        return torch.quantize_per_tensor(x, 0.1, 0, dtype)
    return x.to(torch.uint8).view(dtype) if name in VIEWED else x.to(dtype)


def restored(x: Tensor, name: str) -> Tensor:
    if name in QUANTISED:
        return x.dequantize()
    if name == "complex32":
        return torch.view_as_real(x)[..., 0].float()
    return x.view(torch.uint8).float() if name in VIEWED else x.float()


class Net(nn.Module):
    """Computes with a buffer of a type, and with what it converts to that type itself."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.name = nn.Linear(4, 4), nn.Linear(4, 4), name
        self.register_buffer("scale", converted(torch.ones(4), name))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x) + restored(self.scale, self.name)  # type: ignore[arg-type]
        rounded = restored(converted(y.detach().abs(), self.name), self.name)
        return torch.tanh(self.last(y + rounded))


@pytest.mark.each_value_once
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: quantised and half complex tensors
@pytest.mark.parametrize("mode", ["eager", "aten"])
@pytest.mark.parametrize("name", NAMES)
def test_the_rest_is_compared(name: str, mode: str, tmp_path: Path) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    expected = Net(name)(x)
    for run in ("golden", "same", "other"):
        model = Net(name)
        with torch.no_grad():
            model.last.bias[0] += run == "other"
        with dumpcmp.capture(model, tmp_path / run, mode=mode, backward=True):
            given = model(x)
            given.sum().backward()
        assert run == "other" or torch.equal(given, expected)
    archive = Archive(tmp_path / "golden")
    unstored = [record for record in archive.values() if record.kept is Kept.NOTHING]
    assert {record.dtype for record in unstored} == {name}
    same = dumpcmp.compare(tmp_path / "golden", tmp_path / "same")
    assert same.conclusion is Conclusion.UNKNOWN, same
    rows = [row for row in same.rows if row.verdict is not Verdict.PASS]
    assert rows and all(row.verdict is Verdict.ERROR for row in rows)
    assert all("golden is not stored: " in row.reason for row in rows)
    assert f"{len(rows)} values could not be judged" in same.headline
    other = dumpcmp.compare(tmp_path / "golden", tmp_path / "other")
    assert other.headline.startswith("DIFFERENT PROGRAM at last "), other.headline


def test_a_value_that_is_not_stored_is_suspected_where_nothing_else_explains(
    tmp_path: Path,
) -> None:
    """What is computed from it differs, and nobody knows whether it does itself: nobody saw it."""
    for run in ("golden", "target"):
        model = Net("float8_e5m2fnuz")
        model.scale.view(torch.uint8)[0] += run == "target"  # type: ignore[operator]
        with dumpcmp.capture(model, tmp_path / run), torch.no_grad():
            model(torch.ones(1, 4))
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.conclusion is dumpcmp.Conclusion.UNKNOWN, outcome.headline
    assert "float8_e5m2fnuz cannot be stored" in outcome.headline


class Scaled(nn.Module):
    """Multiplies by a buffer of any dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.to(torch.float32)  # type: ignore[operator]


def test_one_side_alone_may_have_such_a_type(tmp_path: Path) -> None:
    """All that is computed from the buffer agrees: it is not known to be another."""
    for run, dtype in (("golden", torch.float32), ("target", torch.float8_e4m3fnuz)):
        model = Scaled(dtype)
        with dumpcmp.capture(model, tmp_path / run), torch.no_grad():
            model(torch.ones(2, 4))
    for sides in (("golden", "target"), ("target", "golden")):
        outcome = dumpcmp.compare(*(tmp_path / side for side in sides))
        assert outcome.conclusion is Conclusion.UNKNOWN, outcome.headline
        assert {row.verdict for row in outcome.failures} == {Verdict.ERROR}
