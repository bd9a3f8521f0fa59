"""Every place where the target may have gone wrong: each by itself, whatever else is wrong.

A kernel is known to be wrong by its own inputs. A program is another where golden's calls, on what
the target has, give something else than the target's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from dumpcmp.grafting.evaluation import Evaluation, Faults, RecordedChoice
from dumpcmp.grafting.exact_sides import ExactSides, WrongCall
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.value import DTYPES, Kind
from dumpcmp.replay.arguments import read_arguments
from dumpcmp.replay.drawing import draws
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.rating import run
from dumpcmp.replay.running import fitted
from dumpcmp.shadows.fingerprints import same_elements
from dumpcmp.shadows.kernel_checks import check_kernels
from dumpcmp.shadows.plain_arguments import plain_arguments
from dumpcmp.shadows.program import Node, ValueId
from dumpcmp.shadows.quantities import Quantity, tensor_of
from dumpcmp.shadows.shadow import Shadow

_LONGEST_STEP = 2.0**-7  # between numbers of a dtype that computes: shorter ones are levels

_SUMMED = 2.0**-19  # of the largest element: what sums in float32 are off


class RootKind(StrEnum):
    """What is wrong at a root."""

    KERNEL = "wrong kernel"
    GOLDEN = "wrong kernel in golden"
    PROGRAM = "different program"
    START = "different start"
    CARRIED = "left by an earlier token"
    OUTSIDE = "follows from what the model returned"
    DTYPE = "start in another dtype"
    UNSEEN = "differs, and cannot be run in float64"


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """A place that may be wrong, and what changes when it is put right."""

    kind: RootKind
    op: Op
    call: int
    rank: int
    order: int
    reason: str
    replaced: frozenset[int] = frozenset()  # ids of the target's quantities
    offsets: Mapping[int, Tensor] = field(default_factory=dict)  # by id of either side's
    beside: tuple[str, ...] = ()  # other ops that may be meant: no value between them matches

    @property
    def layer(self) -> str:
        """The module that it is in."""
        is_weight = self.kind is RootKind.START and self.op.is_module
        return self.op.rpartition(".")[0] if is_weight else self.op.module

    @property
    def name(self) -> str:
        """The call, and its rank."""
        return f"{self.op}#{self.call}" + (f" on rank {self.rank}" if self.rank else "")

    def with_other(self, other: Suspect) -> Suspect:
        """Both in one."""
        offsets = {**self.offsets, **other.offsets}
        return replace(self, replaced=self.replaced | other.replaced, offsets=offsets)


@dataclass(eq=False)
class Suspects:
    """All suspects of a step, and what belongs to none of them."""

    sides: ExactSides
    rows: Sequence[Row]
    is_first: bool  # no token before it was recorded
    found: dict[tuple[object, ...], Suspect] = field(default_factory=dict)
    bridged: dict[int, Tensor] = field(default_factory=dict)  # ids, and what they gave too much
    choices: dict[int, RecordedChoice] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def find(self) -> Suspects:
        """Look at every value that matches one of golden's."""
        if not self.sides.are_alike:
            self.remarks.append(
                "the sides ran on different ranks: kernels and weights are put right, and calls "
                "that one side alone makes are not"
            )
        self._add_choices()
        for wrong in self.sides.wrong:
            self._add_kernel(wrong)
        clean = Evaluation(self.sides, Faults(choices=self.choices))
        for ours, theirs in self.sides.values:
            self._look_at(ours, theirs, clean)
        return self

    @property
    def _golden(self) -> Shadow:
        return self.sides.golden

    @property
    def _target(self) -> Shadow:
        return self.sides.target

    def _add(self, suspect: Suspect, *key: object) -> None:
        at = key or (suspect.kind, suspect.op, suspect.call, suspect.rank)
        known = self.found.get(at)
        self.found[at] = suspect if known is None else known.with_other(suspect)

    # kernels

    def _add_kernel(self, wrong: WrongCall) -> None:
        shadow = self._golden if wrong.is_golden else self._target
        kind = RootKind.GOLDEN if wrong.is_golden else RootKind.KERNEL
        node, quantity = wrong.node, shadow.quantity(wrong.value)
        if not wrong.is_golden and self.sides.bridged(wrong.value):
            return  # it has no program of its own
        if not self._is_kernel(wrong, shadow):
            return
        try:
            offset = self._error_of(shadow, node, wrong.value)
        except DumpcmpError as error:
            self.remarks.append(f"{node} is wrong, and its error could not be had: {error.message}")
            return
        if _is_rounding(offset, quantity.tensor, shadow.record(wrong.value).dtype):
            return  # what it is off is what another program gives
        call = node.call
        self._add(
            Suspect(kind, call.op, call.call, node.rank, call.order, wrong.row.reason,
                    offsets={id(quantity): offset})
        )  # fmt: skip

    def _is_kernel(self, wrong: WrongCall, shadow: Shadow) -> bool:
        """Whether the call itself went wrong, and is not only another than the other side's."""
        keys = wrong.row.golden_key, wrong.row.target_key
        asked = {
            (node.call.target, plain_arguments(node.call.arguments))
            for side, key in zip((self._golden, self._target), keys, strict=True)
            for node in side.program.nodes
            if key is not None and (node.call.op, node.call.call) == (key.op, key.call)
        }
        if len(asked) == 1:
            return True
        found = check_kernels(shadow.archive, shadow.program, [wrong.node])
        return any(each.wrong for each in found)

    def _error_of(self, shadow: Shadow, node: Node, value: ValueId) -> Tensor:
        """What a call gave more than it should have, on what it was given in the run."""
        quantity = shadow.quantity(value)
        made = quantity.application
        if made is None or quantity.is_bridge or made.name != str(node):
            raise DumpcmpError("it cannot be run in float64")
        given: dict[str, Tensor] = {}
        for slot, each in made.inputs.items():
            taken = node.takes.get(slot)
            try:
                given[slot] = each.tensor if taken is None else shadow.loader(taken)()
            except DumpcmpError:  # no kernel stored it
                given[slot] = self._as_run(shadow).target(each)
        return shadow.loader(value)() - made.apply(given)[quantity.slot]

    def _as_run(self, shadow: Shadow) -> Evaluation:
        """The run with the errors of kernels that are known so far."""
        if shadow is self._golden:
            return Evaluation(self.sides, Faults())
        offsets = {k: v for each in self.found.values() for k, v in each.offsets.items()}
        return Evaluation(self.sides, Faults(offsets=offsets))

    # programs

    def _look_at(self, ours: ValueId, theirs: ValueId, clean: Evaluation) -> None:
        one, other = self._golden.quantity(ours), self._target.quantity(theirs)
        if one is other or id(other) in self.bridged:
            return
        node = self._target.program.producers.get(theirs)
        try:
            if self.sides.bridged(theirs) and id(other) not in self.choices:
                self._add_bridge(theirs)
            elif node is None or (other.application is None and not node.takes):
                self._add_leaf(ours, theirs)
            elif other.application is not None or id(other) in self.choices:
                wanted = clean.put_right(other)
                if not same_elements(wanted.reshape(other.tensor.shape), other.tensor):
                    self._add_program(ours, theirs)
        except (DumpcmpError, RuntimeError) as error:
            said = error.message if isinstance(error, DumpcmpError) else str(error)
            self.remarks.append(f"{theirs}: golden's calls could not be run on mine: {said}")

    def _add_program(self, ours: ValueId, theirs: ValueId) -> None:
        mine = self._behind(self._target, theirs, set(self.sides.matched))
        known = {golden for rank, golden in self.sides.counterparts if rank == theirs.rank}
        its = self._behind(self._golden, ours, known | self.sides.own)
        is_more = id(self._target.quantity(theirs)) in self.sides.earlier
        its = [] if is_more else its  # golden goes on from what it was computed of
        rows = self._rows_at(its, mine)
        node = self._telling(its, mine)
        reason = f"golden computes {_functions(its)}, and mine {_functions(mine)}"
        key = rows[0].key if rows else node.call.site
        others = {str(row.key.op) for row in rows} - {str(key.op)}
        replaced = frozenset((id(self._target.quantity(theirs)),))
        self._add(
            Suspect(
                RootKind.PROGRAM, key.op, key.call, node.rank, node.call.order, reason, replaced,
                beside=tuple(sorted(others)),
            )
        )  # fmt: skip

    def _telling(self, golden: Sequence[Node], target: Sequence[Node]) -> Node:
        """The call that one side alone makes, where it is known; else the one that gives it."""
        ours, theirs = ({each.call.op.function for each in some} for some in (golden, target))
        lacking = [each for each in golden[1:] if each.call.op.function not in theirs]
        more = [each for each in target[1:] if each.call.op.function not in ours]
        for shadow, some in ((self._golden, lacking), (self._target, more)):
            found = [each for each in some if not shadow.only_moves(each)] or some
            if found and not (lacking and more):
                return found[0]
        return target[0]

    def _behind(self, shadow: Shadow, value: ValueId, known: set[int]) -> list[Node]:
        """The call that made a value, and those before it back to values that match."""
        found: dict[Node, None] = {}
        waiting = [value]
        while waiting:
            node = shadow.program.producers.get(waiting.pop())
            if node is None or node in found:
                continue
            found[node] = None
            waiting += (v for v in node.takes.values() if id(shadow.quantity(v)) not in known)
        return list(found)

    def _rows_at(self, golden: Sequence[Node], target: Sequence[Node]) -> list[Row]:
        """The rows that compare calls roots, among the calls of either side."""
        places = [{(node.call.op, node.call.call) for node in nodes} for nodes in (golden, target)]
        return [
            row
            for row in self.rows
            if row.root
            and row.verdict.fails
            and any(
                key is not None and (key.op, key.call) in some
                for key, some in zip((row.golden_key, row.target_key), places, strict=True)
            )
        ]

    # what no call made, or none that can be run

    def _add_bridge(self, theirs: ValueId) -> None:
        other = self._target.quantity(theirs)
        run = Evaluation(self.sides, Faults())
        wanted = run.put_right(other).reshape(other.tensor.shape)
        offset = other.tensor - wanted
        self.bridged[id(other)] = offset
        node = self._target.program.producers.get(theirs)
        size = float(torch.linalg.vector_norm(offset) / torch.linalg.vector_norm(wanted))
        reason = f"it is {size:.2g} off what golden's call gives on the same inputs"
        place = theirs.key if node is None else node.call
        order = self._target.record(theirs).order
        self._add(
            Suspect(
                RootKind.UNSEEN, place.op, place.call, theirs.rank, order, reason,
                offsets={id(other): offset},
            )
        )  # fmt: skip

    def _add_leaf(self, ours: ValueId, theirs: ValueId) -> None:
        one, other = self._golden.quantity(ours), self._target.quantity(theirs)
        if same_elements(one.tensor, other.tensor):
            return
        key, record = self._first_name(theirs) or theirs.key, self._target.record(theirs)
        is_old = not self.is_first and self._first_name(theirs) is not None
        replaced = frozenset((id(other),))
        name = key.op if not key.slot.is_weight else Op(f"{key.op}.{key.slot.name}")
        kind, reason = RootKind.START, "it holds other numbers than golden's"
        is_root = any(
            row.root and row.verdict.fails and row.target_key == theirs.key for row in self.rows
        )
        if key.slot.is_gradient:
            kind, name, reason = (
                RootKind.OUTSIDE,
                Op("gradients"),
                "the loss handed back other gradients",
            )
        elif _are_rounded(one, self._golden.record(ours).dtype, other, record.dtype):
            kind, name = RootKind.DTYPE, Op("start")
            reason = f"golden has {self._golden.record(ours).dtype}, and mine {record.dtype}"
        elif not self.is_first and not is_root and not is_old:
            kind, name = RootKind.CARRIED, Op("start")
            reason = "what the token before left in weights, buffers and caches"
        call = 0 if kind is not RootKind.START else key.call
        rank = theirs.rank if kind is RootKind.START else 0
        self._add(Suspect(kind, name, call, rank, record.order, reason, replaced))

    def _first_name(self, value: ValueId) -> Key | None:
        """What a weight is called, if no recorded token has changed it."""
        archive, key = self._target.archive, value.key
        first = Key(key.model, archive.steps(key.model)[0], key.op, key.call, key.slot)
        if first not in archive:
            return None
        digests = {shard.digest for shard in archive.shards(first) if shard.rank == value.rank}
        named = archive.shards(first)[0].same_as or first
        is_same = digests == {self._target.record(value).digest}
        return named if is_same and named.slot.is_weight else None

    def _add_choices(self) -> None:
        """All calls that choose, so that what they take decides again."""
        pairs = {theirs: ours for ours, theirs in self.sides.values}
        for theirs in self._target.program.producers:
            other = self._target.quantity(theirs)
            if theirs not in pairs:
                made = _choice(self._target, theirs, ())
                self.choices |= {id(other): made} if made is not None else {}
                continue
            one = self._golden.quantity(pairs[theirs])
            for shadow, value in ((self._target, theirs), (self._golden, pairs[theirs])):
                made = None if one is other else _choice(shadow, value, (other, one))
                self.choices |= {id(shadow.quantity(value)): made} if made is not None else {}


