"""Finds parameters and buffers that changed between the steps of one run and not of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dumpcmp.comparing.leaves import name_of
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.summaries import load_summary
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.leaf import LeafFinding, LeafKind
from dumpcmp.nouns.row import Pair
from dumpcmp.summary.estimates import estimate
from dumpcmp.summary.summary import DEFAULT, Recipe, Summary

_Name = tuple[str, Op, Slot]  # of a weight, whatever the step


def stale_weights(pairs: Sequence[Pair], golden: Side, target: Side) -> dict[Pair, LeafFinding]:
    """The weights among `pairs`, in order of execution, of which one side alone has a new value.

    A run records its weights with the first step, and again with each step before which they
    were written to. One that the other run did not write to is as it was there.
    """
    sides = _Changes(golden), _Changes(target)
    if not all(side.is_followed for side in sides):
        return {}
    found: dict[Pair, LeafFinding] = {}
    for pair in pairs:
        if not pair.key.slot.is_weight:
            continue
        if pair.golden and pair.target:
            for side, key in zip(sides, (pair.golden, pair.target), strict=True):
                side.latest[_name(key)] = pair
            continue
        finding = _finding(pair, *(sides if pair.golden else sides[::-1]))
        if finding is not None:
            found[pair] = finding
    return found


@dataclass
class _Changes:
    """One side, and the latest value of each of its weights, as a pair."""

    side: Side
    latest: dict[_Name, Pair] = field(default_factory=dict)

    @property
    def is_followed(self) -> bool:
        """Whether the run recorded weights again where they had changed."""
        stated = [facts.get("run", {}) for facts in self.side.archive.run.values()]
        return bool(stated) and all(run.get("follows_weights") for run in stated)

    def has_step(self, model: str, step: int) -> bool:
        return any(site[:2] == (model, step) for site in self.side.listing.sites)

    def summary(self, key: Key, recipe: Recipe = DEFAULT) -> Summary:
        return load_summary(self.side.archive, self.side.listing.record(key), recipe)


def _name(key: Key) -> _Name:
    return key.model, key.op, key.slot


def _finding(pair: Pair, changed: _Changes, other: _Changes) -> LeafFinding | None:
    """What to say of a weight that is new on the `changed` side alone; None if it is as before."""
    key, before = pair.key, changed.latest.get(_name(pair.key))
    if before is None:
        return None
    was, theirs = before.golden, before.target
    assert was and theirs
    was, theirs = (was, theirs) if pair.golden else (theirs, was)
    if not other.has_step(theirs.model, key.step - was.step + theirs.step):
        return None
    try:
        ours = changed.summary(key)
        far = estimate(changed.summary(was, ours.recipe), ours)
    except DumpcmpError:  # which the row of the value tells
        return None
    if far.equal:
        return None
    who, whom = ("golden's", "the target's") if pair.golden else ("the target's", "golden's")
    said = (
        f"{name_of(key)} is not the same tensor: {who} changed before token {key.step} "
        f"(rel_l2 {far.rel_l2:.3g}), {whom} did not"
    )
    kind = LeafKind.PARAMETER if key.slot.kind == "param" else LeafKind.BUFFER
    return LeafFinding(key, kind, said, far.rel_l2)
