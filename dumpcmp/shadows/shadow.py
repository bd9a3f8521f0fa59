"""From recorded calls to quantities: what each call means when nothing is rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.op_names import OpSet, plain_name
from dumpcmp.nouns.record import UNWRITTEN, Call, Kept, Record
from dumpcmp.nouns.value import DTYPES, Kind, to_torch
from dumpcmp.replay.arguments import CallArguments, read_arguments
from dumpcmp.replay.cancelling import SUMMED, terms_of
from dumpcmp.replay.drawing import draws, dropped_share
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.limits import check_size
from dumpcmp.replay.listed import ReplayFunction, function_named
from dumpcmp.replay.rating import run
from dumpcmp.replay.recorded import differentiable, told_by
from dumpcmp.replay.running import fitted, run_natively, wide_dtype
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.graph_links import INSIDE
from dumpcmp.shadows.plain_arguments import plain_arguments
from dumpcmp.shadows.program import Node, Program, RatedOperation, ValueId
from dumpcmp.shadows.quantities import Application, Book, Operation, Quantity, tensor_of
from dumpcmp.shadows.read_numbers import SingleNumber, are_read_alike

# Casts between floats: they round, and nothing else.
_CASTS = OpSet("to _to_copy type_as float half bfloat16 double type")
# Functions of floats that jump: rounding decides on which side of a jump a run is.
_AS_THEY_LIE = OpSet("view _unsafe_view")  # shadows lie otherwise than what was recorded
_JUMPS = OpSet("round floor ceil trunc fix frac sign sgn heaviside floor_divide remainder fmod")
# Constants, which are rounded where they are made: a part of the start.
_CONSTANTS = OpSet(
    "tensor scalar_tensor lift_fresh lift_fresh_copy full linspace logspace new_tensor"
)
_SCALES = OpSet("mul multiply div divide true_divide neg negative")
_BY_STRIDE = OpSet("as_strided as_strided_copy as_strided_scatter")
_NUMBER = re.compile(r"-?\b\d+\b")
_LONGEST_STEP = 2.0**-7  # between numbers of a dtype that computes: a cast to it only rounds
_NEAR = 2.0**-5  # of its size: a recorded value that is so near is on the same side of a jump


class SameNumbersOf(Protocol):
    """What finds a quantity of another run by its numbers."""

    def find(self, quantity: Quantity, shape: tuple[int, ...]) -> Quantity | None: ...


class AnchorsOf(Protocol):
    """What finds values at which a run goes on from what another rounded."""

    def taken(
        self, node: Node, inputs: Mapping[str, Quantity], shadow: Shadow
    ) -> Mapping[str, Quantity]: ...

    def given(self, node: Node, inputs: Mapping[str, Quantity], shadow: Shadow) -> None: ...


@dataclass(eq=False)
class Shadow:
    """One run's program in exact arithmetic: the quantity of each of its values."""

    archive: Archive
    program: Program
    book: Book
    leaf_of: Callable[[Shadow, ValueId], Quantity]
    choices: Choices
    precomputed: Callable[[Shadow, ValueId], Quantity | None] = lambda _, __: None
    other: SameNumbersOf | None = None  # the other run's quantities, to be found by their numbers
    anchors: AnchorsOf | None = None
    quantities: dict[ValueId, Quantity] = field(default_factory=dict)
    bridges: dict[int, Node] = field(default_factory=dict)  # by id of what was taken as it is
    singles: list[SingleNumber] = field(default_factory=list)
    _flips: set[int] = field(default_factory=set)  # ids of what it is given, but did not choose
    _after: dict[int, bool] = field(default_factory=dict)  # by id, whether it depends on one

    def follow(self) -> Shadow:
        """Go through the program once."""
        for node in self.program.nodes:
            self._add(node)
            self.singles += (
                SingleNumber(self.quantities[value], self.loader(value))
                for value in node.gives.values()
                if self._is_single(value)
            )
        return self

    def _is_single(self, value: ValueId) -> bool:
        record = self.record(value)
        is_single = math.prod(record.shape) == 1 and record.kept is Kept.FULL
        return is_single and self._is_float_value(value)

    def quantity(self, value: ValueId) -> Quantity:
        """The quantity that a value is."""
        found = self.quantities.get(value)
        if found is None:
            found = self.quantities[value] = self.leaf_of(self, value)
        return found

    def record(self, value: ValueId) -> Record:
        return self.program.records[value]

    def is_constant(self, value: ValueId) -> bool:
        """Whether a call made it of nothing but numbers that stand in the program."""
        node = self.program.producers.get(value)
        return node is not None and plain_name(node.call.op.function) in _CONSTANTS

    def only_moves(self, node: Node) -> bool:
        """Whether a call gives elements of what it took, as they are."""
        try:
            return node.own is None and function_named(node.call.target).kind is FunctionKind.MOVES
        except Unreplayable:
            return False

    def loader(self, value: ValueId) -> Callable[[], Tensor]:
        """Reads a value as it was recorded."""
        return partial(load, self.archive, self.record(value))

    def _add(self, node: Node) -> None:
        if not node.gives:
            return
        inputs: Mapping[str, Quantity] = {
            slot: self.quantity(value) for slot, value in node.takes.items()
        }
        if self.anchors is None:
            self._follow(node, inputs)
            return
        inputs = self.anchors.taken(node, inputs, self)
        self._follow(node, inputs)
        self.anchors.given(node, inputs, self)

    def _follow(self, node: Node, inputs: Mapping[str, Quantity]) -> None:
        if node.own is not None:
            given = tuple((slot, id(each)) for slot, each in inputs.items())
            place = "own", node.own.slot  # no size, which another choice could have changed
            self._ask(node, (place, *given), node.own.expression, inputs, node.own.run)
            if isinstance(node.own, RatedOperation):
                for value in node.gives.values():
                    self._level(value, node.own)
            return
        try:
            function = function_named(node.call.target)
            self._check_seen(node)
        except Unreplayable:
            self._bridge(node, inputs)
            return
        self._apply(node, function, inputs)
        for value in node.gives.values():
            known = self.precomputed(self, value)
            if known is not None and self._is_float_value(value):
                self.quantities[value] = known

    def _check_seen(self, node: Node) -> None:
        if any(self.record(v).is_batch for v in (*node.takes.values(), *node.gives.values())):
            raise Unreplayable("it ran inside of torch.func.vmap, on one example at a time")

    def _level(self, value: ValueId, own: RatedOperation) -> None:
        made = self.quantities[value].application
        if made is not None and made.run == own.run:  # and not what the other run makes of others
            made.level = own.level

    def _apply(self, node: Node, function: ReplayFunction, inputs: Mapping[str, Quantity]) -> None:
        if function.name in _CONSTANTS and any(map(self._is_inside, node.gives.values())):
            run = partial(_run_as_rounded, node.call)
            self._put(node, ("constant", self._arguments(node, function)), inputs, run)
        elif function.kind is FunctionKind.NOTHING or function.name in _CONSTANTS:
            self._take_as_recorded(node)
        elif function.name in _CASTS and self._is_cast(node):
            (given,) = node.gives.values()
            if self._makes_levels(node):
                self._bridge(node, inputs)
            else:
                self.quantities[given] = inputs["input.0"]
        elif self._draws(node, function):
            self._draw(node, function, inputs)
        elif self._chooses(node, function):
            self._choose(node, function, inputs)
        else:
            self._compute(node, function, inputs)

    # the ways to get at a quantity

    def _recorded(self, value: ValueId) -> Quantity:
        """What was recorded, taken as it is."""
        return self.book.leaf(identity(self.record(value)), self.loader(value))

    def _take_as_recorded(self, node: Node) -> None:
        for value in node.gives.values():
            self.quantities[value] = self.leaf_of(self, value)

    def _compute(
        self, node: Node, function: ReplayFunction, inputs: Mapping[str, Quantity]
    ) -> None:
        run: Operation = partial(_run, node.call.arguments, function)
        if function.name in _BY_STRIDE:
            run = partial(_run_strided, self.record(node.takes["input.0"]), run)
        given = (function.name, *((slot, id(inputs[slot])) for slot in sorted(inputs)))
        self._ask(node, given, self._arguments(node, function), inputs, run)
        for value in node.gives.values():
            made = self.quantities[value].application
            if made is None:
                continue
            made.scales = function.kind is FunctionKind.MOVES or function.name in _SCALES
            if made.level is None and function.kind in SUMMED:
                made.level = partial(_level, node.call.arguments, function)

    def _ask(
        self,
        node: Node,
        given: Hashable,
        told: Hashable,
        inputs: Mapping[str, Quantity],
        run: Operation,
    ) -> None:
        """Let what `node` gives be what an operation gives that is `given` quantities, and `told`.

        Where this run chose otherwise, sizes in its arguments are its own: the target's hold.
        """
        expression = given, told
        if self.book.known(expression) is None:
            found = self.choices.resized(given, told) if self._is_after_flip(inputs) else None
            found = found or self.choices.reread(given, told, self.singles)
            if found is not None:
                self._give(node, found)
                return
        self._put(node, expression, inputs, run)
        first = next(iter(node.gives.values()))
        self.choices.note(
            given,
            told,
            self.quantities[first].siblings
            or {slot: self.quantities[value] for slot, value in node.gives.items()},
        )

    def _put(
        self, node: Node, expression: Hashable, inputs: Mapping[str, Quantity], run: Operation
    ) -> None:
        """Let what `node` gives be what the operation gives that is known by `expression`."""
        recorded = {slot: self.loader(value) for slot, value in node.gives.items()}
        made = self.book.computed(expression, lambda: Application(run, inputs, recorded, str(node)))
        self._give(node, made)
        other = self.other
        for value in node.gives.values() if other is not None else ():
            assert other is not None
            found = other.find(self.quantities[value], self.record(value).shape)
            self.quantities[value] = found or self.quantities[value]

    def _give(self, node: Node, made: Mapping[str, Quantity]) -> None:
        """Let what `node` gives be what was `made`; what nobody asked for before as well."""
        for slot, value in node.gives.items():
            if slot not in made:
                first = next(iter(made.values()))
                assert first.application is not None and isinstance(made, dict)
                loader = self.loader(value)
                first.application.recorded = {**first.application.recorded, slot: loader}
                made[slot] = Quantity(application=first.application, slot=slot, siblings=made)
            self.quantities[value] = made[slot]

    def _bridge(self, node: Node, inputs: Mapping[str, Quantity]) -> None:
        """Take what was recorded; both runs go on from the first, where they ask for the same."""
        key = ("bridge", node.call.target, plain_arguments(node.call.arguments))
        found = self.choices.same(key, inputs)
        if found is None:
            found = {slot: self._recorded(value) for slot, value in node.gives.items()}
            self.choices.add(key, inputs, found)
            for each in found.values():
                self.bridges[id(each)] = node
        for slot, value in node.gives.items():
            self.quantities[value] = found[slot] if slot in found else self._recorded(value)

    def _draw(self, node: Node, function: ReplayFunction, inputs: Mapping[str, Quantity]) -> None:
        """What was drawn is a leaf: of a dropout, which elements it dropped."""
        share = self._dropped(node, function)
        first = node.gives.get("output.0")
        if not share or first is None or "input.0" not in inputs:
            self._take_as_recorded(node)
            return
        drawn = self.leaf_of(self, first)
        expression = ("dropout", share, id(inputs["input.0"]), id(drawn))
        given = {"input.0": inputs["input.0"], "drawn": drawn}
        self._put(node, expression, given, partial(_drop, share))

    def _choose(self, node: Node, function: ReplayFunction, inputs: Mapping[str, Quantity]) -> None:
        """The target's choice is both runs' choice: whether it was right is the kernel's matter."""
        key = (function.name, *self._arguments(node, function))
        chosen = self.choices.same(key, inputs)
        if chosen is None and any(map(self._is_inside, node.gives.values())):
            self._compute(node, function, inputs)  # of a kernel's own choice nothing is known
            chosen = {slot: self.quantities[value] for slot, value in node.gives.items()}
            self.choices.add(key, inputs, chosen)
            return
        if chosen is None:
            chosen = {slot: self._recorded(value) for slot, value in node.gives.items()}
            self.choices.add(key, inputs, chosen)
        told = told_by(function.name)
        for slot, value in node.gives.items():
            if slot in chosen and not self._is_float_value(value):
                self.quantities[value] = chosen[slot]
                if chosen[slot] is not self._recorded(value):
                    self._flips.add(id(chosen[slot]))
        left = {s: v for s, v in node.gives.items() if self._is_float_value(v)}
        if not left:
            return
        places = chosen.get(told) if told != "output.0" else None
        by = {"chosen": places} if places is not None else {"near": chosen["output.0"]}
        expression = ("choice", *key, *map(id, inputs.values()), *map(id, by.values()))
        run = partial(_run_chosen, node.call.arguments, function)
        rest = Node(node.rank, node.call, node.takes, left)
        self._put(rest, expression, {**inputs, **by}, run)

    def _is_after_flip(self, inputs: Mapping[str, Quantity]) -> bool:
        """Whether this run chose otherwise itself, so that sizes in its arguments are others."""
        return bool(self._flips) and any(map(self._depends_on_flip, inputs.values()))

    def _depends_on_flip(self, quantity: Quantity) -> bool:
        waiting = [(quantity, False)]
        while waiting:
            each, is_ready = waiting.pop()
            inputs = list(each.inputs)
            if is_ready:
                given = any(self._after[id(before)] for before in inputs)
                self._after[id(each)] = given or id(each) in self._flips
            elif id(each) not in self._after:
                waiting.append((each, True))
                waiting += [(before, False) for before in inputs]
        return self._after[id(quantity)]

    # what a call is

    def _is_inside(self, value: ValueId) -> bool:
        """Whether no kernel stored it, so that nothing but its graph tells of it."""
        return self.record(value).problem == INSIDE

    def _is_float_value(self, value: ValueId) -> bool:
        kind = DTYPES[dtype].kind if (dtype := self.record(value).dtype) in DTYPES else None
        return kind in (Kind.FLOAT, Kind.COMPLEX)

    def _is_cast(self, node: Node) -> bool:
        """Whether it makes floats of floats."""
        values = node.takes.get("input.0"), node.gives.get("output.0")
        return all(value is not None and self._is_float_value(value) for value in values)

    def _makes_levels(self, node: Node) -> bool:
        """Whether it casts to floats that are so short that this is no rounding any more."""
        return DTYPES[self.record(node.gives["output.0"]).dtype].eps > _LONGEST_STEP

    def _chooses(self, node: Node, function: ReplayFunction) -> bool:
        """Whether floats go in and integers come out, or it jumps: rounding decides on it."""
        if not any(map(self._is_float_value, node.takes.values())):
            return False
        if function.name in _JUMPS or (function.name == "view" and self._views_bits(node)):
            return True
        return not all(map(self._is_float_value, node.gives.values()))

    def _views_bits(self, node: Node) -> bool:
        dtypes = {self.record(v).dtype for v in (*node.takes.values(), *node.gives.values())}
        return len(dtypes) > 1

    def _draws(self, node: Node, function: ReplayFunction) -> bool:
        return bool(self._asked(node, lambda arguments: draws(function, arguments)))

    def _dropped(self, node: Node, function: ReplayFunction) -> float:
        return self._asked(node, lambda arguments: dropped_share(function, arguments))

    def _asked(self, node: Node, ask: Callable[[CallArguments], float]) -> float:
        """What `ask` tells of the arguments, for which no numbers are needed."""
        blank = {slot: torch.empty(0, device="meta") for slot in node.takes}
        try:
            return ask(read_arguments(node.call.arguments, blank))
        except Unreplayable:
            return 0.0

    def _arguments(self, node: Node, function: ReplayFunction) -> tuple[Hashable, ...]:
        """The arguments of a call as a part of an expression, but for its tensors."""
        text = plain_arguments(node.call.arguments)
        if function.name not in _BY_STRIDE:
            return (text,)
        first = self.record(node.takes["input.0"])
        return text, first.stride, first.storage_offset


