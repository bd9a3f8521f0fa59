"""Gradients through memory that was written to: of a whole region of calls at once.

Autograd hands back nothing to a call whose result was written over, or through a view. What a value
led to is run again, writes and all, up to the values whose gradients are known.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import DTYPES, Kind
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import read_arguments
from dumpcmp.replay.holding import hold
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.rating import Rerun
from dumpcmp.replay.running import fitted
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.plain_arguments import plain_arguments
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.quantities import tensor_of

_OUTPUT, _FIRST = "output.0", "value 0"
_MOST_NODES = 64
_UNLIKE = "it is not what the calls give that its value was taken by, writes to memory and all"


@dataclass(frozen=True, slots=True)
class RegionGradient:
    """The gradient of a value, by all that was made of it up to values with known gradients.

    Inputs are ``value 0``, whose gradient it is, the other values that enter, and ``grad N``.
    """

    nodes: tuple[Node, ...]
    values: Mapping[ValueId, str]  # that enter, and the slots in which they do
    ends: Mapping[ValueId, str]
    slot: str

    @property
    def calls(self) -> tuple[Call, ...]:
        """Those of the region."""
        return tuple(node.call for node in self.nodes)

    @property
    def expression(self) -> Hashable:
        """The calls, and what each takes."""
        names: dict[ValueId, str] = dict(self.values)
        told: list[Hashable] = []
        for at, node in enumerate(self.nodes):
            takes = tuple((slot, names.get(value, "")) for slot, value in node.takes.items())
            asked: Hashable = node.own.expression if node.own is not None else (
                node.call.target, plain_arguments(node.call.arguments)
            )  # fmt: skip
            told.append((asked, takes))
            names |= {value: f"{at} {slot}" for slot, value in node.gives.items()}
        ends = tuple((names.get(value, ""), slot) for value, slot in self.ends.items())
        return "region", tuple(told), ends

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradient in float64."""
        made = {value: _known(given[slot]) for value, slot in self.values.items()}
        first = next(value for value, slot in self.values.items() if slot == _FIRST)
        with torch.enable_grad():
            leaf = made[first] = made[first].detach().clone().requires_grad_(True)
            for node in self.nodes:
                outputs = _outputs(node, {slot: made[v] for slot, v in node.takes.items()})
                made |= {v: outputs[slot] for slot, v in node.gives.items() if slot in outputs}
            ends = [
                (made[value], given[slot])
                for value, slot in self.ends.items()
                if value in made and made[value].requires_grad
            ]
            if not ends:
                raise Unreplayable("nothing that it led to depends on it")
            try:
                (found,) = torch.autograd.grad(
                    [end for end, _ in ends], [leaf], [tensor_of(grad) for _, grad in ends]
                )
            except RuntimeError as error:
                raise Unreplayable(f"its backward pass cannot be run again: {error}") from None
        return {_OUTPUT: found}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What was recorded, against what the region gives; it is right, or nobody knows."""
        rerun = Rerun(self.run(given), num_ops=len(self.nodes))
        replay = hold(rerun, _OUTPUT, got)
        return Replay(unknown=_UNLIKE) if replay.is_known and wrong(replay) else replay


def _known(tensor: Tensor) -> Tensor:
    """In float64; memory that nobody has written to holds zeros, which nothing depends on."""
    return tensor_of(torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor)


def _outputs(node: Node, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """What a call gives, in a way that autograd follows."""
    if node.own is not None:
        return node.own.run(given)
    function = function_named(node.call.target)
    arguments = fitted(read_arguments(node.call.arguments, given), given)
    args = list(arguments.args)
    if function.changes_first and args and isinstance(args[0], Tensor):
        args[0] = args[0].clone()
    try:
        result = function.run(*args, **arguments.kwargs)
    except Exception as error:
        raise Unreplayable(f"it cannot be run in float64: {error}") from None
    return dict(slots_of("output", args[0] if function.returns_nothing else result))


@dataclass(eq=False)
class Regions:
    """Finds regions in a program; `gradients` are those of its values."""

    program: Program
    gradients: Mapping[ValueId, ValueId]
    _places: dict[Node, int] = field(init=False)

    def __post_init__(self) -> None:
        self._places = {node: at for at, node in enumerate(self.program.nodes)}

    def node(
        self,
        value: ValueId,
        known: Collection[ValueId],
        slot: str,
        *,
        on_own_rank: bool = True,
        gradient: ValueId | None = None,
    ) -> tuple[int, Node] | None:
        """The node of the gradient of `value`, where the `known` gradients tell it.

        What a collective handed to other ranks counts where it is not `on_own_rank` alone. Another
        `gradient` than that of the value may be meant, which is to be made of it.
        """
        inside, region, ends = {value}, list[Node](), dict[ValueId, str]()
        for node in self.program.nodes:
            if inside.isdisjoint(node.takes.values()) or (on_own_rank and node.rank != value.rank):
                continue
            region.append(node)
            if len(region) > _MOST_NODES:
                return None
            for each in node.gives.values():
                if self.gradients.get(each) in known:
                    ends[each] = f"grad {len(ends)}"
                elif self._is_float(each):
                    inside.add(each)
        if not ends:
            return None
        values = self._entering(value, region)
        takes = {name: each for each, name in values.items()}
        takes |= {name: self.gradients[each] for each, name in ends.items()}
        own = RegionGradient(tuple(region), values, ends, slot)
        asked = self.gradients[value] if gradient is None else gradient
        made = Node(value.rank, region[0].call, takes, {_OUTPUT: asked}, own)
        return self._places[region[0]], made

    def _entering(self, value: ValueId, region: list[Node]) -> dict[ValueId, str]:
        made = {each for node in region for each in node.gives.values()}
        taken = (each for node in region for each in node.takes.values())
        entering = dict.fromkeys((value, *(each for each in taken if each not in made)))
        return {each: f"value {at}" for at, each in enumerate(entering)}

    def _is_float(self, value: ValueId) -> bool:
        dtype = DTYPES.get(self.program.records[value].dtype)
        return dtype is not None and dtype.kind in (Kind.FLOAT, Kind.COMPLEX)
