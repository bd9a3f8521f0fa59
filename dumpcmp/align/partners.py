"""Which calls of two runs have found each other so far, and what they are called on either side."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from dumpcmp.align.constants import Constants
from dumpcmp.align.listing import Listing
from dumpcmp.align.pieces import Extents
from dumpcmp.align.renaming import Renaming, unwrapped
from dumpcmp.align.turning import Turns
from dumpcmp.align.varying import varying, without
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.row import DimOrder, Pair, PairedBy


@dataclass
class Partners:
    """Which calls have found each other, and which are left on either side."""

    golden: Listing
    target: Listing
    renaming: Renaming
    terms: dict[Site, Site]  # the target's calls with golden's names of model and step
    turns: Turns | None = None  # of two implementations: how the dims lie
    partner: dict[Site, Site] = field(default_factory=dict)  # golden's call -> the target's
    passes: dict[Site, PairedBy] = field(default_factory=dict)  # golden's call -> its pass
    taken: set[Site] = field(default_factory=set)  # the target's calls that have a partner

    def pair(self, golden: Site, target: Site, by: PairedBy) -> None:
        """Let two calls be partners."""
        self.partner[golden], self.passes[golden] = target, by
        self.taken.add(target)

    def golden_left(self) -> list[Site]:
        """Golden's calls without a partner."""
        return [site for site in self.golden.sites if site not in self.partner]

    def target_left(self) -> list[Site]:
        """The target's calls without a partner."""
        return [site for site in self.target.sites if site not in self.taken]

    def kernel_of(self, pair: Pair) -> str:
        """The kernel in which a compiled target computes the call of `pair`."""
        site = pair.target.site if pair.target else None
        if site is None and pair.golden:
            site = self.partner.get(pair.golden.site)
        call = self.target.calls.get(site) if site else None
        return call.kernel if call else ""

    def unmapped(self, op: Op) -> Op | None:
        """Golden's `op`, where the user does not say what it is called in the target."""
        return None if self.renaming.renamed(op) else op

    def golden_name(self, op: Op) -> str:
        """What golden's `op` would be called in the target."""
        return self.renaming.renamed(op) or unwrapped(op)

    def is_named_alike(self, golden: Site, target: Site) -> bool:
        """Whether two calls have one name and number."""
        terms = self.terms[target]
        return golden.call == terms.call and self.golden_name(golden.op) == unwrapped(terms.op)

    def by_name(self, golden: Site, target: Site) -> PairedBy:
        """What two calls that are named alike were found by."""
        if self.renaming.renamed(golden.op):
            return PairedBy.MAPPING
        return PairedBy.KEY if golden.op == self.terms[target].op else PairedBy.PREFIX

    @cached_property
    def is_whole(self) -> bool:
        """Whether every value lies whole in one place, so that shapes and bytes tell of it."""
        sides = (self.golden, self.target)
        return all(listing.num_ranks == 1 for listing in sides) and all(
            len(records) == 1 and not records[0].layout
            for listing in sides
            for records in listing.values.values()
        )

    def sources(self, golden: Site, target: Site) -> tuple[str, str]:
        """The lines of code that two calls stand in."""
        return _source(self.golden.calls.get(golden)), _source(self.target.calls.get(target))

    def are_as_batched(self, golden: Site, target: Site) -> bool:
        """Whether both calls, or neither, saw single examples of a batch, by torch.func.vmap."""
        return self.golden.is_batched(golden) == self.target.is_batched(target)

    def outputs_fit(self, golden: Site, target: Site) -> bool:
        """Whether what two calls give out can be the same: of one shape, and stored on both sides.

        What a partitioned run holds are shards, of which shapes tell nothing.
        """
        if not self.is_whole:
            return True
        ours = {key.slot: key for key in self.golden.sites[golden] if key.slot.is_output}
        theirs = {key.slot: key for key in self.target.sites[target] if key.slot.is_output}
        return all(self.fit(ours[slot], theirs[slot]) for slot in ours.keys() & theirs.keys())

    def fit(self, golden: Key, target: Key) -> bool:
        """Whether two values can be the same: of one shape, both complex or not, no other constant.

        What a partitioned run holds are shards, of which shapes tell nothing.
        """
        if not self.is_whole:
            return True
        if golden.slot.is_output and self._constants.are_others(golden.site, target.site):
            return False
        ours, theirs = self.golden.record(golden), self.target.record(target)
        return _is_complex(ours) == _is_complex(theirs) and self.have_one_shape(golden, target)

    def have_one_shape(self, golden: Key, target: Key) -> bool:
        """Whether two values are kept alike and have one shape, but for what depends on values.

        How many rows an expert takes, or a mask lets through, need not be the same.
        """
        one, other = self.golden.record(golden), self.target.record(target)
        same = one.shape == other.shape or self._vary(golden, target)
        same = same or self.turn(golden, target) is not None
        return same and one.kept.holds == other.kept.holds

    def may_be_one(self, golden: Key, target: Key) -> bool:
        """Whether two appearances of a value can be compared: of two implementations, if turned."""
        return self.turns is None or self.have_one_shape(golden, target)

    def may_lead(self, golden: Key, target: Key) -> bool:
        """Whether what two calls of a mapping take may be taken for one value.

        Of two implementations the values must say so: what is mapped may stand elsewhere.
        """
        if self.turns is None or golden.slot.kind != "input" or self.unmapped(golden.op):
            return True
        turn = self.turn(golden, target)
        return self.turns.shows((golden, None), (target, None), turn)

    def turn(self, golden: Key, target: Key) -> DimOrder | None:
        """In which order the target's dims are golden's, where it is another one.

        What a port transposes may be square: of one shape, other bytes are looked at.
        """
        one, other = self.golden.record(golden), self.target.record(target)
        same_bytes = one.digest == other.digest != "" and one.shape == other.shape
        if self.turns is None or same_bytes or golden.slot.is_gradient:
            return self._turn_of_value(golden, target) if golden.slot.is_gradient else None
        shapes = one.shape, other.shape
        stated = self._stated(golden, shapes)
        if stated is not None and self._is_stated(golden):
            return stated
        firsts = self.golden.first(golden), self.target.first(target)
        return self.turns.turn(*firsts, shapes) or (stated if shapes[0] != shapes[1] else None)

    def _stated(self, golden: Key, shapes: tuple[Extents, Extents]) -> DimOrder | None:
        """The order that the mapping states for a value which an op takes or gives, if it fits."""
        order = () if golden.slot.is_weight else self.renaming.order(unwrapped(golden.op))
        one, other = shapes
        if not order or len(order) != len(other) or len(one) != len(other):
            return None
        fits = tuple(other[n] for n in order) == one
        if not fits and self._is_stated(golden):
            raise AlignError(
                f"mapping {golden.op!r}: order {list(order)} of my dims {list(other)} gives not "
                f"golden's {list(one)} of {golden}",
                hint="leave `order` out to have it found from the values",
            )
        return order if fits else None

    def _is_stated(self, golden: Key) -> bool:
        """Whether the order is stated for what the op itself gives out first."""
        return golden.slot == "output.0" and self.renaming.states_order(unwrapped(golden.op))

    def _turn_of_value(self, golden: Key, target: Key) -> DimOrder | None:
        """Of a gradient: as the value that it is the gradient of."""
        one, other = (key.site.key(key.slot.value) for key in (golden, target))
        if self.turns is None or one not in self.golden.values or other not in self.target.values:
            return None
        return self.turn(one, other)

    def _vary(self, golden: Key, target: Key) -> bool:
        """Whether two shapes differ by nothing but a size that depends on values on both sides."""
        ours, theirs = self._varying
        one, other = ours.get(self.golden.first(golden)), theirs.get(self.target.first(target))
        if one is None or other is None:
            return False
        shapes = self.golden.record(golden).shape, self.target.record(target).shape
        return without(shapes[0], one) == without(shapes[1], other)

    @cached_property
    def _constants(self) -> Constants:
        return Constants(self.golden, self.target)

    @cached_property
    def _varying(self) -> tuple[dict[Key, int], dict[Key, int]]:
        return varying(self.golden), varying(self.target)


def _is_complex(record: Record) -> bool:
    return record.dtype.startswith("complex")


def _source(call: Call | None) -> str:
    return call.source if call else ""
