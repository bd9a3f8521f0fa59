"""Which step of the target is which of golden: counted alike, from an offset, or found from data.

A step is known by what its model was given. One side may have run a step more before the first that
both have, such as a warm-up, or have taken a prompt in several steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.listing import Listing
from dumpcmp.align.port.samples import LoadValue
from dumpcmp.judge.tolerances import SAME_VALUE
from dumpcmp.nouns.key import ROOT, Key, Op, Site
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.spoken import counted
from dumpcmp.nouns.value import Kind, dtype_named

Elements = NDArray[Any]
StepInputs = tuple[tuple[object, ...], ...]  # what a step was given: names, dtypes, shapes, digests


@dataclass(frozen=True)
class Counting:
    """How the target counts its steps, model by model, in golden's names."""

    tokens: int = 0  # to be added to the target's steps,
    offsets: Mapping[str, int] = field(default_factory=dict)  # unless this says another number
    golden_aside: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # and why
    target_aside: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # by their own
    remarks: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # golden's, of the target's models

    def offset(self, model: str) -> int:
        """What is to be added to the target's steps of `model`."""
        return self.offsets.get(model, self.tokens)

    def in_golden_terms(self, model: str, step: int) -> int:
        """Golden's number of a step of the target; one that is set aside is none of golden's."""
        model = self.names.get(model, model)
        aside = self.target_aside.get(model, {})
        return -1 - step if step in aside else step + self.offset(model)

    def with_aside(
        self, model: str, offset: int, golden: Iterable[int], target: Iterable[int], said: str
    ) -> Counting:
        """The same, with an offset of one more model, and steps of it that are not compared."""
        told = f"--token-offset {offset} was found from what the steps of {model} were given"
        told += f"; {said}" if said else ""
        return replace(
            self,
            offsets={**self.offsets, model: offset},
            golden_aside={**self.golden_aside, model: dict.fromkeys(golden, said)},
            target_aside={**self.target_aside, model: dict.fromkeys(target, said)},
            remarks=(*self.remarks, told),
        )

    def why_alone(self, model: str, step: int, *, is_golden: bool) -> str:
        """Why the values of a step have no partners; empty where they should."""
        aside = self.golden_aside if is_golden else self.target_aside
        return aside.get(model, {}).get(step, "")


AS_COUNTED = Counting()
_FEWEST = 2  # steps that must have been given the same: one may be so by chance


def found_counting(
    golden: Listing, target: Listing, models: Mapping[str, str], ours: LoadValue, theirs: LoadValue
) -> Counting:
    """How the target counts its steps, from what the steps of both sides were given.

    `models` are golden's names of the target's models.
    """
    found = AS_COUNTED
    for mine, name in models.items():
        one, other = _given(golden, name), _given(target, mine)
        offset = _offset(one, other)
        sides = _Stepped(golden, name, ours), _Stepped(target, mine, theirs)
        if offset and _were_given_alike(*sides, one, offset):
            first = _first(one, other, offset)
            early, late = _before(one, first), _before(other, first - offset)
            said = _said(sides[0].taken(early), sides[1].taken(late), early, late)
            found = found.with_aside(name, offset, early, late, said)
    return found


def tells_its_counting(golden: Listing, target: Listing, models: Mapping[str, str]) -> bool:
    """Whether what the steps were given tells how the target counts them, or never will.

    It does once a step was given what golden's of the same number was, or an offset is found.
    """
    for mine, name in models.items():
        one, other = _given(golden, name), _given(target, mine)
        is_told = any(one.get(step) == given for step, given in other.items())
        if one and other and not is_told and not _offset(one, other):
            return False
    return True


def stated_counting(
    golden: Listing, target: Listing, models: Mapping[str, str], tokens: int
) -> Counting:
    """How the target counts its steps by the user's word."""
    found = Counting(tokens)
    for mine, name in models.items() if tokens else ():
        one = sorted({site.step for site in golden.sites if site.model == name})
        other = sorted({site.step for site in target.sites if site.model == mine})
        if one and other:
            first = max(one[0], other[0] + tokens)
            early, late = _before(one, first), _before(other, first - tokens)
            found = found.with_aside(name, tokens, early, late, _said(None, None, early, late))
    return replace(found, remarks=())


def _before(steps: Iterable[int], first: int) -> list[int]:
    return [step for step in steps if step < first]


