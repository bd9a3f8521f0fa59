"""Holds the calls of both runs against each other: the function, and what is no tensor of it.

What only says where a result lies, how a call is spelled, or what is the default anyway makes no
difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.spelling import (
    DIMS,
    Calling,
    are_near,
    asked_dtype,
    is_without_effect,
    plain_argument,
    taken_of,
)
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.families import family_of, is_cast, is_shaping
from dumpcmp.nouns.given import (
    DtypeWord,
    Stand,
    is_number,
    is_whole,
    read_arguments,
    spelled_argument,
)
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.op_names import OpSet, canonical, plain_name
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Pair, PairedBy

DtypePairs = frozenset[tuple[str, str]]
_Differing = list[tuple[str, Any, Any]]  # name, golden's, the target's


def call_differences(
    pairs: Sequence[Pair], golden: Listing, target: Listing
) -> dict[Site, CallDifference]:
    """What paired calls differ in, by golden's call."""
    dtypes = _precisions(pairs, golden, target)
    partitioned = golden.num_ranks > 1 or target.num_ranks > 1
    found = {}
    for ours, theirs in _paired_calls(pairs, golden, target):
        difference = _difference(_Asking(ours, theirs, dtypes, partitioned))
        if difference is not None:
            found[ours.call.site] = difference
    return found


# Which calls


def _paired_calls(
    pairs: Sequence[Pair], golden: Listing, target: Listing
) -> Iterator[tuple[Calling, Calling]]:
    """The calls whose values found each other, and those that a fused kernel keeps to itself."""
    seen: set[Site] = set()
    for pair in pairs:
        if pair.golden is None or pair.golden.site in seen:
            continue
        site = pair.golden.site
        theirs = target.calls.get(_partner(pair) or site)
        ours = golden.calls.get(site) if _partner(pair) else None
        if ours is None or theirs is None:
            continue
        seen.add(site)
        if not _is_told(ours, theirs):
            one, other = _calling(ours, golden), _calling(theirs, target)
            if one is not None and other is not None:
                yield one, other


def _partner(pair: Pair) -> Site | None:
    """The target's call of which `pair` shows that it is golden's.

    What a kernel stores may be the value of another op on the way: that makes no pair of calls.
    """
    if pair.golden is None or pair.by in (PairedBy.VALUE, PairedBy.COLLECTIVE):
        return None
    if pair.target is None:
        return pair.golden.site if pair.inside else None
    if pair.by in (PairedBy.PROVENANCE, PairedBy.TWIN):
        same = pair.golden.op.function == pair.target.op.function
        return pair.target.site if same else pair.golden.site
    return pair.target.site


def _is_told(golden: Call, target: Call) -> bool:
    """Whether nothing is left to hold against each other: a module, or the same in every letter."""
    if golden.op.is_module or target.op.is_module:
        return True
    same = golden.arguments == target.arguments and golden.op.function == target.op.function
    return same or golden.target.startswith(("dumpcmp.", "torch.distributed."))


def _calling(call: Call, listing: Listing) -> Calling | None:
    given = read_arguments(call.arguments)
    if given is None:
        return None
    keys = (call.site.key(name) for name in ("input.0", "input.0.0", "input.input"))
    first = next((listing.record(key) for key in keys if key in listing.values), None)
    return Calling(call, given, first)


def _precisions(pairs: Sequence[Pair], golden: Listing, target: Listing) -> DtypePairs:
    """The dtypes in which the two runs have the same values that nothing computed before.

    A golden run in float32 and a target in bfloat16 cast to their own, each.
    """
    found = set()
    for pair in pairs:
        if pair.golden and pair.target and pair.golden.slot.is_input:
            ours, theirs = golden.record(pair.golden), target.record(pair.target)
            if ours.same_as is None and theirs.same_as is None and ours.dtype != theirs.dtype:
                found.add((ours.dtype, theirs.dtype))
    return frozenset(found)


# What they differ in

_BRACKETS = OpSet("getitem setitem")