def _choice(shadow: Shadow, value: ValueId, recorded: Sequence[Quantity]) -> RecordedChoice | None:
    """The call that chose a value, to be run on other numbers."""
    node, quantity = shadow.program.producers.get(value), shadow.quantity(value)
    if node is None or node.own is not None or not node.takes or quantity.application is not None:
        return None
    dtype = DTYPES.get(shadow.record(value).dtype)
    if dtype is None or (dtype.kind is Kind.FLOAT and dtype.eps <= _LONGEST_STEP):
        return None
    inputs = {slot: shadow.quantity(taken) for slot, taken in node.takes.items()}
    slot = next(slot for slot, given in node.gives.items() if given == value)

    def run_again(given: Mapping[str, Tensor]) -> Tensor:
        function = function_named(node.call.target)
        arguments = fitted(read_arguments(node.call.arguments, given), given)
        if draws(function, arguments):
            return quantity.tensor  # what was drawn stays
        return tensor_of(run(function, arguments)[slot])

    return RecordedChoice(inputs, run_again, recorded)


def _is_rounding(offset: Tensor, value: Tensor, name: str) -> bool:
    """Whether no element is off by more than rounding of the largest can make it."""
    dtype = DTYPES.get(name)
    if dtype is None or not offset.numel() or not bool(offset.isfinite().all()):
        return False
    level = float(value.abs()[value.isfinite()].max()) if bool(value.isfinite().any()) else 0.0
    return float(offset.abs().max()) <= (dtype.eps + _SUMMED) * level


