"""What twins show of fused kernels, when they are not trusted, and what they leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import CaptureWarning
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import PairedBy, Verdict
from dumpcmp.taps.inductor import twin
from dumpcmp.taps.inductor.single_calls import unrepeatable
from tests.taps.inductor.conftest import run
from tests.taps.inductor.models import ATEN, net


def records(path: Path) -> dict[Key, Record]:
    archive = Archive(path)
    return {key: archive[key] for key in archive}


def twins(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = Archive(path).run[0]["run"]["twins"]
    return facts


def dumped(path: Path, planted: AbstractContextManager[Any] | None = None, **way: Any) -> Path:
    model, x = net()
    with planted or nullcontext(), dumpcmp.capture(model, path, mode=dumpcmp.Compiled(**way)):
        run(model, x)
    return path


def test_a_twin_adds_what_kernels_do_not_store(tmp_path: Path) -> None:
    plain = records(dumped(tmp_path / "plain", twin=False))
    seen = records(dumped(tmp_path / "seen"))
    assert {key for key, record in seen.items() if not record.is_twin} == set(plain)
    assert all(record.is_twin for key, record in seen.items() if key not in plain)
    assert all(seen[key].digest == record.digest for key, record in plain.items())
    assert twins(tmp_path / "seen")["other"] == 0


def test_a_backend_has_twins_too(tmp_path: Path) -> None:
    model, x = net()
    with dumpcmp.compiled_backend(tmp_path / "d") as backend:
        run(torch.compile(model, backend=backend), x)
    assert twins(tmp_path / "d")["same"] > 0
    assert any(record.is_twin for record in records(tmp_path / "d").values())


def test_rows_say_that_a_twin_saw_them(golden: Any, tmp_path: Path) -> None:
    outcome = dumpcmp.compare(golden(False), dumped(tmp_path / "d"))
    by_op = {str(row.key.op): row for row in outcome.rows if row.key.slot == "output.0"}
    assert by_op["<root>/sub"].paired_by is PairedBy.TWIN
    assert by_op["head/linear"].paired_by is PairedBy.PROVENANCE


@contextmanager
def differs_when_lowered_again() -> Iterator[None]:
    """A compiler that multiplies by another constant whenever it lowers a graph once more."""
    from torch._inductor import config, lowering

    right, constants = lowering.lowerings[ATEN.mul.Tensor], iter((0.5, 0.55))

    def wrong(a: Any, b: Any) -> Any:
        return right(a, next(constants) if b == 0.5 else b)

    lowering.lowerings[ATEN.mul.Tensor] = wrong
    try:
        with config.patch(force_disable_caches=True):
            yield
    finally:
        lowering.lowerings[ATEN.mul.Tensor] = right


def test_a_twin_that_gives_other_bits_is_not_trusted(golden: Any, tmp_path: Path) -> None:
    path = dumped(tmp_path / "d", differs_when_lowered_again())
    assert twins(path)["other"] == 1  # the kernel of the last ops; the others agree
    outcome = dumpcmp.compare(golden(False), path)
    by_op = {str(row.key.op): row.verdict for row in outcome.rows if row.key.slot == "output.0"}
    assert by_op["<root>/sub"] is by_op["<root>/relu"] is Verdict.FUSED
    assert by_op["<root>/mul"] is Verdict.PASS  # which the kernel itself stores
    assert by_op["blocks.0.mlp/tanh"] is Verdict.PASS


class Restless(nn.Module):
    """Draws random numbers, and changes its own state in place."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6, bias=False)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x[0]
        return F.dropout(self.inner(x).sin(), 0.5, self.training) * self.seen


def steps(path: Path | None) -> list[Tensor]:
    """Two training steps, and all that they leave behind."""
    torch.manual_seed(3)
    model, left = Restless(), list[Tensor]()
    captured = dumpcmp.capture(model, path, mode="compiled", backward=True) if path else None
    called: Any = model if path else torch.compile(model)
    with captured or nullcontext():
        for _ in range(2):
            out = called(torch.randn(5, 6))
            out.sum().backward()
            left.append(out.detach())
    left += [p.grad for p in model.parameters() if p.grad is not None]
    return [*left, *model.buffers(), torch.get_rng_state()]


def test_a_twin_leaves_state_and_random_numbers_alone(tmp_path: Path) -> None:
    alone, watched = steps(None), steps(tmp_path / "d")
    assert twins(tmp_path / "d")["same"] > 0
    assert len(alone) == len(watched)
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))


@torch.library.custom_op("dumpcmp_tests::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    counted.calls += 1  # type: ignore[attr-defined]
    return x + 1


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        called: Tensor = counted(x.sin().cos())
        return called.exp().tanh()


def test_what_may_do_more_than_compute_runs_once(tmp_path: Path) -> None:
    counted.calls = 0  # type: ignore[attr-defined]
    model = Counting()
    with dumpcmp.capture(model, tmp_path / "d", mode="compiled"):
        model(torch.ones(4))
    assert counted.calls == 1  # type: ignore[attr-defined]
    facts = twins(tmp_path / "d")
    assert (facts["same"], facts["other"], facts["problems"]) == (2, 0, {})
    twin_only = [key for key, record in records(tmp_path / "d").items() if record.is_twin]
    assert {key.op.function for key in twin_only} >= {"sin", "exp"}


@torch.library.custom_op("dumpcmp_tests::marked", mutates_args=("x",))
def marked(x: Tensor) -> None:
    x.add_(1)


@pytest.mark.parametrize("op, called", [("marked", True), ("counted", False)])
def test_an_op_that_writes_or_is_not_called_as_it_stands_has_no_twin(
    op: str, called: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = getattr(torch.ops.dumpcmp_tests, op).default
    monkeypatch.setattr(torch._inductor.lowering, "fallbacks", {target} if called else set())
    graph = fx.Graph()
    graph.call_function(target, (graph.placeholder("x"),))
    assert unrepeatable(graph) == f"dumpcmp_tests.{op}.default may do more than compute"


def test_a_twin_that_fails_is_told_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError("no room for a twin")

    monkeypatch.setattr(twin, "load_code", refuse)
    with pytest.warns(CaptureWarning, match="no room for a twin"):
        dumped(tmp_path / "d")
    assert twins(tmp_path / "d")["same"] == 0
    assert not any(record.is_twin for record in records(tmp_path / "d").values())