@dataclass(frozen=True, slots=True)
class _Asking:
    """One pair of calls, and what their arguments are held against."""

    golden: Calling
    target: Calling
    dtypes: DtypePairs
    partitioned: bool

    def differing(self) -> _Differing:
        """The arguments that differ, in that naming of them in which the fewest do."""
        ours, theirs = self.golden, self.target
        if is_shaping(ours.function):
            return []
        if is_cast(ours.function):
            return self._held({"dtype": asked_dtype(ours)}, {"dtype": asked_dtype(theirs)}, {})
        if ours.function in _BRACKETS:
            return self._held(taken_of(ours), taken_of(theirs), {})
        # it needs torch, whose import takes long
        from dumpcmp.comparing.binding import bindings_of, defaults_of, unnamed

        golden, target = (
            bindings_of(side.given, side.function, side.call.target) for side in (ours, theirs)
        )
        if not golden and not target:  # nobody says what the arguments are called
            golden, target = ([unnamed(s.given, s.function)] for s in (ours, theirs))
        defaults = defaults_of(ours.function, ours.call.target)
        candidates = [self._held(one, other, defaults) for one in golden for other in target]
        return [*self._autocast(), *min(candidates, key=len, default=())]

    def _autocast(self) -> _Differing:
        ours, theirs = self.golden, self.target
        if ours.call.is_compiled or theirs.call.is_compiled:  # of which nobody knows
            return []
        one, other = ours.given.autocast, theirs.given.autocast
        return [] if one == other else [("autocast", one or None, other or None)]

    def _held(
        self, golden: Mapping[str, Any], target: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> _Differing:
        """Both by name; what only one of them has is held against its default."""
        both: _Differing = []
        for name in dict.fromkeys((*golden, *target)):
            default = defaults.get(name, Stand.UNKNOWN)
            if not is_without_effect(name, self.golden.function, golden, target):
                both.append((name, golden.get(name, default), target.get(name, default)))
        return [each for each in both if not self._is_same(*each)]

    def _is_same(self, name: str, golden: Any, target: Any) -> bool:
        ours = plain_argument(name, golden, self.golden)
        theirs = plain_argument(name, target, self.target)
        if self.partitioned and name not in DIMS and (_counts(ours) or _counts(theirs)):
            return True  # each rank has its share of them
        return self._same(ours, theirs)

    def _same(self, golden: Any, target: Any) -> bool:
        if golden is target or Stand.UNKNOWN in (golden, target):
            return True
        if isinstance(golden, DtypeWord) and isinstance(target, DtypeWord):
            return golden == target or (golden.name, target.name) in self.dtypes
        if isinstance(golden, tuple) or isinstance(target, tuple):
            return self._same_lists(
                *(v if isinstance(v, tuple) else (v,) for v in (golden, target))
            )
        if Stand.TENSOR in (golden, target):  # a number may be given as a tensor
            return None not in (golden, target)
        if is_number(golden) and is_number(target):
            return are_near(golden, target, self.golden.dtype, self.target.dtype)
        return type(golden) is type(target) and bool(golden == target)

    def _same_lists(self, golden: tuple[Any, ...], target: tuple[Any, ...]) -> bool:
        """Whether two lists are the same; one number may stand for as many as the other has."""
        if 1 in (len(golden), len(target)) and golden and target:
            return all(self._same(one, other) for one in golden for other in target)
        return len(golden) == len(target) and all(map(self._same, golden, target))


def _counts(value: Any) -> bool:
    """Whether `value` is a number of elements, or a list of such."""
    if isinstance(value, tuple):
        return bool(value) and all(v is None or _counts(v) for v in value)
    return is_whole(value)


# How it is said


def _difference(ask: _Asking) -> CallDifference | None:
    ours, theirs = ask.golden, ask.target
    if ours.function != theirs.function:
        if _does_the_work_of(ours.function, theirs.function):
            return None
        said = f"golden calls {ours.function}, the target {theirs.function}"
        return _told(ask, ours.function, theirs.function, said)
    differing = ask.differing()
    if not differing:
        return None
    golden = _spelled(ours.function, [(name, one) for name, one, _ in differing])
    target = _spelled(ours.function, [(name, other) for name, _, other in differing])
    return _told(ask, golden, target, "; ".join(_said(ours.function, *each) for each in differing))


def _does_the_work_of(golden: str, target: str) -> bool:
    if canonical(golden) == canonical(target) or family_of(golden) == family_of(target):
        return True
    return _last_word(golden) == _last_word(target)  # of other namespaces: their numbers tell


def _last_word(function: str) -> str:
    return function.rpartition(".")[2]


def _told(ask: _Asking, golden: str, target: str, said: str) -> CallDifference:
    return CallDifference(ask.golden.call.site, golden, target, said)


def _spelled(function: str, arguments: Sequence[tuple[str, Any]]) -> str:
    listed = ", ".join(f"{name}={spelled_argument(value)}" for name, value in arguments)
    return f"{function}({listed})"


_VERBS = {
    ("mul", "other"): "multiplies by", ("div", "other"): "divides by", ("add", "other"): "adds",
    ("sub", "other"): "subtracts", ("pow", "exponent"): "raises to the power of",
    ("masked_fill", "value"): "fills with", ("fill", "value"): "fills with",
    ("full", "fill_value"): "fills with", ("to", "dtype"): "casts to",
}  # fmt: skip


def _said(function: str, name: str, golden: Any, target: Any) -> str:
    """One difference as a sentence."""
    ours, theirs = spelled_argument(golden), spelled_argument(target)
    if ours == theirs:  # it lies behind the fifth digit
        ours, theirs = repr(golden), repr(target)
    verb = _VERBS.get((plain_name(function), name))
    if verb is not None:
        preposition = f"{verb.split()[-1]} " if " " in verb else ""
        return f"golden {verb} {ours}, the target {preposition}{theirs}"
    if isinstance(golden, str) or isinstance(target, str):
        return f"golden calls {function}({name}={ours}), the target {function}({name}={theirs})"
    return f"{name}: golden {ours}, the target {theirs}"
