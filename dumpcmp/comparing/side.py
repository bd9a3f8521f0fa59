"""One of the archives that are compared: what of it is selected, and how its values are read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from uuid import uuid4

from dumpcmp.align.counting import AS_COUNTED, Counting
from dumpcmp.align.listing import Listing
from dumpcmp.align.mesh.declared import Declarations
from dumpcmp.align.mesh.held import Held, RunFacts
from dumpcmp.align.microbatches import merged, merged_places
from dumpcmp.align.unison import in_unison
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.stopped import stopped_ranks
from dumpcmp.nouns.equal_rows import ValueName
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import EFFECTS, Key, Op, Site
from dumpcmp.nouns.layouts import MICROBATCH, parse_layout
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.selection import Tap
from dumpcmp.nouns.value import Value

StepName = tuple[str, int]  # a model, and the number of its step
EffectCalls = Mapping[int, Sequence[Call]]  # the effects of one step, by rank
_MOST_GIVEN = 1 << 14  # digests of earlier steps that are kept in mind


@quickly_made
@dataclass(frozen=True, slots=True)
class Shares:
    """A value as an archive holds it, for a worker to read: one Record for every rank's share."""

    path: Path
    records: tuple[Record, ...]
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def first(self) -> Record:
        """The Record of the lowest rank."""
        return self.records[0]

    @property
    def nbytes(self) -> int:
        """Bytes that lie in the archive."""
        return sum([record.location.nbytes for record in self.records if record.location])

    @property
    def is_partitioned(self) -> bool:
        """Whether the value may lie on several ranks, or says how it lies over a mesh."""
        return self.facts.num_ranks > 1 or len(self.records) > 1 or bool(self.first.layout)

    @property
    def is_summarised(self) -> bool:
        """Whether Summaries, or some of its rows, are all that is left of the value."""
        return Kept.SUMMARY in [record.kept for record in self.records]

    @property
    def is_sampled(self) -> bool:
        """Whether some of its rows are all that is left of the value."""
        stored = [record for record in self.records if record.stored is not None]
        return any(record.sample is not None for record in stored) if stored else False

    @property
    def said_kept(self) -> str:
        """What is left of a value that is not kept whole."""
        sample = self.first.sample
        return "only summaries are kept" if sample is None else f"only {sample} are kept"

    @property
    def problem(self) -> str:
        """Why the value cannot be read; empty where it can."""
        problems = [record.problem for record in self.records if record.kept is Kept.NOTHING]
        return problems[0] or "no reason is known" if problems else ""

    @property
    def is_in_laps(self) -> bool:
        """Whether the run is on one rank, and has in a loop what each of several ranks has."""
        if self.facts.num_ranks != 1 or not self.first.layout:
            return False
        return parse_layout(self.first.layout).is_in_laps

    @property
    def is_in_microbatches(self) -> bool:
        """Whether several microbatches have it."""
        return len(self.records) > 1 and any(
            at.axis == MICROBATCH for at in parse_layout(self.first.layout).coordinates
        )

    def of_rank(self, rank: int) -> Shares:
        """What one rank has, or what a run on one rank has for it, as a value by itself."""
        if self.facts.num_ranks == 1:
            found = self.records[rank : rank + 1] if len(self.records) > 1 else self.records
        else:
            found = tuple(record for record in self.records if record.rank == rank)
        if len(found) != 1:
            raise AlignError(f"rank {rank} has {len(found)} values of {self.first.key}")
        return Shares(self.path, (replace(found[0], layout=""),))

    def held(self) -> Held:
        """The shares with all that is known of their layouts, and how to read them."""
        return Held(self.records, archive_at(self.path).load, self.facts)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """An archive and what the comparison looks at in it."""

    archive: Archive
    listing: Listing
    facts: RunFacts = field(default_factory=RunFacts)
    first_steps: Mapping[str, int] = field(default_factory=dict)  # of each model: where it began
    is_whole: bool = False  # nothing that was recorded of these steps, or of others, is left out
    given_before: frozenset[str] = frozenset()  # digests of what earlier steps gave out
    effects: Mapping[StepName, EffectCalls] = field(default_factory=dict)
    effect_values: Mapping[Key, tuple[Record, ...]] = field(default_factory=dict)
    places: Mapping[StepName, StepName] = field(default_factory=dict)  # of microbatches: the whole

    def num_parts(self, name: StepName | None) -> int:
        """How many microbatches a step is made of; 0 where it is no such step."""
        return sum(whole == name for whole in self.places.values())

    def shares(self, key: Key) -> Shares:
        """What the ranks hold of a value."""
        return Shares(self.archive.path, self.listing.values[key], self.facts)

    def load(self, key: Key) -> Value | None:
        """The elements of a value that some rank holds whole."""
        records = self.listing.values[key]
        digests = {record.digest for record in records}
        if any(record.kept is not Kept.FULL for record in records) or len(digests) > 1:
            return None
        return self.archive.load(records[0]) if not records[0].layout else None

    def states(self, key: Key) -> bool:
        """Whether the user says how a value lies over the ranks."""
        return self.facts.declared.layout_of(key) is not None


