"""What a recorded gradient is made of: the calls whose products it is, planned from listings."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Call

Named = tuple[Key | None, Key]  # a tensor, by where its value and its gradient appear first
Place = tuple[int, str]  # the how-manieth call of a plan, and a slot of it

_MOST = 24  # calls of one plan


def tensor_of(gradient: Key, links: Mapping[Key, Key], known: Container[Key]) -> Named:
    """Names the tensor that `gradient` is of: where its value and its gradient appear first.

    Each alone may be of several tensors: an addition hands its gradient on as it is, and the same
    part of a tensor may be taken twice. `known` are the values that were recorded.
    """
    first, value = links.get(gradient, gradient), gradient.site.key(gradient.slot.value)
    if first.slot.is_parameter_gradient:
        return None, first
    return links.get(value, value if value in known else None), first


@dataclass(frozen=True, slots=True)
class GradientPlan:
    """Which calls to differentiate for a gradient, and from which recorded values."""

    calls: tuple[Call, ...] = ()  # in the order in which they ran
    wires: Mapping[Place, Place] = field(default_factory=dict)  # an input -> the output that it is
    leaves: tuple[Place, ...] = ()  # inputs that are the tensor itself
    given: Mapping[Place, Key] = field(default_factory=dict)  # forward values
    grads: Mapping[Place, Key] = field(default_factory=dict)  # given for outputs, backward
    dtypes: Mapping[Place, str] = field(default_factory=dict)  # of outputs
    unknown: str = ""  # why there is no plan

    @property
    def sources(self) -> list[Key]:
        """All recorded values that the gradient is computed from."""
        return [*self.grads.values(), *self.given.values()]


class Tape:
    """The backward pass of one run, as its archive tells."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self._rows: dict[Named, list[Key]] = defaultdict(list)
        self._takers: dict[Key, list[Key]] = defaultdict(list)  # of forward values
        for key in listing.values:
            if key.slot.is_gradient:
                self._rows[self.tensor(key)].append(key)
            elif key.slot.kind == "input" and not key.op.is_module:
                self._takers[listing.links.get(key, key)].append(key)

    def tensor(self, gradient: Key) -> Named:
        """The tensor that `gradient` is of."""
        return tensor_of(gradient, self.listing.links, self.listing.values)

    def takers(self, tensor: Named) -> list[Key]:
        """The gradients of `tensor` at the functions that took it, as another than they gave."""
        found = [key for key in self._rows[tensor] if key.slot.kind == "grad_input"]
        return [key for key in found if not key.op.is_module and not self._hands_on(key, tensor)]

    def _hands_on(self, taker: Key, tensor: Named) -> bool:
        """Whether a call gives out the very tensor that it took, as `contiguous` may."""
        given = (key for key in self.listing.sites[taker.site] if key.slot.kind == "grad_output")
        return any(self.tensor(key) == tensor for key in given)

    def ends(self, site: Site) -> Iterator[tuple[str, Key]]:
        """The outputs of a call that have gradients, and those.

        Inside of an autograd.Function a call has none of its own: it is at who takes the output.
        """
        for key in self.listing.sites[site]:
            if not key.slot.is_output:
                continue
            own = site.key(key.slot.gradient)
            if own in self.listing.values:
                yield key.slot, own
                continue
            first = self.listing.links.get(key, key)
            taken = [taker.site.key(taker.slot.gradient) for taker in self._takers[first]]
            orphans = (one for one in taken if one in self.listing.values and self._is_orphan(one))
            yield from ((key.slot, one) for one in itertools.islice(orphans, 1))

    def _is_orphan(self, gradient: Key) -> bool:
        """Whether no function was recorded to give out the tensor that it is the gradient of."""
        rows = self._rows[self.tensor(gradient)]
        return all(key.op.is_module or key.slot.kind != "grad_output" for key in rows)


def plan_gradient(tape: Tape, gradient: Key, is_shared: Callable[[Key], bool]) -> GradientPlan:
    """How the value of `gradient` follows from others: the sum over the functions that took it.

    Where a gradient that they were given is not `is_shared` by both sides, the functions that
    took that output are differentiated, too.
    """
    tensor = tape.tensor(gradient)
    region = _Stretch(tape, tensor, is_shared)
    if not tape.takers(tensor):
        return GradientPlan(unknown="no function was recorded that gave it")
    region.add(tape.takers(tensor))
    return region.plan()


class _Stretch:
    """The calls of a plan while they are gathered."""

    def __init__(self, tape: Tape, leaf: Named, is_shared: Callable[[Key], bool]) -> None:
        self.tape, self.leaf, self.is_shared = tape, leaf, is_shared
        self.sites: set[Site] = set()
        self.ends: dict[tuple[Site, str], Key] = {}
        self.inner: dict[Named, tuple[Site, str]] = {}  # outputs that are differentiated through

    def add(self, takers: Sequence[Key]) -> None:
        """Add the calls of `takers`, and what lies between them and gradients of both sides."""
        waiting = [key.site for key in takers]
        while waiting and len(self.sites) <= _MOST:
            site = waiting.pop()
            if site in self.sites:
                continue
            self.sites.add(site)
            for slot, gradient in self.tape.ends(site):
                if self.is_shared(gradient):
                    self.ends[site, slot] = gradient
                    continue
                tensor = self.tape.tensor(gradient)
                self.inner[tensor] = site, slot
                waiting += [key.site for key in self.tape.takers(tensor)]

    def plan(self) -> GradientPlan:
        listing = self.tape.listing
        if len(self.sites) > _MOST:
            return GradientPlan(unknown="too many calls lie between gradients of both sides")
        if not self.ends:
            return GradientPlan(unknown="what it was computed from was not recorded")
        lacking = [site for site in self.sites if site not in listing.calls]
        if lacking:
            return GradientPlan(unknown=f"the call {lacking[0]} was not recorded")
        order = sorted(self.sites, key=lambda site: listing.calls[site].order)
        number = {site: index for index, site in enumerate(order)}
        calls = tuple(listing.calls[site] for site in order)
        wires, leaves, given = self._inputs(number)
        return GradientPlan(
            calls,
            wires,
            tuple(leaves),
            given,
            {(number[site], slot): key for (site, slot), key in self.ends.items()},
            {place: listing.record(key).dtype for place, key in self._gave(number)},
        )

    def _inputs(
        self, number: Mapping[Site, int]
    ) -> tuple[dict[Place, Place], list[Place], dict[Place, Key]]:
        wires: dict[Place, Place] = {}
        leaves: list[Place] = []
        given: dict[Place, Key] = {}
        listing = self.tape.listing
        for site, index in number.items():
            for key in listing.sites[site]:
                if key.slot.kind != "input" and not _shows_draws(key):
                    continue
                place, gradient = (index, str(key.slot)), site.key(key.slot.gradient)
                has_gradient = key.slot.is_input and gradient in listing.values
                tensor = self.tape.tensor(gradient) if has_gradient else None
                if tensor in self.inner and self.inner[tensor][0] in number:
                    source, slot = self.inner[tensor]
                    wires[place] = number[source], slot
                    continue
                given[place] = key
                leaves += [place] if tensor == self.leaf else []
        return wires, leaves, given

    def _gave(self, number: Mapping[Site, int]) -> Iterator[tuple[Place, Key]]:
        for site, index in number.items():
            for key in self.tape.listing.sites[site]:
                if key.slot.is_output:
                    yield (index, str(key.slot)), key


def _shows_draws(key: Key) -> bool:
    """Whether it is what a dropout gave out, from which it can be told what it dropped."""
    return "dropout" in key.op.function and key.slot.is_output
