"""What optimizers keep of weights at the end of both runs, held against the gradients of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.side import Shares, Side
from dumpcmp.comparing.trained import (
    Courses,
    TakenGradient,
    WeightPast,
    flat_tensor,
    is_stored,
)
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.effects import Effect, parameters_kept
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Measured, Pair

if TYPE_CHECKING:  # torch is imported where there is something to run
    from dumpcmp.replay.kept_sums import KeptCourse

_LARGE = 1 << 26  # bytes of all that is read of a weight that is asked for another


@dataclass(frozen=True, slots=True)
class _KeptPast:
    """What one run keeps of a weight, and what came before."""

    kept: Shares
    past: WeightPast

    @property
    def gradients(self) -> list[tuple[TakenGradient, Shares]]:
        """Each gradient, and the weight that it is of."""
        both = zip(self.past.weights, self.past.gradients, strict=True)
        return [(gradient, weight) for weight, some in both for gradient in some]

    @property
    def shares(self) -> Iterator[Shares]:
        """All that is to be read."""
        yield self.kept
        for gradient, weight in self.gradients:
            yield from (gradient.value, weight)


@dataclass(frozen=True, slots=True)
class KeptState:
    """A tensor that the optimizers of both runs keep of one weight, for a worker to read."""

    slot: str
    golden: _KeptPast
    target: _KeptPast
    peer: _KeptPast | None = None  # the same of another weight of golden's
    is_divided: bool = False  # ranks that should keep the same do not, whatever it was made of

    @property
    def word(self) -> str:
        """What an optimizer calls it: ``exp_avg``."""
        return self.slot.rpartition(".")[2]

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        sides = self.golden, self.target
        return sum(shares.nbytes for side in sides for shares in side.shares)


def kept_states(
    pairs: Sequence[Pair], courses: Courses, golden: Side, target: Side,
    found_of: Callable[[Pair], Measured | None],
) -> dict[Pair, KeptState]:  # fmt: skip
    """What optimizers keep, among `pairs`, that is not the same in both runs."""
    states: dict[Pair, KeptState] = {}
    for pair in pairs:
        key = pair.golden
        if key is None or pair.target is None or key.op != Effect.OPTIMIZER.op:
            continue
        found = found_of(pair)
        if found is not None and found.metrics is not None and found.metrics.equal:
            continue
        if found is not None and found.laid is not None and found.laid.finding:
            none = WeightPast()
            ours = _KeptPast(golden.shares(key), none)
            theirs = _KeptPast(target.shares(pair.target), none)
            states[pair] = KeptState(str(key.slot), ours, theirs, is_divided=True)
            continue
        known = (courses.past_of((key.model, *one)) for one in parameters_kept(key))
        pasts = next((each for each in known if each is not None), None)
        if pasts is not None:
            ours = _KeptPast(golden.shares(key), pasts[0])
            theirs = _KeptPast(target.shares(pair.target), pasts[1])
            states[pair] = KeptState(str(key.slot), ours, theirs)
    return _with_peers(states)


def _with_peers(states: dict[Pair, KeptState]) -> dict[Pair, KeptState]:
    """`states`, each with the largest of its kind that is no large one."""
    peers: dict[str, KeptState] = {}
    for one in states.values():
        before = peers.get(one.word)
        if (
            not one.is_divided
            and one.nbytes <= _LARGE
            and (before is None or before.nbytes < one.nbytes)
        ):
            peers[one.word] = one
    return {
        pair: replace(one, peer=peers[one.word].golden if one.word in peers else None)
        for pair, one in states.items()
    }


def replay_states(states: Mapping[Pair, KeptState], executor: Executor) -> dict[Pair, Replay]:
    """What golden's optimizer makes of the target's gradients, beside what the target keeps."""
    return dict(zip(states, run_batched(_replayed, [*states.values()], executor), strict=True))


def _replayed(states: Sequence[KeptState]) -> Iterator[Replay]:
    for state in states:
        try:
            yield _replay(state)
        except DumpcmpError as error:
            yield Replay(unknown=error.message)


def _replay(state: KeptState) -> Replay:
    from dumpcmp.replay.kept_sums import CANNOT_SUM

    if state.is_divided:
        return Replay()  # how it lies tells which rank is wrong
    sides = state.golden, state.target
    if not all(side.gradients for side in sides):
        return Replay(unknown="no gradients are recorded of which an optimizer made it")
    if not all(is_stored(each.first) for side in sides for each in side.shares):
        return Replay(unknown="not all is kept of it that an optimizer made it of")
    if len({each.first.shape for side in sides for each in side.shares}) > 1:
        return Replay(unknown=CANNOT_SUM)
    found = Replay(unknown=CANNOT_SUM)
    # this weight may be none of those that were clipped
    for is_clipped in (True, False) if any(side.past.is_clipped for side in sides) else (True,):
        for with_weights in (False, True):  # which are as much to read as the gradients
            one = _by_sum(state, is_clipped, with_weights)
            if one.is_known and not wrong(one):
                return one
            found = one if not found.is_known else found
            if one.is_known:
                break
    return found


def _by_sum(state: KeptState, is_clipped: bool, with_weights: bool) -> Replay:
    from dumpcmp.replay.kept_sums import replayed_sum

    sides = state.golden, state.target
    golden, target = (_course(side, is_clipped, with_weights) for side in sides)
    return replayed_sum(golden, target, state.slot, lambda: _peer(state, is_clipped, with_weights))


def _peer(state: KeptState, is_clipped: bool, with_weights: bool) -> KeptCourse | None:
    peer = state.peer
    if peer is None or not all(is_stored(each.first) for each in peer.shares):
        return None
    is_one_shape = len({each.first.shape for each in peer.shares}) == 1
    return _course(peer, is_clipped, with_weights) if is_one_shape and peer.gradients else None


def _course(side: _KeptPast, is_clipped: bool, with_weights: bool) -> KeptCourse:
    from dumpcmp.replay.kept_sums import KeptCourse

    gradients = [gradient.flat(is_clipped) for gradient, _ in side.gradients]
    weights = [flat_tensor(weight) for _, weight in side.gradients if with_weights]
    return KeptCourse(flat_tensor(side.kept), gradients, weights)
