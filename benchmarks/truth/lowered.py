"""Faults of a compiler: what Inductor makes of one op is wrong, whatever kernel that ends in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from benchmarks.truth.bound import Introduced
from benchmarks.truth.kinds import (
    Kind,
    Planned,
    Struck,
    computes,
    has_heads,
    in_own_dtype,
    planned,
)
from benchmarks.truth.planting import Fault, fault_at
from benchmarks.truth.watching import Answer, Seen, Site
from dumpcmp.nouns.key import ROOT
from dumpcmp.taps.recording.functions import function_of

Index = list[Any]  # sympy expressions, one for each dim
Load = Callable[[Index], Any]
Change = Callable[[Load, Index, Index], Any]  # of a load, the index and the size of the output


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kind of fault in both worlds: on a tensor, and on the expression of one element."""

    kind: Kind
    change: Change


def _ops() -> Any:
    from torch._inductor.virtualized import ops

    return ops


def scaled(factor: float) -> Lowered:
    def change(load: Load, index: Index, _: Index) -> Any:
        return _ops().mul(load(index), _ops().constant(1 + factor, torch.float32))

    def strike(struck: Struck) -> Tensor:
        return struck.wide * (1 + factor)

    return Lowered(Kind(f"scale {1 + factor}", strike, computes), change)


def _where(dim: Any, place: int, there: Any, elsewhere: Any) -> Any:
    ops = _ops()
    here = ops.eq(ops.index_expr(dim, torch.int64), ops.constant(place, torch.int64))
    return ops.where(here, there, elsewhere)


def _row_change(load: Load, index: Index, size: Index) -> Any:
    place, other = _rows(int(size[-2]))
    return _where(index[-2], place, load([*index[:-2], other, index[-1]]), load(index))


def _row_strike(struck: Struck) -> Tensor:
    out = struck.output.clone()
    place, other = _rows(out.shape[-2])
    out[..., place, :] = struck.output[..., other, :]
    return out


def _rows(num: int) -> tuple[int, int]:
    return num // 2, (num // 2 + 3) % num


def _shift_change(load: Load, index: Index, size: Index) -> Any:
    before = (index[-2] + size[-2] - 1) % size[-2]
    return load([*index[:-2], before, index[-1]])


def _sign_change(load: Load, index: Index, size: Index) -> Any:
    ops, value = _ops(), load(index)
    first = ops.lt(
        ops.index_expr(index[-1], torch.int64), ops.constant(int(size[-1]) // 4, torch.int64)
    )
    return ops.where(first, ops.neg(value), value)


def _sign_strike(struck: Struck) -> Tensor:
    out = struck.output.clone()
    out[..., : out.shape[-1] // 4] *= -1
    return out


LOWERED = (
    scaled(2**-6),
    scaled(2**-9),
    Lowered(Kind("one row of each", _row_strike, in_own_dtype), _row_change),
    Lowered(Kind("shifted sequence", lambda s: s.output.roll(1, -2), in_own_dtype), _shift_change),
    Lowered(Kind("sign of a head", _sign_strike, has_heads), _sign_change),
)


# Which node of a graph computes what an op gives


def sites_of(graph: fx.Graph) -> dict[Site, fx.Node]:
    """The node that gives the result of each function that the graph still tells apart."""
    groups: dict[tuple[str, str, str], fx.Node] = {}
    for node in graph.nodes:
        source = (node.meta.get("source_fn_stack") or [None])[-1]
        if node.op == "call_function" and source is not None:
            place = module_of(node), _function(source[1]), source[0]
            if place not in groups or not is_view(node):
                groups[place] = node  # the last one that computes wins
    calls: Counter[tuple[str, str]] = Counter()
    found = {}
    for (module, name, _), node in groups.items():
        found[Site(module, name, calls[module, name])] = node
        calls[module, name] += 1
    return found


def is_view(node: fx.Node) -> bool:
    """Whether a node only shows what another one computed, such as the rows of a product."""
    words = ("view", "reshape", "permute", "transpose", "expand", "squeeze", "unsqueeze", "alias")
    return any(word in str(node.target) for word in words)


# A graph has some modules as one op; captures name the function that each of them runs.
_MODULES = {"Linear": "linear", "Conv1d": "conv1d", "Conv2d": "conv2d", "Embedding": "embedding",
            "LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm",
            "BatchNorm2d": "batch_norm"}  # fmt: skip


def _function(source: Any) -> str:
    """What a capture calls the function, method or module that a node was traced from."""
    if isinstance(source, str):
        return source
    if isinstance(source, type):
        return _MODULES.get(source.__name__, source.__name__)
    return function_of(source).name


def module_of(node: fx.Node) -> str:
    """The module that `node` was traced in, as captures name it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    path = re.sub(r"^L\['\w+'\]\.?|^self\.?", "", path)
    path = re.sub(r"_modules\['([^']*)'\]|\['([^']*)'\]", r"\1\2", path)
    return path.removeprefix("__self__").strip(".") or ROOT


@contextmanager
def mislowered(site: Site, change: Change, struck: list[str]) -> Iterator[None]:
    """Have Inductor compute `change` of what it should for the op at `site`."""
    from torch._functorch import config as functorch
    from torch._inductor import config, ir
    from torch._inductor.graph import GraphLowering

    right = GraphLowering.call_function
    chosen: dict[int, fx.Node | None] = {}

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        result, node = right(self, target, args, kwargs), self.current_node
        if id(node.graph) not in chosen:
            chosen[id(node.graph)] = sites_of(node.graph).get(site)
        if node is not chosen[id(node.graph)] or not isinstance(result, ir.TensorBox):
            return result
        struck.append(str(node))
        return _changed(ir, result, change)

    with ExitStack() as stack:
        stack.enter_context(config.patch(fx_graph_cache=False))
        stack.enter_context(functorch.patch(enable_autograd_cache=False))
        GraphLowering.call_function = call_function
        stack.callback(partial(setattr, GraphLowering, "call_function", right))
        yield


def _changed(ir: Any, result: Any, change: Change) -> Any:
    result.realize()
    load, size = result.make_loader(), result.get_size()
    made = ir.Pointwise.create(
        device=result.get_device(),
        dtype=result.get_dtype(),
        inner_fn=lambda index: change(load, list(index), size),
        ranges=size,
    )
    made.realize()
    return made


def compiler_fault(plan: Planned, change: Change, introduced: list[Introduced]) -> Fault:
    """A fault of the compiler at one call; what it introduces was measured eagerly."""
    struck: list[str] = []

    @contextmanager
    def plant(model: nn.Module, answer: Answer) -> Iterator[None]:  # noqa: ARG001
        with mislowered(plan.seen.site, change, struck):
            yield
        if not struck:
            introduced.clear()  # the compiler has no such op: nothing was planted

    return Fault(f"compiler: {plan.kind.name}", frozenset([str(plan.seen.site)]),
                 frozenset([plan.seen.site.module]), plant, found=introduced)  # fmt: skip


def compiler_faults(seen: list[Seen], seed: str, run: Callable[[Fault], None]) -> Iterator[Fault]:
    """One fault of each lowered kind, at calls that `seed` chooses.

    `run` runs the model eagerly with a fault, which tells what it introduces.
    """
    once = [one for one in seen if "@" not in one.site.scope]
    for each in LOWERED:
        for plan in planned(once, "float32", seed, (each.kind,)):
            eager = fault_at(plan)
            run(eager)
            yield compiler_fault(plan, each.change, eager.found)
