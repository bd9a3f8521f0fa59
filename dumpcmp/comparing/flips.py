"""Follows another choice through the data flow: which rows of later values it has touched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.both_sides import side_of
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.laying import Job, Task
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.given import argument_tree, differing
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Touched
from dumpcmp.nouns.row import Closeness, Measured, Metrics, Pair, Trouble
from dumpcmp.nouns.value import Kind, Value, dtype_named, to_torch

if TYPE_CHECKING:  # torch is imported where there is something to follow
    from torch import Tensor

    from dumpcmp.replay.counterparts import Counterparts
    from dumpcmp.replay.marked import Marked

_SHORT = frozenset((Kind.INT, Kind.BOOL))  # what indices and masks are made of
_MOST_READ = 1 << 22  # integers of one value that are read
_MOST_NUMBERS = 4096  # of one value that may become arguments
_OPEN = (
    Trouble.UNSOLVED,
    Trouble.LOST,
    Trouble.LACKING,
)  # of shards that nobody could put together


@dataclass(frozen=True, slots=True)
class Trail:
    """What following found of a value: what corresponds to what, and after which choice."""

    counterparts: Counterparts
    after: Key

    @property
    def touched(self) -> Touched:
        """The same in numbers."""
        odd = self.counterparts.touched_rows
        return Touched(odd.numel(), int(odd.sum()), self.after, not self.counterparts.is_in_place)


@dataclass(frozen=True, slots=True)
class Flips:
    """All that other choices than golden's led to."""

    trails: Mapping[Pair, Trail] = field(default_factory=dict)
    own: Mapping[Site, Call] = field(default_factory=dict)  # calls with numbers that it made

    @property
    def touched(self) -> dict[Pair, Touched]:
        """How much of each pair is another computation."""
        return {pair: trail.touched for pair, trail in self.trails.items()}

    def measured(
        self, work: Mapping[Pair, Job], measured: Mapping[Pair, Measured], closeness: Closeness
    ) -> dict[Pair, Measured]:
        """`measured`, of pairs that were touched in part by what was not touched in them."""
        found = dict(measured)
        for pair, trail in self.trails.items():
            task = work.get(pair)
            if not isinstance(task, Task) or task.golden.is_summarised or task.target.is_summarised:
                continue  # Summaries do not tell which rows they are of
            if found[pair].trouble in (None, Trouble.SHAPE):
                try:
                    sides = side_of(task, False), side_of(task, True)
                except DumpcmpError:  # shards without a layout: the row tells
                    continue
                metrics = measure_untouched(*sides, trail, closeness)
                if metrics is not None:  # whatever they are, the sides as a whole are not equal
                    metrics = metrics._replace(equal=False)
                    found[pair] = replace(
                        found[pair], metrics=metrics, trouble=None, said="", is_untouched=True
                    )
        return found


NO_FLIPS = Flips()


def follow_flips(
    flow: DataFlow, work: Mapping[Pair, Job], measured: Mapping[Pair, Measured]
) -> Flips:
    """The pairs in which anything is another computation than golden's, or stands elsewhere."""
    walk = _FlipWalk(flow, measured, work)
    for site, keys in flow.golden.sites.items():
        walk.visit(site, keys)
    found = {
        pair: walk.found(pair.golden)
        for pair in flow.pairs
        if pair.both and pair.golden and not walk.is_equal(pair)
    }
    return Flips({pair: one for pair, one in found.items() if one is not None}, walk.own)


