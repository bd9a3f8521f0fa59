"""How values came about: through how many blocks, and through which dtypes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dumpcmp.align.listing import Listing
from dumpcmp.judge import Conditions
from dumpcmp.nouns.arithmetic import Arithmetic, arithmetic_of, is_reduction
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.row import Pair
from dumpcmp.nouns.value import Dtype, Kind, dtype_named

_SINGLE = dtype_named("float32")


@dataclass(frozen=True, slots=True)
class Ways:
    """What is known of both runs before anything is measured."""

    golden: Listing
    target: Listing
    depth: Mapping[tuple[Site, bool], int]  # of golden's calls, and of their gradients
    golden_dtypes: Mapping[Key, Dtype]  # the coarsest that each value has come through
    target_dtypes: Mapping[Key, Dtype]
    is_undeclared: bool = False  # one side has floats of 8 bits, and nobody says that it may

    @classmethod
    def of(cls, golden: Listing, target: Listing, words: Container[str] = ()) -> Ways:
        """Walk through both runs; `words` are what the target is declared to be quantised to.

        Floats of 8 bits have three digits after the point, and what came through them might be
        anything. So they explain nothing that only one side has done, unless it is declared.
        """
        ours, theirs = computed_elsewhere(golden), computed_elsewhere(target)
        is_one_sided = has_eight_bits(golden) is not has_eight_bits(target)
        is_undeclared = is_one_sided and "fp8" not in words
        dtypes = (
            coarsest(golden, ours, least=1 + is_undeclared),
            coarsest(target, theirs, least=1 + is_undeclared),
        )
        return cls(golden, target, depths(golden, ours), *dtypes, is_undeclared)

    def conditions(self, pair: Pair, **measured: Any) -> Conditions:
        """What to judge `pair` under; `measured` is what only its numbers tell."""
        if pair.golden is None or pair.target is None:
            listing = self.golden if pair.golden else self.target
            dtype = _dtype(listing, pair.key)
            return Conditions(dtype, dtype, **measured)
        given, op = pair.golden.slot.is_input, pair.golden.op
        return Conditions(
            _dtype(self.golden, pair.golden),
            _dtype(self.target, pair.target),
            self.depth[pair.golden.site, pair.golden.slot.is_gradient],
            arithmetic=Arithmetic.ROUNDS if given else arithmetic_of(op),
            shape=self.golden.record(pair.golden).shape,
            on_the_way=_coarser(self.golden_dtypes[pair.golden], self.target_dtypes[pair.target]),
            **measured,
        )


def depths(listing: Listing, elsewhere: Mapping[Key, Key]) -> dict[tuple[Site, bool], int]:
    """How many residual blocks lie before each call; without numbered blocks, how many reductions.

    A block is a module with a number in its path, counted when the run first enters it. What lies
    before a call's gradients (True) is all of the forward pass, and the way back from its end.
    What another model has computed (`elsewhere`) brings along the depth that it had there.
    """
    depth: dict[tuple[Site, bool], int] = {}
    steps: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for site in listing.sites:
        steps[site.model, site.step].append(site)
    within: dict[Site, int] = {}
    for sites in steps.values():
        within |= _depths_within(sites)
    for sites in steps.values():
        brought, found = 0, dict[Site, int]()
        for site in sites:
            given = [elsewhere[key] for key in listing.sites[site] if key in elsewhere]
            brought = max([brought, *(within[key.site] + 1 for key in given)])
            found[site] = within[site] + brought
        deepest = max(found.values(), default=0)
        depth |= {(site, False): before for site, before in found.items()}
        depth |= {(site, True): 2 * deepest - before for site, before in found.items()}
    return depth


def _depths_within(sites: Sequence[Site]) -> dict[Site, int]:
    """The depth of each call of one step, as far as that step goes."""
    blocks: dict[str, int] = {}
    found: dict[Site, int] = {}
    reductions = 0
    numbered = any(site.op.block for site in sites)
    for site in sites:
        block = site.op.block
        if block:
            blocks.setdefault(block, len(blocks))
        found[site] = blocks.get(block, len(blocks)) if numbered else reductions
        reductions += is_reduction(site.op)
    return found


def computed_elsewhere(listing: Listing) -> dict[Key, Key]:
    """The inputs of steps that another model gave out, known by their bytes.

    Links stay within a step: what a compiled function does with the result of a model, or one
    model with that of another, is found here.
    """
    given: dict[str, Key] = {}
    for key, (record, *_) in listing.values.items():
        if key.slot.is_output and record.digest and math.prod(record.shape) > 1:
            given.setdefault(record.digest, key)
    found = {}
    for key, (record, *_) in listing.values.items():
        if record.same_as is None and record.digest and key.slot.is_input:
            source = given.get(record.digest)
            if source is not None and source.model != key.model:
                found[key] = source
    return found


def has_eight_bits(listing: Listing) -> bool:
    """Whether a run has floats of 8 bits anywhere."""
    found = map(dtype_named, {record.dtype for record, *_ in listing.values.values()})
    return any(dtype.kind is Kind.FLOAT and dtype.nbytes == 1 for dtype in found)


def coarsest(listing: Listing, elsewhere: Mapping[Key, Key], least: int = 1) -> dict[Key, Dtype]:
    """The coarsest dtype that each value has come through, also in the model that it is from.

    Those of fewer than `least` bytes count as float32.
    """
    within = _coarsest(listing, {}, least)
    if not elsewhere:
        return within
    return _coarsest(listing, {key: within[source] for key, source in elsewhere.items()}, least)


def _coarsest(listing: Listing, brought: Mapping[Key, Dtype], least: int) -> dict[Key, Dtype]:
    """The coarsest dtype that each value has come through in its step, or was `brought` in."""

    def own(key: Key) -> Dtype:
        dtype = _dtype(listing, key)
        return dtype if dtype.nbytes >= least or dtype.kind is not Kind.FLOAT else _SINGLE

    found: dict[Key, Dtype] = {}
    worst: dict[tuple[str, int], Dtype] = {}
    later: list[Key] = []  # what a module gives out is known after what is inside it
    for site, keys in listing.sites.items():
        step = site.model, site.step
        given = [key for key in keys if key.slot.is_input]
        for key in given:
            first = listing.record(key).same_as
            before = found.get(first) if first else brought.get(key)
            found[key] = _coarser(own(key), before)
        before = max((found[key] for key in given), key=lambda dtype: dtype.eps, default=None)
        for key in keys:
            if not key.slot.is_input:
                found[key] = _coarser(own(key), before)
                later += [key] if site.op.is_module or key.slot.is_gradient else []
            worst[step] = _coarser(found[key], worst.get(step))
    for key in later:
        first = listing.record(key).same_as
        found[key] = found[first] if first in found else worst[key.model, key.step]
    return found


def _dtype(listing: Listing, key: Key) -> Dtype:
    return dtype_named(listing.record(key).dtype)


def _coarser(one: Dtype, other: Dtype | None) -> Dtype:
    return other if other is not None and other.eps > one.eps else one