def _given(listing: Listing, model: str) -> dict[int, StepInputs]:
    """What each step of a model was given: its integers, or else its floats, to the bit."""
    found: dict[int, StepInputs] = {}
    for site in listing.sites:
        if site.model == model and site.op == ROOT and not site.call:
            keys = [key for key in listing.sites[site] if key.slot.kind == "input"]
            exact = [key for key in keys if _is_exact(listing, key)]
            found[site.step] = tuple(_sign(listing, key) for key in exact or keys)
    return {step: given for step, given in sorted(found.items()) if given}


def _is_exact(listing: Listing, key: Key) -> bool:
    return dtype_named(listing.record(key).dtype).kind in (Kind.INT, Kind.BOOL)


def _sign(listing: Listing, key: Key) -> tuple[object, ...]:
    record = listing.record(key)
    return record.dtype, record.shape, record.digest or listing.record(listing.first(key)).digest


def _offset(golden: Mapping[int, StepInputs], target: Mapping[int, StepInputs]) -> int | None:
    """The offset by which all steps from the first on were given the same, and 0 where none is.

    None is found as long as any step was given what the step of the same number was.
    """
    if not golden or not target:
        return None
    places: dict[StepInputs, list[int]] = {}
    for step, given in golden.items():
        places.setdefault(given, []).append(step)
    votes: dict[int, int] = {0: 0}
    for step, given in target.items():
        for other in places.get(given, ()):
            votes[other - step] = votes.get(other - step, 0) + 1
    best = max(votes, key=lambda offset: votes[offset])
    both = [t for t in target if t + best in golden and t + best >= _first(golden, target, best)]
    alike = all(golden[t + best] == target[t] for t in both)
    return best if alike and not votes[0] and len(both) >= _FEWEST else 0


def _first(golden: Mapping[int, StepInputs], target: Mapping[int, StepInputs], offset: int) -> int:
    """Golden's first step that both sides were given alike."""
    same = (t + offset for t, given in target.items() if golden.get(t + offset) == given)
    return min(same, default=0)


@dataclass(frozen=True)
class _Stepped:
    """What the steps of one model were given, with their elements."""

    listing: Listing
    model: str
    load: LoadValue

    def keys(self, step: int) -> dict[str, Key]:
        """What a step was given, by slot."""
        keys = self.listing.sites.get(Site(self.model, step, Op(ROOT), 0), [])
        return {key.slot: key for key in keys if key.slot.kind == "input"}

    def numbers(self, key: Key) -> Elements | None:
        """The elements of a value, where they are kept."""
        record = self.listing.record(self.listing.first(key))
        return None if record.kept is not Kept.FULL else self.load(record).numbers()

    def taken(self, steps: Iterable[int]) -> Elements | None:
        """The integers that some steps were given, one after another along their last dim."""
        rows = []
        for step in steps:
            keys = [key for key in self.keys(step).values() if _is_exact(self.listing, key)]
            row = self.numbers(keys[0]) if keys else None
            if row is None or not row.shape:
                return None
            rows.append(row)
        if not rows or len({row.shape[:-1] for row in rows}) > 1:
            return None
        return np.concatenate(rows, -1)


def _were_given_alike(
    golden: _Stepped, target: _Stepped, given: Mapping[int, StepInputs], offset: int
) -> bool:
    """Whether floats that steps were given besides, such as a state, are near each other, too."""
    for step in given:
        ours, theirs = golden.keys(step), target.keys(step - offset)
        for slot in ours.keys() & theirs.keys():
            one, other = golden.numbers(ours[slot]), target.numbers(theirs[slot])
            if one is None or other is None or one.shape != other.shape:
                continue
            norm = float(np.linalg.norm(one.astype(np.float64)))
            if float(np.linalg.norm(other.astype(np.float64) - one)) > SAME_VALUE * norm:
                return False
    return True


def _said(
    golden: Elements | None, target: Elements | None, early: Sequence[int], late: Sequence[int]
) -> str:
    """What is known of the steps before the first that both sides have."""
    if golden is not None and target is not None and np.array_equal(golden, target):
        return (
            f"not compared: the same {counted(golden.shape[-1], 'token')}, which golden takes in "
            f"{counted(len(early), 'step')} and my side in {len(late)}; what follows from them is"
        )
    ran = [f"{side} ran {len(steps)}" for side, steps in (("golden", early), ("my side", late))
           if steps]  # fmt: skip
    told = f"not compared: before the first step that both have, {' and '.join(ran)} more"
    return told if ran else ""