@dataclass(eq=False)
class Choices:
    """What one run chose, for the other to choose as well where it is asked the same.

    What was chosen also decides on sizes, which Python hands to later calls as numbers.
    """

    singles: Sequence[SingleNumber] = ()  # of the run that chose
    _sized: dict[Hashable, list[tuple[Hashable, Mapping[str, Quantity]]]] = field(
        default_factory=dict
    )
    _made: dict[Hashable, list[tuple[Mapping[str, Quantity], Mapping[str, Quantity]]]] = field(
        default_factory=dict
    )

    def copy(self) -> Choices:
        """The same choices, to which others may be added."""
        return Choices(
            self.singles,
            {asked: list(made) for asked, made in self._sized.items()},
            {key: list(made) for key, made in self._made.items()},
        )

    def add(
        self, key: Hashable, inputs: Mapping[str, Quantity], chosen: Mapping[str, Quantity]
    ) -> None:
        self._made.setdefault(key, []).append((inputs, chosen))

    def note(self, asked: Hashable, arguments: Hashable, made: Mapping[str, Quantity]) -> None:
        """Remember what a function of these quantities gave, whatever numbers it was told."""
        self._sized.setdefault(asked, []).append((arguments, made))

    def resized(self, asked: Hashable, arguments: Hashable) -> Mapping[str, Quantity] | None:
        """What a function of the same quantities gave that was told other whole numbers."""
        wanted = _NUMBER.sub("#", str(arguments))
        for told, made in self._sized.get(asked, ()):
            if _NUMBER.sub("#", str(told)) == wanted:
                return made
        return None

    def reread(
        self, asked: Hashable, arguments: Hashable, singles: Sequence[SingleNumber]
    ) -> Mapping[str, Quantity] | None:
        """What a function of the same quantities gave that was told other floats, off tensors."""
        for told, made in self._sized.get(asked, ()):
            if are_read_alike(str(arguments), str(told), singles, self.singles):
                return made
        return None

    def same(self, key: Hashable, inputs: Mapping[str, Quantity]) -> Mapping[str, Quantity] | None:
        """What was chosen where the same was asked of the same quantities."""
        made = self._made.get(key, ())
        for given, chosen in made:
            if all(given.get(slot) is each for slot, each in inputs.items()):
                return chosen
        for given, chosen in made:
            if given.keys() == inputs.keys() and all(
                given[slot].is_same(each) for slot, each in inputs.items()
            ):
                return chosen
        return None


