"""Plants one fault below a capture, and notes what it introduced where it struck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from benchmarks.truth.bound import Introduced, introduced, measured
from benchmarks.truth.kinds import Planned, Struck, wrong
from benchmarks.truth.noise import is_float, widened
from benchmarks.truth.watching import (
    Answer,
    Args,
    Kwargs,
    Run,
    Seen,
    Site,
    below,
    flat,
    mapped,
    rebuilt,
)


class Plant(Protocol):
    """Has a fault strike `model` while the block runs; `answer` computes what it spares.

    None as answer stands for a compiler, which no mode may stand in the way of.
    """

    def __call__(self, model: nn.Module, answer: Any) -> AbstractContextManager[None]: ...


@dataclass(slots=True)
class Fault:
    """What is wrong in a target, where a comparison should find it, and whether it can."""

    name: str
    ops: frozenset[str]  # "layers.1.mlp/linear#0": naming any of them is exact
    modules: frozenset[str]
    plant: Plant
    backward: bool = False  # the target runs a backward pass, too
    in_gradient: bool = False  # only gradients are wrong
    certain: str = ""  # "leaf" or "call": it can be told without arithmetic
    aliases: frozenset[str] = frozenset()  # values that nothing tells from the one that is wrong
    found: list[Introduced] = field(default_factory=list)

    @property
    def detectable(self) -> bool:
        return bool(self.certain) or any(one.detectable for one in self.found)

    @property
    def evidence(self) -> str:
        return self.certain or "; ".join(map(str, self.found)) or "it never struck"


def fault_at(plan: Planned, backward: bool = False) -> Fault:
    """A function whose result is wrong."""
    found: list[Introduced] = []
    site, kind = plan.seen.site, plan.kind

    def plant(model: nn.Module, answer: Answer) -> AbstractContextManager[None]:
        earlier: dict[tuple[Any, ...], Tensor] = {}

        def struck(here: Site, func: Run, args: Args, kwargs: Kwargs) -> Any:
            given = mapped(_kept, (args, kwargs)) if here == site else None
            right = answer(here, func, args, kwargs)
            if given is None:
                return _remembered(earlier, here, right)
            got = wrong(_struck(here, func, given, right, earlier), kind)
            found.append(introduced(func, given[0], given[1], here.function, right, got))
            return _with_history(right, got)

        return below(model, struck)

    return Fault(kind.name, frozenset([str(site)]), frozenset([site.module]), plant, backward,
                 found=found)  # fmt: skip


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _struck(site: Site, func: Run, given: Any, right: Any, earlier: dict[Any, Tensor]) -> Struck:
    plain = mapped(lambda x: x.detach() if isinstance(x, Tensor) else x, right)
    made = Struck(func, given[0], given[1], site.function, plain)
    made.before = earlier.get((site.function, tuple(made.output.shape)))
    return made


def _remembered(earlier: dict[Any, Tensor], site: Site, right: Any) -> Any:
    for leaf in flat(right):
        if is_float(leaf):
            earlier[(site.function, tuple(leaf.shape))] = leaf.detach().clone()
            break
    return right


def _with_history(right: Any, got: Any) -> Any:
    """The wrong numbers, with the gradients that the right ones have."""
    if isinstance(right, Tensor):
        if not (right.requires_grad and is_float(right)):
            return got
        return _Replaced.apply(right, got)  # type: ignore[no-untyped-call]
    leaves = [_with_history(a, b) for a, b in zip(right, got, strict=True)]
    return leaves if isinstance(right, list) else rebuilt(right, leaves)


class _Replaced(torch.autograd.Function):
    """Gives other numbers forward, and hands gradients through."""

    @staticmethod
    def forward(ctx: Any, right: Tensor, got: Tensor) -> Tensor:  # noqa: ARG004
        return got.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004
        return grads[0], None


# Gradients


class _Bent(torch.autograd.Function):
    """Hands a tensor through, and a wrong gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bend: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.bend = bend
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.bend(grads[0]), None


def gradient_fault(plan: Planned) -> Fault:
    """A function whose result is right, and whose gradients are not."""
    found: list[Introduced] = []
    site, kind = plan.seen.site, plan.kind

    def plant(model: nn.Module, answer: Answer) -> AbstractContextManager[None]:
        def struck(here: Site, func: Run, args: Args, kwargs: Kwargs) -> Any:
            right = answer(here, func, args, kwargs)
            if here != site or not (isinstance(right, Tensor) and right.requires_grad):
                return right
            given = mapped(_kept, (args, kwargs))

            def bend(grad: Tensor) -> Tensor:
                other = wrong(Struck(torch.clone, (grad,), {}, "clone", grad), kind)
                found.extend(pulled_back(func, *given, grad, other, args, kwargs))
                return other  # type: ignore[no-any-return]

            return _Bent.apply(right, bend)  # type: ignore[no-untyped-call]

        return below(model, struck)

    return Fault(f"backward only: {kind.name}", frozenset([str(site)]), frozenset([site.module]),
                 plant, backward=True, in_gradient=True, found=found)  # fmt: skip


def pulled_back(
    func: Run, args: Args, kwargs: Kwargs, right: Tensor, bent: Tensor, *real: Any
) -> Iterator[Introduced]:
    """What each input's gradient becomes by a bent gradient, beside what it should be."""
    asks = [x.requires_grad for x in flat(real) if is_float(x)]
    wide = mapped(widened, (args, kwargs))
    leaves = [x for x in flat(wide) if is_float(x)]
    wanted = [x.requires_grad_() for x, asked in zip(leaves, asks, strict=True) if asked]
    with torch.enable_grad():
        out = func(*wide[0], **wide[1])
    ours = torch.autograd.grad(out, wanted, right.double(), retain_graph=True)
    theirs = torch.autograd.grad(out, wanted, bent.double())
    for exact, other in zip(ours, theirs, strict=True):
        yield measured(exact, other.to(right.dtype), 8.0)


# A model that was changed before it ran


def edited(
    name: str, certain: str, seen: list[Seen], edit: Callable[[nn.Module], None], **facts: Any
) -> Fault:
    """A fault of the model itself; `seen` are the calls that may be named for it."""

    @contextmanager
    def plant(model: nn.Module, answer: Answer | None) -> Iterator[None]:
        edit(model)
        with below(model, answer) if answer is not None else nullcontext():
            yield

    ops = frozenset(str(one.site) for one in seen)
    modules = frozenset(one.site.module for one in seen)
    return Fault(name, ops, modules, plant, certain=certain, **facts)