@dataclass(eq=False)
class OpenRun:
    """An archive that is open to be compared, from which Sides are taken: all of it, or by steps.

    Steps are counted as golden counts them.
    """

    archive: Archive
    tap: Tap
    counting: Counting = AS_COUNTED
    facts: RunFacts = field(default_factory=RunFacts)
    ops: set[Op] = field(default_factory=set)  # all that were seen, selected or not
    names: dict[ValueName, ValueName] = field(default_factory=dict)  # each once, for all steps
    _given: frozenset[str] = frozenset()
    _began: dict[str, int] = field(default_factory=dict)

    @property
    def steps(self) -> list[int]:
        """The steps that are selected, of whatever model."""
        return [step for step in self.all_steps if self.tap.selects_step(step)]

    @property
    def all_steps(self) -> list[int]:
        """The steps of the run, of whatever model."""
        return sorted(self._counted)

    @cached_property
    def _counted(self) -> dict[int, list[tuple[str, int]]]:
        """The models that have a step, and their own numbers of it, by what golden calls it."""
        found: dict[int, list[tuple[str, int]]] = {}
        for model in self.archive.models:
            for step in self.archive.steps(model):
                found.setdefault(self.counting.in_golden_terms(model, step), []).append(
                    (model, step)
                )
        return found

    @property
    def is_divisible(self) -> bool:
        """Whether steps pass on little: of one model, on one rank or on several alike.

        Microbatches are steps that belong together. On several ranks gradients are terms of sums,
        which the weights of the next step tell, a rank that has stopped is told of by all, and how
        a value lies that says nothing of it is learnt from its like in other steps.
        """
        archive = self.archive
        if len(archive.models) != 1:
            return False
        (model,) = archive.models
        steps = archive.steps(model)
        first = min(steps, default=0)
        if archive.world_size == 1:
            return not archive.layouts(model, first)
        shards, everyone = archive.shards_at(model, first), set(archive.ranks)
        return (
            not self.facts.stopped
            and not archive.missing_runs
            and not any(key.slot.is_gradient for key in shards)
            and all(_is_stated(record.layout) for record in chain(*shards.values()))
            and all(everyone == set(archive.ranks_with(model, step)) for step in steps)
        )

    def num_values(self, step: int) -> int:
        """How many values the models have at `step`."""
        return sum(self.archive.num_values(*place) for place in self._counted.get(step, ()))

    def side(self, steps: Collection[int] | None = None) -> Side:
        """What is selected of `steps`, or of all."""
        archive, tap = self.archive, self.tap
        values: dict[Key, tuple[Record, ...]] = {}
        calls: dict[Site, Call] = {}
        effects: dict[StepName, EffectCalls] = {}
        effect_values: dict[Key, tuple[Record, ...]] = {}
        is_whole = True
        for model, step in self._places(self.steps if steps is None else steps):
            held = archive.shards_at(model, step)
            self.ops.update(key.op for key in held)
            chosen = {key: shards for key, shards in held.items() if tap.selects_op(key.op)}
            is_whole = is_whole and len(chosen) == len(held)
            values |= chosen
            ran = archive.calls_at(model, step)
            calls |= {site: call for site, call in ran.items() if tap.selects_op(call.op)}
            if tap.selects_op(EFFECTS):
                effects[model, step] = archive.effects_at(model, step)
                effect_values |= archive.effect_values_at(model, step)
        own = Listing(values, calls, archive.world_size)
        alike = in_unison(own, lambda: archive.calls_by_rank(archive.ranks))
        listing = merged(alike)
        is_whole = is_whole and len(listing.values) == len(alike.values)
        is_whole = is_whole and len(self.steps) == len(self.all_steps)
        before, self._given = self._given, given_out(listing)
        began = self._first_steps(listing)
        places = merged_places(alike) if effects and listing is not alike else {}
        if places:
            effects, effect_values = in_whole_steps(places, effects, effect_values)
        return Side(
            archive, listing, self.facts, began, is_whole, before, effects, effect_values, places
        )  # fmt: skip

    def place_of(self, step: int) -> tuple[str, int] | None:
        """The one model that has `step`, and its own number of it."""
        places = self._counted.get(step, ())
        return places[0] if len(places) == 1 else None

    def pass_by(self, place: tuple[str, int], ops: Iterable[Op], given: frozenset[str]) -> None:
        """Know of a step that no Side was taken of: its ops, and digests of what they gave out."""
        model, step = place
        self.ops.update(ops)
        self._began = {model: step} | self._began
        self._given = given | (self._given if len(self._given) < _MOST_GIVEN else frozenset())

    def _places(self, steps: Collection[int]) -> list[tuple[str, int]]:
        """Where `steps` lie in the archive, model by model."""
        rank = {model: at for at, model in enumerate(self.archive.models)}
        places = (place for step in set(steps) for place in self._counted.get(step, ()))
        return sorted(places, key=lambda place: (rank[place[0]], place[1]))

    def _first_steps(self, listing: Listing) -> dict[str, int]:
        """The first step of each model, now or in an earlier span."""
        found: dict[str, int] = {}
        for site in listing.sites:
            found[site.model] = min(site.step, found.get(site.model, site.step))
        self._began = found | self._began
        return self._began

    def forget(self) -> None:
        """Let go of what was read of steps that are done with."""
        self.archive.forget()
        archive_at(self.archive.path).forget()


