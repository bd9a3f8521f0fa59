"""Holds the backward pass of an op, as the program runs it, against the same in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.pytorch.nodes import SlotGrads, device_of
from dumpcmp.pytorch.trees import Slots
from dumpcmp.replay.backward import GRADIENT, BackwardRerun, Slope
from dumpcmp.replay.chains import At, Chain
from dumpcmp.replay.holding import hold
from dumpcmp.taps.recording.functions import leaves_unwritten

UNSEEN = (
    "a kernel of its own computes it, and not a function of torch: make it a custom op, and "
    'register what it computes: dumpcmp.reference("mylib::op")'
)
STRAIGHT = "it hands its gradient straight through, whatever it computes"


@dataclass(frozen=True, slots=True)
class Passed:
    """Calls whose backward pass can be run again: one, or those inside of a custom Function.

    `takes` are the inputs, by call and slot, that each differentiable argument is; `gives` the
    outputs that the results are.
    """

    calls: Sequence[Call]
    given: Mapping[At, Tensor]
    takes: Mapping[str, Sequence[At]]
    gives: Mapping[str, At]
    wires: Mapping[At, At] = field(default_factory=dict)
    dtypes: Mapping[At, torch.dtype] = field(default_factory=dict)

    def held(self, given: SlotGrads, made: SlotGrads) -> list[tuple[str, Replay]]:
        """What the gradients that were `made` differ in from those that follow from `given`."""
        if not self.calls:
            unseen = Replay(unknown=UNSEEN)
            return [(f"grad_{slot}", unseen) for slot in made]
        return [(f"grad_{slot}", self._held(slot, given, made[slot])) for slot in made]

    def _held(self, slot: str, given: SlotGrads, got: Tensor) -> Replay:
        try:
            return _held(self._again(slot, given), got, list(given.values()))
        except DumpcmpError as error:
            return Replay(unknown="; ".join(filter(None, (error.message, error.hint))))

    def _again(self, slot: str, given: SlotGrads) -> BackwardRerun:
        grads = {self.gives[name]: grad for name, grad in given.items() if name in self.gives}
        region = Chain(self.calls, self.wires, self.dtypes)
        slope = Slope(region, self.given, self.takes.get(slot, ()), grads)
        return BackwardRerun(slope, device=device_of(given.values()))


def _held(again: BackwardRerun, got: Tensor, given: Sequence[Tensor]) -> Replay:
    replay = hold(again.plain(), GRADIENT, got)
    for is_moved in (False, True):
        if replay.is_known and wrong(replay):
            replay = hold(again.rated(is_moved=is_moved), GRADIENT, got)
    if replay.is_known and wrong(replay) and any(_is_same(got, grad) for grad in given):
        return Replay(unknown=STRAIGHT)
    return replay


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def of_one(call: Call, given: Mapping[str, Tensor], took: Slots, gave: Slots) -> Passed:
    """The backward pass of one call; `took` are its inputs as they were given."""
    takes: dict[str, list[At]] = {}
    firsts: dict[int, str] = {}
    for slot, tensor in took:
        if tensor.requires_grad:
            takes.setdefault(firsts.setdefault(id(tensor), slot), []).append((0, slot))
    return Passed(
        (call,),
        {(0, slot): tensor for slot, tensor in given.items()},
        takes,
        {slot: (0, slot) for slot, _ in gave},
        dtypes={(0, slot): tensor.dtype for slot, tensor in gave},
    )


class InnerCalls:
    """The calls that ran inside of a custom Function while it computed its result."""

    def __init__(self, took: Slots) -> None:
        self._taken = took
        self._took = {id(tensor): slot for slot, tensor in took if tensor.requires_grad}
        self._alive: list[object] = [took]  # so that no other tensor gets the id of one of these
        self._calls: list[Call] = []
        self._given: dict[At, Tensor] = {}
        self._takes: dict[str, list[At]] = {}
        self._wires: dict[At, At] = {}
        self._dtypes: dict[At, torch.dtype] = {}
        self._made: dict[int, At] = {}

    def add(self, call: Call, given: Mapping[str, Tensor], took: Slots, gave: Slots) -> None:
        """Add a call: what it was given, as values and as the very tensors, and what it gave."""
        number = len(self._calls)
        self._calls.append(call)
        self._alive += [took, gave]
        for slot, tensor in took:
            at = number, slot
            if id(tensor) in self._made:
                self._wires[at] = self._made[id(tensor)]
                continue
            self._given[at] = given[slot]
            if id(tensor) in self._took:
                self._takes.setdefault(self._took[id(tensor)], []).append(at)
        for slot, tensor in gave:
            self._made[id(tensor)] = number, slot
            self._dtypes[number, slot] = tensor.dtype

    def computes_unseen(self, gave: Slots) -> bool:
        """Whether a result is none that a function of torch made: a kernel of its own wrote it.

        What was taken and is given out again is not computed.
        """
        taken = {_place(tensor) for _, tensor in self._taken}
        for _, tensor in gave:
            made = self._made.get(id(tensor))
            if made is None and _place(tensor) not in taken:
                return True
            if made is not None and leaves_unwritten(self._calls[made[0]].target):
                return True
        return False

    def passed(self, gave: Sequence[tuple[str, int]]) -> Passed:
        """The backward pass of all; `gave` are the ids of the Function's results by slot."""
        gives = {slot: self._made[number] for slot, number in gave if number in self._made}
        return Passed(self._calls, self._given, self._takes, gives, self._wires, self._dtypes)


def _place(tensor: Tensor) -> int:
    """Where the elements of a tensor lie; what has none of its own is known by itself."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return id(tensor)