def identity(record: Record) -> tuple[object, ...]:
    """What tells that two leaves are one: their bytes; of what has none, its name."""
    if record.problem == UNWRITTEN:
        return "unwritten", record.dtype, record.shape
    if record.digest and record.kept is Kept.FULL:
        return record.digest, record.dtype, record.shape
    return "unread", record.rank, record.key, id(record)


def load(archive: Archive, record: Record) -> Tensor:
    """A value as it was recorded, floats in float64; DumpcmpError where it was not kept."""
    if record.problem == UNWRITTEN:
        dtype = getattr(torch, record.dtype)
        return tensor_of(torch.zeros(record.shape, dtype=dtype))
    if record.kept is not Kept.FULL:
        raise DumpcmpError(record.problem or "only a summary of it was kept")
    return tensor_of(to_torch(archive.load(record)).reshape(record.shape))


def _run(text: str, function: ReplayFunction, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Run a function in float64."""
    if function.name in _AS_THEY_LIE:
        given = {slot: each.contiguous() for slot, each in given.items()}
    arguments = fitted(read_arguments(text, given), given).mapped(_widened)
    check_size(function, arguments)
    return run(function, arguments)


def _level(text: str, function: ReplayFunction, given: Mapping[str, Tensor]) -> float:
    """The size of the terms of a sum, if nothing of them cancelled."""
    arguments = fitted(read_arguments(text, given), given).mapped(_widened)
    found = terms_of(function, arguments, run(function, arguments), torch.float64)
    sizes = (float(each.to(torch.float64).mean()) for each in found.values() if each.numel())
    return max(sizes, default=0.0)


def _run_as_rounded(call: Call, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Run a call in its own dtypes: a constant is rounded where it is made."""
    return {slot: tensor_of(made) for slot, made in run_natively(call, given).items()}


def _run_strided(record: Record, run: Operation, given: Mapping[str, Tensor]) -> Any:
    """Run a function of memory as it lies: with its first input where the recorded run had it."""
    first = given["input.0"]
    steps = zip(record.shape, record.stride, strict=True)
    room = record.storage_offset + 1 + sum((size - 1) * step for size, step in steps)
    memory = torch.full((room,), torch.nan, dtype=torch.float64)
    laid = memory.as_strided(record.shape, record.stride, record.storage_offset)
    laid.copy_(first)
    found = run({**given, "input.0": laid})
    if any(bool(each.isnan().any()) for each in found.values()) and not first.isnan().any():
        raise Unreplayable("it reads memory beside the tensor that it was given")
    return found


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return wide_dtype(leaf)
    return tensor_of(leaf) if isinstance(leaf, Tensor) else leaf


def _run_chosen(
    text: str, function: ReplayFunction, given: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Run a function that chooses, or jumps, to where the recorded run was."""
    inputs = {slot: each for slot, each in given.items() if slot not in ("chosen", "near")}
    outputs = _run(text, function, inputs)
    if "chosen" in given:
        arguments = fitted(read_arguments(text, inputs), inputs)
        return differentiable(function.name, arguments, outputs, given["chosen"])
    made, recorded = outputs["output.0"], given["near"]
    if made.shape != recorded.shape:
        return {**outputs, "output.0": recorded}
    level = float(recorded.abs().mean()) if recorded.numel() else 0.0
    is_near = (made - recorded).abs() <= _NEAR * (recorded.abs() + level)
    return {**outputs, "output.0": torch.where(is_near, made, recorded)}


def _drop(share: float, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A dropout that drops what was dropped in the recorded run."""
    if share >= 1:
        return {"output.0": torch.zeros_like(given["input.0"])}
    kept = given["drawn"] != 0
    return {"output.0": torch.where(kept, given["input.0"] / (1 - share), 0.0)}
