"""Finds parameters and buffers that changed between the steps of one run and not of the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.leaves import name_of
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.summaries import load_summary
from dumpcmp.judge.tolerances import noise
from dumpcmp.nouns.arithmetic import variance_beside
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.leaf import LeafFinding, LeafKind
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Metrics, Pair
from dumpcmp.nouns.value import dtype_named
from dumpcmp.summary.estimates import estimate

WeightName = tuple[str, Op, Slot]  # of a weight, whatever the step


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight as both sides recorded it last, one of them first."""

    record: Record
    other: Record


@dataclass(slots=True, eq=False)
class WeightHistory:
    """The latest values of all weights, while a comparison goes through the steps.

    A run records its weights with the first step, and again with each step before which they
    were written to. One that the other run did not write to is as it was there.
    """

    golden: dict[WeightName, _Weight] = field(default_factory=dict)
    target: dict[WeightName, _Weight] = field(default_factory=dict)

    def stale(self, pairs: Sequence[Pair], golden: Side, target: Side) -> dict[Pair, LeafFinding]:
        """The weights among `pairs`, in order of execution, that are new on one side alone."""
        if not (_follows_weights(golden.archive) and _follows_weights(target.archive)):
            return {}
        found: dict[Pair, LeafFinding] = {}
        for pair in pairs:
            if not pair.key.slot.is_weight:
                continue
            if pair.golden and pair.target:
                ours, theirs = (
                    golden.listing.record(pair.golden),
                    target.listing.record(pair.target),
                )
                kept = self._kept(pair, _Weight(ours, theirs), golden, target)
                found |= {pair: kept} if kept else {}
                self._note(ours, theirs)
            elif (finding := self._finding(pair, golden, target)) is not None:
                found[pair] = finding
        return found

    def _note(self, ours: Record, theirs: Record) -> None:
        self.golden[_name(ours.key)] = _Weight(ours, theirs)
        self.target[_name(theirs.key)] = _Weight(theirs, ours)

    def agrees_on(self, weights: Iterable[tuple[Record, Record]]) -> bool:
        """Whether both sides had the same of all `weights` before, as they have now.

        Then neither was written to where the other was not.
        """
        before = (self.golden.get(_name(ours.key)) for ours, _ in weights)
        return all(w is None or w.record.digest == w.other.digest != "" for w in before)

    def remember(
        self, weights: Iterable[tuple[Record, Record]], golden: Archive, target: Archive
    ) -> None:
        """Know `weights` that are the same on both sides."""
        if _follows_weights(golden) and _follows_weights(target):
            for ours, theirs in weights:
                self._note(ours, theirs)

    def _kept(self, pair: Pair, now: _Weight, golden: Side, target: Side) -> LeafFinding | None:
        """What to say of a weight that both have and that only golden's run has written to."""
        before = self.golden.get(_name(pair.key))
        if before is None or _digest(target, now.other) != _digest(target, before.other):
            return None
        far = _change(golden, before.record, now.record)
        if far is None or far.equal or _is_rounding(golden, now.record, far):
            return None
        return _told(pair.key, far, "golden's", "the target's")

    def _finding(self, pair: Pair, golden: Side, target: Side) -> LeafFinding | None:
        """What to say of a weight that one side alone has; None where it is as it was before."""
        key, is_golden = pair.key, pair.golden is not None
        before = (self.golden if is_golden else self.target).get(_name(key))
        changed, other = (golden, target) if is_golden else (target, golden)
        if before is None or not _has_step(other, before, key):
            return None
        far = _change(changed, before.record, changed.listing.record(key))
        if far is None or far.equal:
            return None
        who, whom = ("golden's", "the target's") if is_golden else ("the target's", "golden's")
        return _told(key, far, who, whom)


def _is_rounding(side: Side, record: Record, far: Metrics) -> bool:
    """Whether a mean that a batch norm keeps moved by no more than the mean of its batch rounds.

    What is normalised behind another norm has the mean zero, but for that.
    """
    beside = variance_beside(record.key)
    if beside is None or beside == record.key or beside not in side.listing.values:
        return False
    try:
        variance = load_summary(side.archive, side.listing.record(beside)).mean
    except DumpcmpError:  # which the row of the value tells
        return False
    eps = dtype_named(record.dtype).eps
    return variance > 0 and far.rmse <= noise(eps, 0) * math.sqrt(variance)


def _told(key: Key, far: Metrics, who: str, whom: str) -> LeafFinding:
    said = (
        f"{name_of(key)} is not the same tensor: {who} changed before token {key.step} "
        f"(rel_l2 {far.rel_l2:.3g}), {whom} did not"
    )
    kind = LeafKind.PARAMETER if key.slot.kind == "param" else LeafKind.BUFFER
    return LeafFinding(key, kind, said, far.rel_l2)


def _digest(side: Side, record: Record) -> str:
    """Of the elements of a weight; its own name where nobody took it."""
    if record.stored is None:
        return record.digest or str(record.key)
    summary = load_summary(side.archive, record)
    return summary.digest or summary.checksum or str(record.key)


def _name(key: Key) -> WeightName:
    return key.model, key.op, key.slot


def _follows_weights(archive: Archive) -> bool:
    """Whether a run recorded weights again where they had changed."""
    stated = [facts.get("run", {}) for facts in archive.run.values()]
    return bool(stated) and all(run.get("follows_weights") for run in stated)


def _has_step(other: Side, before: _Weight, key: Key) -> bool:
    """Whether the other side has the step before which a weight should have changed."""
    model, step = before.other.key.model, key.step - before.record.key.step + before.other.key.step
    return any(site[:2] == (model, step) for site in other.listing.sites)


def _change(side: Side, before: Record, after: Record) -> Metrics | None:
    """How far a weight is from what it was; None where nobody can tell."""
    try:
        now = load_summary(side.archive, after)
        return estimate(load_summary(side.archive, before, now.recipe), now)
    except DumpcmpError:  # which the row of the value tells
        return None