@dataclass(eq=False, slots=True)
class _FlipWalk:
    """A walk through golden's calls, with what is known of the values so far."""

    flow: DataFlow
    measured: Mapping[Pair, Measured]
    work: Mapping[Pair, Job]
    states: dict[Key, Trail] = field(default_factory=dict)  # by golden's first Key
    flips: dict[tuple[str, int], Key] = field(default_factory=dict)  # the first of a step
    own: dict[Site, Call] = field(default_factory=dict)
    numbers: list[tuple[set[int], set[int]]] = field(default_factory=list)  # that were touched
    seen: dict[tuple[Any, ...], Counterparts] = field(default_factory=dict)  # each held once

    @property
    def golden(self) -> Listing:
        return self.flow.golden

    @property
    def target(self) -> Listing:
        return self.flow.target

    @property
    def ours(self) -> Mapping[Key, Pair]:
        return self.flow.ours

    def read(self, pair: Pair, is_target: bool) -> Tensor:
        task = self.work.get(pair) or self.work.get(pair.repeats or pair)
        if not isinstance(task, Task) or task.target.is_summarised or task.golden.is_summarised:
            raise DumpcmpError(f"{pair.key} is not kept whole")
        return to_torch(side_of(task, is_target))

    def state(self, key: Key) -> Trail | None:
        return self.states.get(self.golden.first(key))

    def found(self, key: Key) -> Trail | None:
        """What is known of a value; of gradients, that they come from all that was touched."""
        if not key.slot.is_gradient:
            return self.state(key)
        first = self.flips.get((key.model, key.step))
        return self._lost(key, first) if first else None

    def is_equal(self, pair: Pair) -> bool:
        """Whether both sides are the same to the bit, whatever they were computed from.

        In different dtypes: whether they are the same numbers, such as counts in float and in int.
        Of rows and Summaries: whether nothing in them differs, so that no other choice excuses it.
        """
        found = self.measured.get(pair) or self.measured.get(pair.repeats or pair)
        if found is None or found.metrics is None:
            return False
        if found.metrics.equal:
            return True
        assert pair.golden is not None and pair.target is not None
        ours, theirs = self.golden.record(pair.golden), self.target.record(pair.target)
        whole = found.metrics.exact and not found.metrics.sample
        cast = ours.dtype != theirs.dtype and whole
        same = found.metrics.max_abs_diff == 0 and found.metrics.nonfinite_agree
        return same and (cast or not whole)

    def visit(self, site: Site, keys: Iterable[Key]) -> None:
        """Follow one call, if it chose otherwise or was given anything that was touched."""
        given = [key for key in keys if key.slot.is_input]
        got = [key for key in keys if key.slot.is_output and key not in self.golden.links]
        before = next((state for state in map(self.state, given) if state), None)
        chose = next((key for key in got if self._chose_otherwise(key)), None)
        if not got or (before is None and chose is None):
            return
        after = before.after if before else chose
        assert after is not None
        call = self.golden.calls.get(site)
        if call is None or site.op.is_module or any(map(self._is_by_rank, (*given, *got))):
            self.states |= {key: self._lost(key, after) for key in got}
        else:
            self._follow(call, given, got, after)

    def _chose_otherwise(self, key: Key) -> bool:
        """Whether integers differ: they have no rounding."""
        pair = self.ours.get(key)
        if pair is None or not pair.both or pair.unwritten or not self._is_short(key):
            return False
        found = self.measured.get(pair)
        if found is None or found.trouble in _OPEN:
            return False  # nobody knows what the ranks' shares are together
        is_own = found.laid is not None and found.laid.is_own
        return not self.is_equal(pair) and not (is_own and self._counts(key.site))

    def _counts(self, site: Site) -> bool:
        """Whether a call makes integers of integers alone: there are no scores to choose by."""
        return all(map(self._is_short, (k for k in self.golden.sites[site] if k.slot.is_input)))

    def _is_by_rank(self, key: Key) -> bool:
        """Whether ranks have values of their own, laid one upon the other: dims count otherwise."""
        pair = self.ours.get(key)
        found = self.measured.get(pair) or self.measured.get(pair.repeats or pair) if pair else None
        return bool(found and found.laid and found.laid.is_by_rank)

    def _is_short(self, key: Key) -> bool:
        return dtype_named(self.golden.record(key).dtype).kind in _SHORT

    def _follow(self, call: Call, given: list[Key], got: list[Key], after: Key) -> None:
        from dumpcmp.replay.following import follow
        from dumpcmp.replay.marked import MarkedCall

        other = self._partner(call, got)
        shapes = [{str(k.slot): self._shape(k, is_target) for k in got} for is_target in _SIDES]
        try:
            sides = [
                MarkedCall.of(
                    other if is_target else call,
                    {str(key.slot): self._marked(key, is_target) for key in given},
                    shapes[is_target],
                    self._short_values(got, is_target),
                )
                for is_target in _SIDES
            ]
        except DumpcmpError:  # arguments that cannot be read: nothing is known of what it gave
            self.states |= {key: self._lost(key, after) for key in got}
            return
        if other is not call and self._chose_numbers(call, other):
            self.own[call.site] = other
        self._remember_numbers(*(side.got for side in sides))
        for slot, counterparts in follow(*sides).items():
            if not counterparts.is_identity:
                self._note(call.site.key(slot), counterparts, after)

    def _remember_numbers(self, golden: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
        """Integers that differ may become arguments of later calls, such as the sizes of parts."""
        for slot, ours in golden.items():
            theirs = target.get(slot)
            few = theirs is not None and max(ours.numel(), theirs.numel()) <= _MOST_NUMBERS
            if theirs is not None and few and ours.tolist() != theirs.tolist():
                self.numbers.append(
                    (set(ours.reshape(-1).tolist()), set(theirs.reshape(-1).tolist()))
                )

    def _chose_numbers(self, call: Call, other: Call) -> bool:
        """Whether the arguments of two calls differ by nothing but numbers that were touched."""
        found = differing(argument_tree(call), argument_tree(other), int)
        if not found:
            return False
        return any(
            all(g in ours and t in theirs for g, t in found) for ours, theirs in self.numbers
        )

    def _note(self, key: Key, found: Counterparts, after: Key) -> None:
        """Remember what corresponds to what; equal ones are held once, since most ops keep rows."""
        of = found.of.contiguous()
        name = (found.grid, tuple(of.shape), of.numpy().tobytes())
        trail = self.states[key] = Trail(self.seen.setdefault(name, found), after)
        if trail.touched.num_touched:
            self.flips.setdefault((key.model, key.step), after)

    def _partner(self, call: Call, got: list[Key]) -> Call:
        """The target's call of the same function; golden's where the target has none."""
        for key in got:
            pair = self.ours.get(key)
            other = self.target.call(pair.target) if pair and pair.target else None
            if other is not None and other.op.function == call.op.function:
                return other
        return call

    def _shape(self, key: Key, is_target: bool) -> tuple[int, ...]:
        pair = self.ours.get(key) or self.ours.get(self.golden.first(key))
        if is_target and pair is not None and pair.target and not self._is_assembled(pair):
            return self.target.record(pair.target).shape
        return self.golden.record(key).shape

    def _is_assembled(self, pair: Pair) -> bool:
        """Whether the target's shards became a whole of golden's shape."""
        found = self.measured.get(pair) or self.measured.get(pair.repeats or pair)
        return self.target.num_ranks > 1 and bool(found and found.metrics)

    def _marked(self, key: Key, is_target: bool) -> Marked:
        from dumpcmp.replay.counterparts import all_touched, by_rows, places
        from dumpcmp.replay.marked import Marked

        shapes = [self._shape(key, side) for side in _SIDES]
        state = self.state(key)
        pair = self.ours.get(key) or self.ours.get(self.golden.first(key))
        known = None if state is None else state.counterparts
        if known is None and shapes[0] != shapes[1]:
            known = all_touched(*shapes)
        if known is None:
            marks = places(by_rows(shapes[0]))
        else:
            marks = known.of if is_target else places(known.grid)
        readable = pair is not None and (pair.both or not is_target) and self._is_short(key)

        def read() -> Tensor:
            assert pair is not None
            return self.read(pair, is_target)

        return Marked(marks, shapes[is_target], read if readable else None)

    def _short_values(self, got: list[Key], is_target: bool) -> dict[str, Tensor]:
        """What was given out as integers or booleans."""
        found: dict[str, Tensor] = {}
        for key in got:
            pair = self.ours.get(key)
            few = math.prod(self._shape(key, is_target)) <= _MOST_READ
            if pair is not None and pair.both and few and self._is_short(key):
                found[str(key.slot)] = self.read(pair, is_target)
        return found

    def _lost(self, key: Key, after: Key) -> Trail:
        from dumpcmp.replay.counterparts import all_touched

        return Trail(all_touched(*(self._shape(key, side) for side in _SIDES)), after)


_SIDES = (False, True)


def measure_untouched(
    golden: Value, target: Value, followed: Trail, closeness: Closeness
) -> Metrics | None:
    """The metrics of what no flip touched, each row beside its counterpart; None where all was."""
    of = followed.counterparts.of
    width = target.shape[-1] if target.shape and of.shape[-1] != target.shape[-1] else 1
    kept = (of.reshape(-1) >= 0).numpy()
    rows, others = golden.bits.reshape(-1, width), target.bits.reshape(-1, width)
    is_of_these = kept.size == len(others) and (not of.numel() or int(of.max()) < len(rows))
    if not is_of_these or not kept.any():  # what was followed is not what was paired, or nothing is
        return None
    ours, theirs = rows[of.reshape(-1).numpy()[kept]], others[kept]
    return measure(Value(golden.dtype, ours), Value(target.dtype, theirs), closeness)
