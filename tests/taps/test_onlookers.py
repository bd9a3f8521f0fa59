"""Code of the program that could see a capture at work: modes, classes of tensors, tracers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

import dumpcmp
from dumpcmp import Archive
from dumpcmp.pytorch.module_trees import ByModule, named_modules_of, named_parameters_of

MODES = ["eager", "fx", "aten"]
by_mode = pytest.mark.parametrize("mode", MODES)


def captured(run: Callable[[], Any], path: Path, **options: Any) -> Any:
    with dumpcmp.capture(None, path, **options):
        return run()


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Seeing(Tensor):
    """A class of tensors that counts what is asked of it."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Seeing.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())


def under_a_mode() -> list[str]:
    made, counting = model(), Counting()
    with counting:
        made(torch.ones(2, 3)).sum().backward()
    return counting.seen


class Modal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.counting = model(), Counting()

    def forward(self, x: Tensor) -> Tensor:
        with self.counting:
            y: Tensor = self.inner(x).sin()
        return y + 1


def with_a_mode_inside() -> list[str]:
    made = Modal()
    made(torch.ones(2, 3))
    made(torch.ones(2, 3))
    return made.counting.seen


def of_a_class() -> list[str]:
    made, x = model(), torch.ones(2, 3).as_subclass(Seeing)
    Seeing.seen.clear()
    made(x)
    return list(Seeing.seen)


def with_weights_of_a_class() -> list[str]:
    made = nn.Linear(3, 3)
    made.weight = nn.Parameter(made.weight.detach().as_subclass(Seeing))
    Seeing.seen.clear()
    made(torch.ones(2, 3))
    return list(Seeing.seen)


LOOKING = [under_a_mode, with_a_mode_inside, of_a_class, with_weights_of_a_class]


@by_mode
@pytest.mark.parametrize("look", LOOKING)
def test_who_looks_on_sees_the_calls_of_the_program_alone(
    look: Callable[[], list[str]], mode: str, tmp_path: Path
) -> None:
    wanted = look()
    assert wanted
    assert captured(look, tmp_path / "d", mode=mode) == wanted
    assert captured(look, tmp_path / "e", mode=mode, backward=True) == wanted


class Shaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.view(x.size(0), -1))
        return y.reshape(x.shape[0] * 2) + x.shape[0]


class Tracing(nn.Module):
    """Traces a part of itself in the middle of its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Shaped()

    def forward(self, x: Tensor) -> Tensor:
        traced = torch.jit.trace(self.part, x)  # type: ignore[no-untyped-call]
        out: Tensor = traced(x) * 2
        return out


def traced_by_jit() -> tuple[list[str], torch.Size]:
    made = torch.jit.trace(Shaped(), torch.ones(2, 3, 2))  # type: ignore[no-untyped-call]
    kinds = [node.kind() for node in made.inlined_graph.nodes()]
    return kinds, made(torch.ones(4, 3, 2)).shape


def traced_in_forward() -> Tensor:
    torch.manual_seed(0)
    out: Tensor = Tracing()(torch.ones(2, 3, 2))
    return out


def traced_to_aten(**options: Any) -> str:
    made = Shaped()
    return make_fx(lambda x: made(x), **options)(torch.ones(2, 3, 2)).code


def traced_symbolically() -> str:
    return traced_to_aten(tracing_mode="symbolic", _allow_non_fake_inputs=True)


def traced_by_fx() -> str:
    return torch.fx.symbolic_trace(nn.Sequential(Modal().inner, nn.Sequential(nn.ReLU()))).code


def exported() -> str:
    return str(torch.export.export(Shaped(), (torch.ones(2, 3, 2),)).graph)


TRACERS = [
    traced_by_jit, traced_in_forward, traced_to_aten, traced_symbolically, traced_by_fx, exported,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@by_mode
@pytest.mark.parametrize("trace", TRACERS)
def test_a_program_may_trace_itself(trace: Callable[[], Any], mode: str, tmp_path: Path) -> None:
    wanted = trace()
    got = captured(trace, tmp_path / "d", mode=mode)
    assert torch.equal(got, wanted) if isinstance(wanted, Tensor) else got == wanted


def test_what_a_program_traces_itself_is_not_recorded_and_said_to_be_missing(
    tmp_path: Path,
) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        captured(traced_to_aten, tmp_path / "d")
    assert any("traced itself" in str(each.message) for each in said)


class Cyclic(nn.Module):
    def forward(self, given: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {"y": given["x"] + 1, "taken": given}
        out["all"] = [out]
        return out


@dataclass
class Linked:
    """A list that is as deep as it is long."""

    value: Tensor
    rest: Linked | None = None


@dataclass(eq=True)
class Unwilling(Mapping[str, Tensor]):
    """A container whose parts nobody may ask for."""

    held: Tensor
    asked: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Tensor:
        raise OSError("mine")

    def __iter__(self) -> Iterator[str]:
        raise OSError("mine")

    def __len__(self) -> int:
        return 1


@by_mode
def test_containers_may_hold_themselves(mode: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"x": torch.ones(2)}
    given["self"] = given
    out = captured(lambda: Cyclic()(given), tmp_path / "d", mode=mode)
    assert out["all"][0] is out
    assert out["taken"] is given
    slots = {key.slot for key in Archive(tmp_path / "d") if key.op == "<root>"}
    assert slots == {"input.0.x", "output.y", "output.taken.x"}


@by_mode
def test_containers_may_be_deep_and_unwilling(mode: str, tmp_path: Path) -> None:
    class Holding(nn.Module):
        def forward(self, linked: Linked, unwilling: Unwilling) -> Linked:
            return Linked(linked.value + unwilling.held, linked)

    linked = Linked(torch.zeros(1))
    for _ in range(600):
        linked = Linked(torch.zeros(1), linked)
    out = captured(lambda: Holding()(linked, Unwilling(torch.ones(1))), tmp_path / "d", mode=mode)
    assert out.rest is linked
    slots = {key.slot for key in Archive(tmp_path / "d") if key.op == "<root>"}
    assert sum(slot.startswith("input.0") for slot in slots) == 601


class Unhashable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def __eq__(self, other: object) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@by_mode
def test_modules_need_no_hash(mode: str, tmp_path: Path) -> None:
    def run() -> list[float]:
        made = nn.Sequential()
        made.add_module("one", Unhashable())
        made.add_module("other", Unhashable())
        out: Tensor = Unhashable()(made(torch.ones(2)))
        out.sum().backward()  # type: ignore[no-untyped-call]
        return out.tolist()

    assert captured(run, tmp_path / "d", mode=mode, backward=True) == [1.0, 1.0]
    archive = Archive(tmp_path / "d")
    assert archive.models == ("Sequential", "Unhashable")
    assert {"one", "other"} <= {key.op.partition("/")[0] for key in archive}


def test_modules_are_met_in_torchs_order() -> None:
    made = nn.Transformer(8, 2, 1, 1)
    made.again = made.encoder
    assert [(p, id(m)) for p, m in named_modules_of(made)] == [
        (p, id(m)) for p, m in made.named_modules()
    ]
    assert [p for p, _ in named_parameters_of(made)] == [p for p, _ in made.named_parameters()]


def test_what_is_known_of_a_module_ends_with_it() -> None:
    known, one, other = ByModule[str](), nn.ReLU(), nn.ReLU()
    known.set(one, "one")
    known.set(other, "other")
    known.set(one, "latest")
    assert known.values() == ["other", "latest"]
    del one
    assert known.values() == ["other"]
    assert known.get(other) == "other"
    assert known.get(nn.ReLU()) is None