def in_whole_steps(
    places: Mapping[StepName, StepName],
    effects: Mapping[StepName, EffectCalls],
    values: Mapping[Key, tuple[Record, ...]],
) -> tuple[dict[StepName, EffectCalls], dict[Key, tuple[Record, ...]]]:
    """Effects of microbatches, and their tensors, as effects of the steps that these are parts of.

    Those of one kind are numbered anew in each step, in order; Records keep their own keys.
    """
    sites = [call.site for by_rank in effects.values() for calls in by_rank.values()
             for call in calls]  # fmt: skip
    numbers: dict[tuple[StepName, Op], int] = {}
    named: dict[Site, Site] = {}
    for site in dict.fromkeys(sites):
        whole = places.get((site.model, site.step), (site.model, site.step))
        number = numbers[whole, site.op] = numbers.get((whole, site.op), -1) + 1
        named[site] = Site(*whole, site.op, number)
    found: dict[StepName, dict[int, list[Call]]] = {}
    for place, by_rank in effects.items():
        held = found.setdefault(places.get(place, place), {})
        for rank, calls in by_rank.items():
            held.setdefault(rank, []).extend(_named(call, named[call.site]) for call in calls)
    told = {named.get(key.site, key.site).key(key.slot): one for key, one in values.items()}
    return dict(found), told


def _named(call: Call, site: Site) -> Call:
    return replace(call, model=site.model, step=site.step, call=site.call)


def _is_stated(layout: str) -> bool:
    """Whether a layout leaves nothing to be found out, and is of no microbatch."""
    found = parse_layout(layout)
    at = found.coordinates
    return bool(found.dims) and all(c.known and c.axis != MICROBATCH for c in at)


def given_out(listing: Listing) -> frozenset[str]:
    """Digests of what ops of the run gave out."""
    return frozenset(
        records[0].digest
        for key, records in listing.values.items()
        if key.slot.is_output and records[0].digest and math.prod(records[0].shape) > 1
    )


def open_run(
    path: str | Path | Archive,
    tap: Tap,
    counting: Counting = AS_COUNTED,
    declared: Declarations | None = None,
) -> OpenRun:
    """Open the archive at `path`, of which `tap` selects; steps are counted as `counting` says.

    `declared` is what the user states about the layouts of a partitioned run.
    """
    archive = path if isinstance(path, Archive) else Archive(path)
    facts = RunFacts(archive.world_size, declared or Declarations(), stopped_ranks(archive))
    return OpenRun(archive, tap, counting, facts)


def first_side(path: str | Path | Archive, tap: Tap) -> Side:
    """The first step of each model of an archive, as `tap` selects."""
    run = open_run(path, tap)
    firsts = {step for model in run.archive.models for step in run.archive.steps(model)[:1]}
    return run.side(firsts)


def open_side(path: str | Path, tap: Tap) -> Side:
    """All that `tap` selects of the archive at `path`."""
    return open_run(path, tap).side()


@lru_cache(maxsize=8)
def archive_at(path: Path) -> Archive:
    """The archive at `path`, opened once in this process; what is read is checked."""
    archive = Archive(path)
    archive.checks_digests = True
    return archive


_asked = ""  # the comparison for which archives are open in this process


def asked_now() -> str:
    """The name of the comparison for which archives are open."""
    return _asked


def ask_anew() -> None:
    """Begin another comparison: a path may hold another run than it did at the last one."""
    heed(uuid4().hex)


def heed(asked: str) -> None:
    """Let go of archives that were opened for another comparison than `asked`."""
    global _asked
    if asked != _asked:
        archive_at.cache_clear()
        _asked = asked
