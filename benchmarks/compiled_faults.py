"""Faults planted into Inductor while it compiles the demo decoder: which op a comparison names."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor import config, lowering

import dumpcmp
from benchmarks.compiled import Case
from benchmarks.tables import Table
from dumpcmp.dumping.programs import dump

ATEN = torch.ops.aten
Change = Callable[[fx.Graph, fx.Node], None]


@dataclass(frozen=True)
class Fault:
    """What the compiler does wrong, and the op at which it does."""

    name: str
    op: str
    plant: Callable[[], AbstractContextManager[Any]]
    backward: bool = False


def module_of(node: fx.Node) -> str:
    """The module that `node` was traced in: "layers.1.mlp"."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next((path for path, _ in reversed(stack.values())), "")
    return re.sub(r"^.*?(?=layers|$)", "", path)


def in_graph(
    target: Any, module: str, change: Change, which: int = 0, backward: bool = False
) -> Callable[[], AbstractContextManager[Any]]:
    """Plant `change` of one node into the post-grad graphs."""

    def rewrite(graph: fx.Graph) -> None:
        if backward != any(node.name.startswith("tangents") for node in graph.nodes):
            return
        calls = graph.find_nodes(op="call_function", target=target)
        found = [node for node in calls if module_of(node) == module]
        if found:
            change(graph, found[which])

    return lambda: config.patch(post_grad_custom_pre_pass=rewrite, force_disable_caches=True)


def becomes(target: Any) -> Change:
    def change(_: fx.Graph, node: fx.Node) -> None:
        node.target = target

    return change


def is_left_out(keeping: int) -> Change:
    def change(graph: fx.Graph, node: fx.Node) -> None:
        kept = node.args[keeping]
        assert isinstance(kept, fx.Node)
        node.replace_all_uses_with(kept)
        graph.erase_node(node)

    return change


def swaps(_: fx.Graph, node: fx.Node) -> None:
    """Replace a + b by b - a."""
    node.target, node.args = ATEN.sub.Tensor, node.args[::-1]


@contextmanager
def wrong_eps() -> Iterator[None]:
    """A lowering of addition that takes every small constant for a thousand times as much."""
    right = lowering.lowerings[ATEN.add.Tensor]

    def wrong(a: Any, b: Any, **rest: Any) -> Any:
        small = isinstance(b, float) and 0 < b < 1e-4
        return right(a, 1000 * b if small else b, **rest)

    lowering.lowerings[ATEN.add.Tensor] = wrong
    try:
        with config.patch(force_disable_caches=True):
            yield
    finally:
        lowering.lowerings[ATEN.add.Tensor] = right


MUL, ADD, MLP, ATTN, NORM = (
    ATEN.mul.Tensor, ATEN.add.Tensor, "layers.1.mlp", "layers.1.attn", "layers.1.mlp_norm",
)  # fmt: skip
FAULTS = (
    Fault("mul becomes add", f"{MLP}/mul#0", in_graph(MUL, MLP, becomes(ADD), which=-1)),
    Fault("residual is dropped", "layers.1/add#0", in_graph(ADD, "layers.1", is_left_out(1))),
    Fault("rotary: add becomes swapped sub", f"{ATTN}/add#0", in_graph(ADD, ATTN, swaps)),
    Fault("rotary: neg is dropped", f"{ATTN}/neg#0",
          in_graph(ATEN.neg.default, ATTN, is_left_out(0))),
    Fault("norm: scale is added", f"{NORM}/mul#1", in_graph(MUL, NORM, becomes(ADD), which=-1)),
    Fault("norm: rsqrt becomes sqrt", f"{NORM}/rsqrt#0",
          in_graph(ATEN.rsqrt.default, NORM, becomes(ATEN.sqrt.default))),
    Fault("lowering: eps is 1000 times as large", "layers.0.attn_norm/add#0", wrong_eps),
    Fault("backward only: mul becomes add", f"{MLP}/mul#0",
          in_graph(MUL, MLP, becomes(ADD), backward=True), backward=True),
)  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "--no-twin": {"twin": False},
    "--realize": {"realize": True},
}


def named(fault: Fault | None, dtype: torch.dtype, way: dict[str, Any], golden: Path) -> str:
    """The op that a comparison names for `fault`, or for a sound compiler."""
    backward = fault.backward if fault else True
    step = Case("demo decoder", dtype, backward, "").subject().step
    with tempfile.TemporaryDirectory() as room:
        with fault.plant() if fault else config.patch(force_disable_caches=True):
            dumped = dump(step, Path(room, "d"), mode=dumpcmp.Compiled(**way), backward=backward)
        if dumped.error is not None:
            raise dumped.error
        found = dumpcmp.compare(golden, Path(room, "d")).first_divergence
    return "nothing" if found is None else f"{found.key.op}#{found.key.call}"


def rows() -> Iterator[list[str]]:
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory() as room:
            golden = {backward: Path(room, str(backward)) for backward in (False, True)}
            for backward, path in golden.items():
                step = Case("demo decoder", dtype, backward, "").subject().step
                dump(step, path, mode="fx", backward=backward)
            for fault in (None, *FAULTS):
                backward = fault.backward if fault else True
                told = [named(fault, dtype, way, golden[backward]) for way in WAYS.values()]
                expected = fault.op if fault else "nothing"
                kind = "bf16" if dtype is torch.bfloat16 else "fp32"
                marks = ["exact" if op == expected else op for op in told]
                yield [fault.name if fault else "a sound compiler", kind, expected, *marks]


def table() -> Table:
    found = []
    for row in rows():
        found.append(row)
        print("| " + " | ".join(row) + " |", file=sys.stderr, flush=True)
    how = "The demo decoder, 2 layers, CPU; golden is an FX dump. Named is the first divergence."
    return Table("compiled-faults", ("fault", "run", "planted at", *WAYS), found, how)
