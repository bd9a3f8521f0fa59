"""Weights that an optimizer made: what each was in both runs, and the gradients in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.clipping import clip_factors
from dumpcmp.comparing.side import Shares, Side, archive_at
from dumpcmp.comparing.staleness import WeightName
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.layouts import Layout, Mode, parse_layout
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Measured, Pair
from dumpcmp.nouns.value import Kind, dtype_named, to_torch

if TYPE_CHECKING:  # torch is imported where there is something to run
    from torch import Tensor

    from dumpcmp.replay.updating import Course

_MOST, _LATELY = 16, 3  # weights that are looked back on: if need be, and at first
_LARGE = 1 << 26  # bytes of all that is read of a weight


@dataclass(frozen=True, slots=True)
class TakenGradient:
    """A gradient, and by how much it was clipped before an optimizer took it."""

    value: Shares
    factor: float = 1.0

    def flat(self, is_clipped: bool) -> Tensor:
        """Its elements in a row, as they were recorded or as they were taken."""
        found = flat_tensor(self.value)
        return found.double() * self.factor if is_clipped and self.factor != 1.0 else found


@dataclass(frozen=True, slots=True)
class WeightPast:
    """What one run had of a weight, up to one step of it."""

    weights: tuple[Shares, ...] = ()
    gradients: tuple[tuple[TakenGradient, ...], ...] = ()  # since each of `weights`
    is_whole: bool = True  # nothing comes before

    def with_weight(self, weight: Shares) -> WeightPast:
        """The same and what the weight is now."""
        weights, gradients = (*self.weights, weight), (*self.gradients, ())
        is_whole = self.is_whole and len(weights) <= _MOST
        return WeightPast(weights[-_MOST:], gradients[-_MOST:], is_whole)

    def with_gradient(self, gradient: TakenGradient) -> WeightPast:
        """The same and a gradient since."""
        *before, latest = self.gradients
        return WeightPast(self.weights, (*before, (*latest, gradient)), self.is_whole)

    def lately(self) -> WeightPast:
        """The last of it, which is all that most optimizers need."""
        is_whole = self.is_whole and len(self.weights) <= _LATELY
        return WeightPast(self.weights[-_LATELY:], self.gradients[-_LATELY:], is_whole)

    @property
    def shares(self) -> Iterator[Shares]:
        """All that is to be read."""
        yield from self.weights
        for some in self.gradients:
            yield from (each.value for each in some)

    @property
    def is_clipped(self) -> bool:
        """Whether a gradient was clipped."""
        return any(each.factor != 1.0 for some in self.gradients for each in some)


@dataclass(frozen=True, slots=True)
class Update:
    """A weight that both runs have made of gradients, for a worker to read."""

    slot: str
    golden: WeightPast
    target: WeightPast
    peer: WeightPast | None = None  # another weight that golden's optimizer made

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return sum(each.nbytes for past in (self.golden, self.target) for each in past.shares)

    def lately(self) -> Update:
        """The same by the last of what is known."""
        peer = None if self.peer is None else self.peer.lately()
        return Update(self.slot, self.golden.lately(), self.target.lately(), peer)


@dataclass(slots=True, eq=False)
class Courses:
    """The weights of two runs on one rank each, while a comparison goes through the steps."""

    _known: dict[WeightName, tuple[WeightPast, WeightPast]] = field(default_factory=dict)
    _is_whole: bool = True  # no step was passed by

    def pass_by(self) -> None:
        """Steps come whose gradients nobody looks at: what was before tells nothing any more."""
        self._known.clear()
        self._is_whole = False

    def updates(
        self,
        pairs: Sequence[Pair],
        golden: Side,
        target: Side,
        found_of: Callable[[Pair], Measured | None],
    ) -> dict[Pair, Update]:
        """Weights among `pairs`, in order of execution, that were made and are not the same."""
        if golden.facts.num_ranks > 1 or target.facts.num_ranks > 1:
            return {}
        found: dict[Pair, Update] = {}
        clipped = clip_factors(golden), clip_factors(target)
        for pair in pairs:
            key = pair.golden
            # What has a weight's numbers besides, such as an input, is no other weight.
            if key is None or pair.target is None or pair.target.slot.kind != key.slot.kind:
                continue
            if key.slot.kind == "param":
                update = self._grown(key, golden.shares(key), target.shares(pair.target))
                if update is not None and not _is_equal(found_of(pair)):
                    found[pair] = update
            elif key.slot.is_parameter_gradient:
                ours = _at_last(golden.shares(key))
                theirs = _at_last(target.shares(pair.target), found_of(pair))
                factors = (
                    clipped[0].get((key.model, key.step), 1.0),
                    clipped[1].get((pair.target.model, pair.target.step), 1.0),
                )
                self._taken(key, TakenGradient(ours, factors[0]), TakenGradient(theirs, factors[1]))
        return _with_peers(found)

    def past_of(self, name: WeightName) -> tuple[WeightPast, WeightPast] | None:
        """What both runs had of a weight so far, as golden names it."""
        return self._known.get(name)

    def _grown(self, key: Key, ours: Shares, theirs: Shares) -> Update | None:
        """Know what a weight is now; how it was made, where that is known."""
        name = key.model, key.op, key.slot
        before = self._known.get(name) or (WeightPast(is_whole=self._is_whole),) * 2
        now = self._known[name] = before[0].with_weight(ours), before[1].with_weight(theirs)
        is_made = bool(before[0].weights) and bool(before[0].gradients[-1])
        return Update(str(key.slot), *now) if is_made else None

    def _taken(self, key: Key, ours: TakenGradient, theirs: TakenGradient) -> None:
        name = key.model, key.op, key.slot.value
        if (before := self._known.get(name)) is not None:
            self._known[name] = before[0].with_gradient(ours), before[1].with_gradient(theirs)


def _is_equal(found: Measured | None) -> bool:
    """Whether both sides of a pair are the same to the bit."""
    return found is not None and found.metrics is not None and found.metrics.equal


def _at_last(gradient: Shares, found: Measured | None = None) -> Shares:
    """What a gradient was when all microbatches had gone back: the others have sums so far."""
    layout = parse_layout(found.laid.layout) if found and found.laid else Layout()
    goes_back = any(placement.mode is Mode.REWINDING for placement in layout.over)
    return replace(gradient, records=(gradient.records[0 if goes_back else -1],))


def _with_peers(updates: dict[Pair, Update]) -> dict[Pair, Update]:
    """`updates`, each with the largest weight of its model and step that is no large one."""
    peers: dict[tuple[str, int], Update] = {}
    for pair, update in updates.items():
        before = peers.get((pair.key.model, pair.key.step))
        if update.nbytes <= _LARGE and (before is None or before.nbytes < update.nbytes):
            peers[(pair.key.model, pair.key.step)] = update
    found = {pair: peers.get((pair.key.model, pair.key.step)) for pair in updates}
    return {pair: replace(one, peer=p.golden if (p := found[pair]) else None)
            for pair, one in updates.items()}  # fmt: skip


def replay_updates(updates: Mapping[Pair, Update], executor: Executor) -> dict[Pair, Replay]:
    """What golden's optimizer makes of the target's gradients, beside what the target has."""
    return dict(zip(updates, run_batched(_replayed, [*updates.values()], executor), strict=True))


def _replayed(updates: Sequence[Update]) -> Iterator[Replay]:
    from dumpcmp.replay.updating import CANNOT_TELL

    for update in updates:
        try:
            found = _replay(update.lately())
            is_all = update.lately() == update
            yield _replay(update) if found.unknown == CANNOT_TELL and not is_all else found
        except DumpcmpError as error:
            yield Replay(unknown=error.message)


def _replay(update: Update) -> Replay:
    pasts = update.golden, update.target
    if not all(is_stored(each.first) for past in pasts for each in past.shares):
        return Replay(unknown="not all is kept of it that an optimizer made it of")
    if len({each.first.shape for past in pasts for each in past.shares}) > 1:
        return Replay(unknown="it had another shape before")
    found = _by_rule(update, True)
    if (found.is_known and not wrong(found)) or not any(past.is_clipped for past in pasts):
        return found
    other = _by_rule(update, False)  # this weight may be none of those that were clipped
    return other if other.is_known and not wrong(other) else found


def _by_rule(update: Update, is_clipped: bool) -> Replay:
    from dumpcmp.replay.updating import replayed_update

    golden, target = (_course(past, is_clipped) for past in (update.golden, update.target))
    return replayed_update(golden, target, update.slot, lambda: _peer(update, is_clipped))


def _peer(update: Update, is_clipped: bool) -> Course | None:
    past = update.peer
    is_there = past is not None and all(is_stored(each.first) for each in past.shares)
    return _course(past, is_clipped) if past is not None and is_there else None


def is_stored(record: Record) -> bool:
    """Whether all elements of a value are there, and are floats."""
    return record.kept is Kept.FULL and dtype_named(record.dtype).kind is Kind.FLOAT


def _course(past: WeightPast, is_clipped: bool) -> Course:
    from dumpcmp.replay.updating import Course

    gradients = [[each.flat(is_clipped) for each in some] for some in past.gradients[:-1]]
    return Course([flat_tensor(each) for each in past.weights], gradients, past.is_whole)


def flat_tensor(shares: Shares) -> Tensor:
    """The elements of a value of one rank in a row."""
    return to_torch(archive_at(shares.path).load(shares.first)).reshape(-1)