def _functions(nodes: Sequence[Node]) -> str:
    return ", ".join(dict.fromkeys(node.call.op.function for node in reversed(nodes))) or "nothing"


def _are_rounded(one: Quantity, ours: str, other: Quantity, theirs: str) -> bool:
    """Whether two leaves are one number, but for the rounding of the shorter dtype."""
    if ours == theirs or not (one.tensor.is_floating_point() and other.tensor.is_floating_point()):
        return False
    dtypes: list[torch.dtype] = [getattr(torch, ours), getattr(torch, theirs)]
    short = min(dtypes, key=lambda dtype: torch.finfo(dtype).bits)
    return torch.equal(one.tensor.to(short), other.tensor.to(short))


def by_layer(suspects: Sequence[Suspect]) -> list[Suspect]:
    """One suspect for all that are in a module."""
    found: dict[str, list[Suspect]] = {}
    for each in suspects:
        found.setdefault(each.layer, []).append(each)
    return [_joined(layer, some) for layer, some in found.items()]


def _joined(layer: str, some: Sequence[Suspect]) -> Suspect:
    first, *others = some
    made = replace(first, op=Op(layer), call=0)
    for other in others:
        made = made.with_other(other)
    reason = f"{len(some)} places: {', '.join(dict.fromkeys(str(each.op) for each in some))}"
    return replace(made, reason=reason) if others else made


def all_suspects(suspects: Suspects) -> Iterator[Suspect]:
    """In order of execution: what a step starts from first."""
    yield from sorted(suspects.found.values(), key=lambda each: (_is_later(each), each.order))


def _is_later(suspect: Suspect) -> bool:
    return suspect.kind not in (RootKind.START, RootKind.DTYPE, RootKind.CARRIED)
