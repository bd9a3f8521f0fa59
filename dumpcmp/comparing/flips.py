"""Follows another choice through the data flow: which rows of later values it has touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dumpcmp.align.listing import Listing
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Touched
from dumpcmp.nouns.row import Closeness, Measured, Metrics, Pair
from dumpcmp.nouns.value import Kind, Value, dtype_named

if TYPE_CHECKING:  # torch is imported where there is something to follow
    from torch import Tensor

    from dumpcmp.replay.counterparts import Counterparts
    from dumpcmp.replay.marked import Marked

Read = Callable[[Pair, bool], "Tensor"]  # the value of a pair: golden's, or the target's (True)
_SHORT = frozenset((Kind.INT, Kind.BOOL))  # what indices and masks are made of
_MOST_READ = 1 << 22  # integers of one value that are read


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


def follow_flips(
    pairs: Sequence[Pair],
    golden: Listing,
    target: Listing,
    measured: Mapping[Pair, Measured],
    read: Read,
) -> dict[Pair, Trail]:
    """The pairs in which anything is another computation than golden's, or stands elsewhere."""
    ours: dict[Key, Pair] = {}
    for pair in pairs:
        if pair.golden and (pair.both or pair.golden not in ours):
            ours[pair.golden] = pair
    walk = _FlipWalk(golden, target, ours, measured, read)
    for site, keys in golden.sites.items():
        walk.visit(site, keys)
    found = {pair: walk.found(pair.golden) for pair in pairs if pair.both and pair.golden}
    return {pair: one for pair, one in found.items() if one is not None}


@dataclass(eq=False, slots=True)
class _FlipWalk:
    """A walk through golden's calls, with what is known of the values so far."""

    golden: Listing
    target: Listing
    ours: Mapping[Key, Pair]
    measured: Mapping[Pair, Measured]
    read: Read
    states: dict[Key, Trail] = field(default_factory=dict)  # by golden's first Key
    flips: dict[tuple[str, int], Key] = field(default_factory=dict)  # the first of a step

    def state(self, key: Key) -> Trail | None:
        return self.states.get(self.golden.first(key))

    def found(self, key: Key) -> Trail | None:
        """What is known of a value; of gradients, that they come from all that was touched."""
        if not key.slot.is_gradient:
            return self.state(key)
        first = self.flips.get((key.model, key.step))
        return self._lost(key, first) if first else None

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
        if call is None or site.op.is_module:
            self.states |= {key: self._lost(key, after) for key in got}
        else:
            self._follow(call, given, got, after)

    def _chose_otherwise(self, key: Key) -> bool:
        """Whether integers differ: they have no rounding."""
        pair = self.ours.get(key)
        if pair is None or not pair.both or not self._is_short(key):
            return False
        found = self.measured.get(pair)
        return found is not None and not (found.metrics is not None and found.metrics.equal)

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
        found = follow(*sides)
        for key in got:
            counterparts = found[str(key.slot)]
            if not counterparts.is_identity:
                self._note(key, Trail(counterparts, after))

    def _note(self, key: Key, state: Trail) -> None:
        self.states[key] = state
        if state.touched.num_touched:
            self.flips.setdefault((key.model, key.step), state.after)

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
        if is_target and pair is not None and pair.target:
            return self.target.record(pair.target).shape
        return self.golden.record(key).shape

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
    if not kept.any():
        return None
    ours = golden.bits.reshape(-1, width)[of.reshape(-1).numpy()[kept]]
    theirs = target.bits.reshape(-1, width)[kept]
    return measure(Value(golden.dtype, ours), Value(target.dtype, theirs), closeness)
