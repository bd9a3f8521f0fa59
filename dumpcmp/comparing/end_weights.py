"""Parameters and buffers at the end of both runs, judged as those of one more step would be.

A run records its weights with the first step, and again with each step before which they changed.
What they are after the last one is an effect. Here that becomes a step of weights alone, behind the
last, so that optimizers, moments and rounding are judged as between two steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dumpcmp.align.counting import Counting
from dumpcmp.align.listing import Listing
from dumpcmp.comparing.effect_facts import last_recorded, last_step, records_effects
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.staleness import WeightName
from dumpcmp.nouns.effects import Effect, parameters_kept
from dumpcmp.nouns.key import ROOT, Key, Op, Slot
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Judgement, Pair, PairedBy, Row, Why

_Shards = tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class _Paired:
    """A weight of both runs as it was recorded last."""

    pair: Pair
    golden: _Shards
    target: _Shards


@dataclass(frozen=True, slots=True)
class _End:
    """What one run says of a model at its end."""

    model: str
    step: int  # that has the effect
    after: int  # the last step that ran
    changed: Mapping[WeightName, _Shards]

    def key(self, name: WeightName) -> Key:
        """The weight in the step behind the last."""
        return Key(self.model, self.after + 1, name[1], 0, name[2])

    def effect(self, name: WeightName) -> Key:
        """What a report calls it."""
        kind, _, word = name[2].partition(".")
        path = "" if name[1] == ROOT else f"{name[1]}."
        return Key(self.model, self.step, Effect.STATE.op, 0, f"{kind}.{path}{word}")


@dataclass(slots=True, eq=False)
class EndWeights:
    """The weights of two runs, while a comparison goes through the steps, up to their ends."""

    _known: dict[WeightName, list[_Paired]] = field(default_factory=dict)
    names: dict[Key, Key] = field(default_factory=dict)  # what reports call those at the end
    alone: dict[str, list[str]] = field(default_factory=dict)  # by side: changed, without a partner
    _failed: dict[WeightName, Key] = field(default_factory=dict)  # which was wrong before the end

    def remember(self, weights: Iterable[tuple[Record, Record]]) -> None:
        """Know weights that are their own partners."""
        for ours, theirs in weights:
            pair = Pair(ours.key, theirs.key, PairedBy.KEY)
            self._known[_name(ours.key)] = [_Paired(pair, (ours,), (theirs,))]

    def _note(self, pairs: Sequence[Pair], golden: Listing, target: Listing) -> None:
        fresh: dict[WeightName, list[_Paired]] = {}
        steps: dict[WeightName, int] = {}
        for pair in pairs:
            ours, theirs = pair.golden, pair.target
            if ours is None or theirs is None or not ours.slot.is_weight:
                continue
            if not theirs.slot.is_weight:
                continue
            name = _name(ours)
            if steps.get(name, -1) < ours.step:
                steps[name], fresh[name] = ours.step, []
            fresh[name].append(_Paired(pair, golden.values[ours], target.values[theirs]))
        self._known |= fresh

    def with_ends(
        self, pairs: Sequence[Pair], golden: Side, target: Side, counting: Counting
    ) -> tuple[list[Pair], Side, Side]:
        """`pairs`, and those of weights at the end where both runs tell of it."""
        self._note(pairs, golden.listing, target.listing)
        ours, theirs = _ends(golden), _ends(target)
        more: list[tuple[Pair, _Shards, _Shards]] = []
        for model, end in theirs.items():
            name = counting.names.get(model, model)
            begun = ours.get(name)
            if begun and counting.in_golden_terms(model, end.after) == begun.after:
                more += self._paired(begun, end)
        if not more:
            return list(pairs), golden, target
        ours_more = {pair.golden: shards for pair, shards, _ in more if pair.golden}
        theirs_more = {pair.target: shards for pair, _, shards in more if pair.target}
        sides = _listing(golden, ours_more), _listing(target, theirs_more)
        return [*pairs, *(pair for pair, _, _ in more)], *sides

    def _paired(self, golden: _End, target: _End) -> Iterator[tuple[Pair, _Shards, _Shards]]:
        """The weights that changed on either side, as both have them at the end."""
        done: tuple[set[WeightName], set[WeightName]] = (set(), set())
        for name, some in self._known.items():
            if name[0] != golden.model:
                continue
            for one in some:
                assert one.pair.golden is not None and one.pair.target is not None
                other = _name(one.pair.target)
                if name not in golden.changed and other not in target.changed:
                    continue
                done[0].add(name)
                done[1].add(other)
                pair = replace(
                    one.pair, golden=golden.key(name), target=target.key(other), repeats=None
                )
                yield self._told(pair, golden, target, name, other, one)
        self._left("golden", golden.changed.keys() - done[0])
        self._left("my side", target.changed.keys() - done[1])

    def _told(
        self, pair: Pair, golden: _End, target: _End, name: WeightName, other: WeightName,
        one: _Paired,
    ) -> tuple[Pair, _Shards, _Shards]:  # fmt: skip
        assert pair.golden is not None and pair.target is not None
        self.names[pair.golden] = golden.effect(name)
        self.names[pair.target] = target.effect(other)
        ours = _at(pair.golden, golden.changed.get(name, one.golden))
        theirs = _at(pair.target, target.changed.get(other, one.target))
        return pair, ours, theirs

    def _left(self, side: str, names: Iterable[WeightName]) -> None:
        found = [f"{name[1]}.{name[2].partition('.')[2]}" for name in names]
        if found:
            self.alone.setdefault(side, []).extend(found)

    def remarks(self) -> Iterator[str]:
        """Weights that changed and that the other side has under no name that is known."""
        for side, names in self.alone.items():
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"{side}: {names[0]}{others} at the end was compared with nothing"

    def told(self, rows: Sequence[Row]) -> list[Row]:
        """`rows`, in which weights at the end have the names of effects.

        One that was wrong before its end follows from that, and what an optimizer keeps of it.
        """
        for row in rows:
            if row.verdict.fails and row.key.slot.is_weight and row.key not in self.names:
                self._failed.setdefault(_name(row.key), row.cause or row.key)
        return [self.renamed(self._following(row)) for row in rows]

    def _following(self, row: Row) -> Row:
        names = [_name(row.key)] if row.key in self.names else []
        names += [(row.key.model, op, slot) for op, slot in parameters_kept(row.key)]
        failed = (self._failed[name] for name in names if row.root and name in self._failed)
        cause = next(failed, None)
        if cause is None:
            return row
        judgement = replace(row.judgement, why=Why.PLAIN, origin=Origin.INHERITED)
        return replace(row, root=False, cause=cause, judgement=judgement)

    def renamed(self, row: Row) -> Row:
        """`row` under the names of effects, if it is of weights at the end."""
        keys = (row.key, row.golden_key, row.target_key, row.cause)
        if not any(key in self.names for key in keys if key is not None):
            return row
        key, golden, target, cause = (self.names.get(k, k) if k else None for k in keys)
        assert key is not None
        judgement = row.judgement
        if row.key in self.names:
            judgement = _in_words(judgement, row.key.step)
        return replace(
            row, key=key, golden_key=golden, target_key=target, cause=cause, judgement=judgement
        )


def _in_words(judgement: Judgement, step: int) -> Judgement:
    """A judgement on the step behind the last, which is no token of its own."""
    said = judgement.reason.replace(f"before token {step} ", f"after token {step - 1} ")
    return judgement if said == judgement.reason else replace(judgement, reason=said)


def _name(key: Key) -> WeightName:
    return key.model, key.op, key.slot


def _at(key: Key, shards: _Shards) -> _Shards:
    return tuple(replace(record, key=key, same_as=None) for record in shards)


def _listing(side: Side, more: Mapping[Key, _Shards]) -> Side:
    own = side.listing
    return replace(side, listing=Listing({**own.values, **more}, own.calls, own.num_ranks))


def _ends(side: Side) -> dict[str, _End]:
    """What a run says of its models at its end, as far as that is in these steps.

    A run that records effects and says nothing of its weights has left them as they were.
    """
    found: dict[str, _End] = {}
    for model, step in side.effects if records_effects(side.archive, Effect.STATE) else ():
        if step == last_recorded(side, model):
            after = last_step(side, model)
            found[model] = _End(model, step, after, dict(_changed(side, model, step)))
    return found


def _changed(side: Side, model: str, step: int) -> Iterator[tuple[WeightName, _Shards]]:
    for key, shards in side.effect_values.items():
        if (key.model, key.step, key.op) == (model, step, Effect.STATE.op):
            kind, _, path = key.slot.partition(".")
            module, _, word = path.rpartition(".")
            yield (model, Op(module or ROOT), Slot(f"{kind}.{word}")), shards
