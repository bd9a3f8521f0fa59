"""Says of a call without a partner why it has none, from what the other side has in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from dumpcmp.align.listing import Listing
from dumpcmp.align.renaming import Renaming, unwrapped
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.op_names import canonical
from dumpcmp.nouns.row import Pair, PairedBy

_InStep = tuple[str, int]


@dataclass(frozen=True)
class Mating:
    """The calls of two runs, and which have found each other."""

    pairs: Sequence[Pair]
    golden: Listing
    target: Listing
    terms: Mapping[Site, Site]  # the target's calls in golden's names of models and steps
    renaming: Renaming = field(default_factory=Renaming)

    @cached_property
    def _both(self) -> list[tuple[Key, Key, PairedBy]]:
        """The pairs that say of calls that they belong together: by what they give, if they do."""
        both = [(p.golden, p.target, p.by) for p in self.pairs if p.golden and p.target]
        gives = {key.site for key in (*self.golden.values, *self.target.values) if _is_made(key)}
        return [
            (one, other, by)
            for one, other, by in both
            if _is_made(one) == _is_made(other) and (_is_made(one) or one.site not in gives)
        ]

    @cached_property
    def partners(self) -> dict[Site, tuple[Site, PairedBy]]:
        """Golden's calls, the target's that give what they do, and how they found each other."""
        found: dict[Site, tuple[Site, PairedBy]] = {}
        for golden, target, by in self._both:
            found.setdefault(golden.site, (target.site, by))
        return found

    @cached_property
    def _mated(self) -> tuple[set[Site], set[Site]]:
        return {one.site for one, _, _ in self._both}, {other.site for _, other, _ in self._both}

    def alone(self) -> tuple[list[Site], list[Site]]:
        """The calls of either side of which no value has a partner."""
        ours, theirs = self._mated
        return (
            [site for site in self.golden.sites if site not in ours],
            [site for site in self.target.sites if site not in theirs],
        )

    def why(self, site: Site, *, is_golden: bool) -> str:
        """Why a call has no partner."""
        own, other, name = self._views(is_golden)
        here = site if is_golden else self.terms[site]
        step = other.steps.get((here.model, here.step))
        if step is None:
            return f"{name} has no token {here.step} of {here.model}"
        kernels = {p.inside for p in self.pairs if p.inside and p.key.site == site}
        if kernels:
            return f"it is a part of {', '.join(sorted(kernels))}"
        op = Op(self.renaming.renamed(site.op) or unwrapped(site.op)) if is_golden else None
        op = op or unwrapped(here.op)
        if op.is_module:
            return f"{name} has no module {op}" if op not in step else f"{name} runs it less often"
        function = canonical(op.function)
        like = [one for one in step.get(Op(op.scope), ()) if canonical(one.op.function) == function]
        if not like:
            ran = any(canonical(one.op.function) == function for one in chain(*step.values()))
            where = f" in {op.scope}, but elsewhere" if ran else ""
            return f"{name} calls no {function}{where}"
        return self._of_likes(site, like, own, other, name)

    def _of_likes(
        self, site: Site, like: Sequence[Site], own: _Calls, other: _Calls, name: str
    ) -> str:
        free = [one for one in like if one not in other.mated]
        if not free:
            if len(like) == 1:
                return f"{name} calls {like[0].op} once, and that call has another partner"
            return f"{name} calls {like[0].op} {len(like)} times, and each has another partner"
        shapes, others = own.shapes(site), [other.shapes(one) for one in free]
        if shapes not in others:
            return f"it gives {shapes}, {name}'s {free[0].op}#{free[0].call} gives {others[0]}"
        return f"{name}'s {free[0].op}#{free[0].call} takes other values"

    def _views(self, is_golden: bool) -> tuple[_Calls, _Calls, str]:
        golden, target = self._sides
        return (golden, target, "my side") if is_golden else (target, golden, "golden")

    @cached_property
    def _sides(self) -> tuple[_Calls, _Calls]:
        ours, theirs = self._mated
        plain = {site: site for site in self.golden.sites}
        return (_Calls.of(self.golden, plain, ours), _Calls.of(self.target, self.terms, theirs))


@dataclass(frozen=True)
class _Calls:
    """The calls of one side by step and module."""

    listing: Listing
    mated: set[Site]
    steps: dict[_InStep, dict[Op, list[Site]]]

    @classmethod
    def of(cls, listing: Listing, terms: Mapping[Site, Site], mated: set[Site]) -> _Calls:
        steps: dict[_InStep, dict[Op, list[Site]]] = defaultdict(lambda: defaultdict(list))
        for site, here in terms.items():
            op = unwrapped(here.op)
            scope = op if op.is_module else Op(op.scope)
            steps[here.model, here.step][scope] += [] if op.is_module else [site]
        return cls(listing, mated, {step: dict(found) for step, found in steps.items()})

    def shapes(self, site: Site) -> str:
        """The shapes of what a call gives out."""
        keys = [key for key in self.listing.sites[site] if key.slot.is_output]
        return ", ".join(str(list(self.listing.record(key).shape)) for key in keys) or "nothing"


def _is_made(key: Key) -> bool:
    return key.slot.is_output


def counted(pairs: Iterable[Pair]) -> dict[str, int]:
    """How many pairs were found by what."""
    found: dict[str, int] = defaultdict(int)
    for pair in pairs:
        if pair.both:
            found[pair.by.value] += 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
