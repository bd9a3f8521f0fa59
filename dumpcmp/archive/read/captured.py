"""A captured run as its directory has it: Keys to Records, its tensors mapped, not read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from dumpcmp.archive import paths
from dumpcmp.archive.manifest import Manifest, kinds_of, read_manifest
from dumpcmp.archive.read.abreast import abreast
from dumpcmp.archive.read.captures import model_name, models_of, why_incomplete, why_short
from dumpcmp.archive.read.filtering import Filter
from dumpcmp.archive.read.loading import Loader
from dumpcmp.archive.read.rankstep import SHARED_KEYS, RankStep
from dumpcmp.archive.read.scan import Found, read_part, ring_records
from dumpcmp.archive.read.shared_rows import SharedParts, with_shared
from dumpcmp.archive.stores.ranges import forget_below
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.graph_runs import GRAPH
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.row_ids import ROWS, RowIds
from dumpcmp.nouns.spoken import ranks_named, said_of

_AT_ONCE = 64  # ranks whose indexes are read together


class Captured(Loader, Mapping[Key, Record]):
    """A run's directory of parts: Key -> Record, in order of execution; `Archive` is its face."""

    _filters: tuple[Filter, ...] = ()  # what `select` left of it

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        if isinstance(self.path, RemotePath):
            self.path.refresh()
        self._directories = self._find_ranks()
        self._steps: dict[tuple[int, str, int], RankStep] = {}
        self._flaws: dict[str, None] = {}  # of parts that were forgotten
        self._num_found: dict[tuple[int, str, int], int] = {}  # values of steps that were read
        self._lost_parts: dict[tuple[int, str, int], tuple[str, ...]] = {}  # of such steps
        self._shared: dict[Path, SharedParts] = {}  # by the directory of their model

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,), {"_filters": self._filters}

    def _find_ranks(self) -> dict[int, Path]:
        found = paths.rank_directories(self.path)
        is_here = not isinstance(self.path, RemotePath)
        if not found or (is_here and paths.is_of_another_tool(found)):
            raise paths.no_archive(self.path)
        if len(sizes := {world_size for world_size, _ in found.values()}) > 1:
            raise ArchiveError(
                f"{self.path} mixes runs with world sizes {sorted(sizes)}",
                hint="dump each run into a path of its own",
            )
        self.world_size = sizes.pop()
        return {rank: path for path, (_, rank) in found.items()}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have written something."""
        return tuple(self._directories)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks of the run that have written nothing here."""
        return tuple(rank for run in self.missing_runs for rank in run)

    @cached_property
    def missing_runs(self) -> tuple[range, ...]:
        """The same as runs of numbers: an archive may claim any number of ranks."""
        ends = [-1, *sorted(self._directories), self.world_size]
        return tuple(range(a + 1, b) for a, b in pairwise(ends) if a + 1 < b)

    @cached_property
    def run(self) -> dict[int, dict[str, Any]]:
        """run.json of each rank."""
        facts = abreast(paths.read_run, list(self._directories.values()))
        return dict(zip(self._directories, facts, strict=True))

    @property
    def complete(self) -> bool:
        """Whether every rank is here, ended its capture in order, and has all steps it wrote."""
        return not self.missing_runs and not self.cut_short and not self._lost

    @property
    def problems(self) -> tuple[str, ...]:
        """What a reader must know: ranks missing, captures cut short, parts damaged."""
        alike: dict[str, list[int]] = {}
        for rank, why in self.cut_short.items():
            alike.setdefault(why, []).append(rank)
        parts = (part for step in self._steps.values() for part in step.parts.values())
        return (
            *([said_of(missing, "is missing")] if (missing := self.missing_runs) else []),
            *(f"{ranks_named(ranks)}: {why}" for why, ranks in alike.items()),
            *(f"rank {rank}: {why}" for rank, why in self._lost),
            *(
                f"rank {rank}: {why}"
                for (rank, _, _), whys in self._lost_parts.items()
                for why in whys
            ),
            *(f"rank {rank}: {why}" for rank, why in self._short_of_records().items()),
            *(self._flaws | dict.fromkeys(problem for part in parts for problem in part.problems)),
        )

    @property
    def cut_short(self) -> dict[int, str]:
        """Why captures are incomplete, of the ranks whose is."""
        whys = ((r, why_incomplete(facts, self._directories[r])) for r, facts in self.run.items())
        return {rank: why for rank, why in whys if why}

    @cached_property
    def _manifests(self) -> dict[int, Manifest | ArchiveError | None]:
        """What each rank counted when it ended, or why that cannot be had; None: it has none."""
        whole = [rank for rank in self._directories if rank not in self.cut_short]
        found = abreast(self._manifest_of, whole)
        return dict.fromkeys(self._directories) | dict(zip(whole, found, strict=True))

    def _manifest_of(self, rank: int) -> Manifest | ArchiveError | None:
        try:
            return read_manifest(self._directories[rank], self.run[rank])
        except ArchiveError as error:
            return error

    @cached_property
    def _lost(self) -> tuple[tuple[int, str], ...]:
        """Steps that a rank wrote and that are not there any more; each with its rank."""
        lost: list[tuple[int, str]] = []
        for rank, manifest in self._manifests.items():
            if isinstance(manifest, ArchiveError):
                lost.append((rank, manifest.message))
            elif manifest is not None:
                steps = {
                    model: [step for step, held in steps.items() if rank in held]
                    for model, steps in self._tree.items()
                }
                lost += [(rank, why) for why in manifest.lost_steps(steps)]
        return tuple(lost)

    def _short_of_records(self) -> dict[int, str]:
        """Of ranks without a manifest whose steps were all read: that values of theirs are gone."""
        found: dict[int, list[int | None]] = {rank: [] for rank in self._directories}
        for model, steps in self._tree.items():
            for step, held in steps.items():
                for rank in held:
                    found[rank].append(self._num_found.get((rank, model, step)))
        whys = {
            rank: why_short(self.run[rank], sum(filter(None, counts)))
            for rank, counts in found.items()
            if None not in counts and self._manifests[rank] is None and rank not in self.cut_short
        }
        return {rank: why for rank, why in whys.items() if why}

    @cached_property
    def _tree(self) -> dict[str, dict[int, dict[int, Path]]]:
        """Model -> step -> rank -> directory of parts."""
        tree: dict[str, dict[int, dict[int, Path]]] = {}
        models = abreast(models_of, list(self._directories.values()))
        for rank, found in zip(self._directories, models, strict=True):
            for model, steps in found.items():
                held = tree.setdefault(model, {})
                for step, parts in steps.items():
                    held.setdefault(step, {})[rank] = parts
        return {model: dict(sorted(steps.items())) for model, steps in tree.items()}

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the root modules that ran."""
        return tuple(model for model in self._tree if not self._filters or self.steps(model))

    def steps(self, model: str) -> tuple[int, ...]:
        """The steps of `model` that any rank has captured."""
        every = self._tree.get(model, ())
        return tuple(s for s in every if all(f.tap.selects_step(s) for f in self._filters))

    def ranks_with(self, model: str, step: int) -> tuple[int, ...]:
        """The ranks that have captured this step."""
        return tuple(self._tree.get(model, {}).get(step, ()))

    @cached_property
    def texts(self) -> dict[tuple[int, str, str], Path]:
        """The readable companions, such as graphs as code, by rank, model and name."""
        return {
            (rank, model_name(path.parent), paths.name_of_file(path.name) or path.name): path
            for rank, directory in self._directories.items()
            for model in paths.models_in(directory)
            for path in sorted(model.iterdir())
            if path.is_file() and not path.is_symlink()
        }

    @cached_property
    def _stranded(self) -> dict[int, list[Found]]:
        """What the ring of a killed writer still holds, by rank."""
        rings = abreast(paths.ring_left_by, list(self._directories.values()))
        found = zip(self._directories, rings, strict=True)
        return {rank: list(ring_records(ring)) if ring else [] for rank, ring in found}

    def _rank_steps(self, model: str, step: int) -> Iterator[RankStep]:
        """The step as each rank has it, lowest rank first."""
        held = self._tree.get(model, {}).get(step, {})
        for rank in held:
            if (rank, model, step) not in self._steps:
                missing = (r for r in held.items() if (r[0], model, step) not in self._steps)
                self._read_steps(model, step, list(islice(missing, _AT_ONCE)))
            yield self._steps[rank, model, step]

    def rank_steps(self, model: str, step: int) -> Iterator[RankStep]:
        """The step as each rank has it, lowest rank first; a selection takes nothing from it."""
        return self._rank_steps(model, step)

    def _read_steps(self, model: str, step: int, held: Sequence[tuple[int, Path]]) -> None:
        """Read the indexes of some ranks."""
        _ = self._stranded, self._manifests  # which threads should not look for together
        for found in abreast(lambda place: self._read_step(model, step, *place), held):
            self._steps[found.rank, model, step] = found
            self._num_found[found.rank, model, step] = found.num_values
            self._lost_parts[found.rank, model, step] = self._lost_of(found)

    def _read_step(self, model: str, step: int, rank: int, directory: Path) -> RankStep:
        held = paths.parts_in(directory)
        self._files |= {path: path.stat().st_ino for path in held.values()}
        shared = self._shared.setdefault(directory.parent, SharedParts(directory.parent))
        parts = {}
        for number, path in held.items():
            found = read_part(path, model, step, number, self._stranded[rank])
            parts[number] = with_shared(found, number, shared)
        return RankStep(rank, model, step, parts)

    def _lost_of(self, step: RankStep) -> tuple[str, ...]:
        """What its rank wrote of a step and is not there any more."""
        manifest = self._manifests[step.rank]
        if not isinstance(manifest, Manifest):
            return ()
        kinds = {
            number: kinds_of(part.rows, [form.slot for form in part.forms])
            for number, part in step.parts.items()
        }
        return tuple(manifest.lost_parts((step.model, step.step), kinds))

    def sole_step(self, model: str, step: int) -> RankStep | None:
        """The step as the one rank of the run has it; None where others may, or of a selection."""
        held = () if self._filters or self.world_size > 1 else self._rank_steps(model, step)
        return next(iter(held), None)

    def _selects(self, key: Key) -> bool:
        return all(each.selects(key) for each in self._filters)

    def _holders(self, key: Key) -> Iterator[RankStep]:
        """The step of `key` on each rank that has the value, lowest rank first."""
        if not self._filters or self._selects(key):
            name = (key.op, key.call, key.slot)
            for step in self._rank_steps(key.model, key.step):
                if step.place_of(name) is not None:
                    yield step

    def shards(self, key: Key) -> tuple[Record, ...]:
        """The Records of `key` on all ranks that have it, lowest rank first."""
        return tuple(step.record(key) for step in self._holders(key))

    def __getitem__(self, key: Key) -> Record:
        for step in self._holders(key):
            return step.record(key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and any(True for _ in self._holders(key))

    def __iter__(self) -> Iterator[Key]:
        for model in self.models:
            for step in self.steps(model):
                yield from self.keys_of(model, step)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keys_of(self, model: str, step: int, op: str = "") -> Iterator[Key]:
        """The Keys of one step, in order of execution; each once, whatever ranks hold it.

        Those of one `op`, where it is named.
        """
        ranks = list(self._rank_steps(model, step))
        names = (name for held in ranks for name in held.names(op))
        found = names if len(ranks) == 1 else dict.fromkeys(names)
        keys = (Key(model, step, *name) for name in found)
        yield from filter(self._selects, keys) if self._filters else keys

    def shards_at(self, model: str, step: int) -> dict[Key, tuple[Record, ...]]:
        """What `shards` tells of each of the `keys_of` one step."""
        found: dict[Key, list[Record]] = {}
        for held in self._rank_steps(model, step):
            for record in held.records():
                found.setdefault(record.key, []).append(record)
        chosen = filter(self._selects, found) if self._filters else found
        return {key: tuple(found[key]) for key in chosen}

    @cached_property
    def calls(self) -> dict[Site, Call]:
        """The calls by Site, each as the lowest rank that has it saw it."""
        found: dict[Site, Call] = {}
        for calls in self.calls_by_rank(self.ranks).values():
            for site, call in calls.items():
                found.setdefault(site, call)
        return found

    def calls_at(self, model: str, step: int) -> dict[Site, Call]:
        """The calls of one step by Site, each as the lowest rank that has it saw it."""
        found: dict[Site, Call] = {}
        for held in self._rank_steps(model, step):
            for call in held.calls():
                found.setdefault(call.site, call)
        return found

    def effects_at(self, model: str, step: int) -> dict[int, list[Call]]:
        """The effects of one step, by rank: what the run left behind besides values of ops.

        They are Calls of reserved ops, and what they hold by value is in their arguments.
        """
        found = {held.rank: held.calls(effects=True) for held in self._rank_steps(model, step)}
        kinds = (GRAPH, ROWS)  # which say something of values, and are left behind by no run
        told = {rank: [c for c in calls if c.op not in kinds] for rank, calls in found.items()}
        return {rank: calls for rank, calls in told.items() if calls}

    def rows_at(self, model: str, step: int) -> dict[int, RowIds]:
        """Which request and position each row of one step is, by rank, where that is recorded."""
        found = {held.rank: held.calls(effects=True) for held in self._rank_steps(model, step)}
        return {rank: RowIds.read(call) for rank, calls in found.items() for call in calls
                if call.op == ROWS}  # fmt: skip

    def effect_values_at(self, model: str, step: int) -> dict[Key, tuple[Record, ...]]:
        """The Records of tensors that effects of one step have of their own."""
        found: dict[Key, list[Record]] = {}
        for held in self._rank_steps(model, step):
            for record in held.records(effects=True):
                found.setdefault(record.key, []).append(record)
        return {key: tuple(records) for key, records in found.items()}

    def num_values(self, model: str, step: int) -> int:
        """How many values of one step the rank has that has most of them."""
        return max((held.num_values for held in self._rank_steps(model, step)), default=0)

    def layouts(self, model: str, step: int) -> set[str]:
        """How values of one step lie over the mesh, as far as anybody said so."""
        held = self._rank_steps(model, step)
        forms = (form for one in held for part in one.parts.values() for form in part.forms)
        return {form.layout for form in forms if form.layout}

    def forget(self) -> None:
        """Let go of the steps that were read: whoever asks again reads them again."""
        parts = (part for step in self._steps.values() for part in step.parts.values())
        self._flaws |= dict.fromkeys(problem for part in parts for problem in part.problems)
        self._steps.clear()
        SHARED_KEYS.forget()
        self.let_go()
        if isinstance(self.path, RemotePath):
            forget_below(self.path.store, self.path.key)

    def calls_of(self, rank: int) -> dict[Site, Call]:
        """The calls that `rank` saw, by Site."""
        return self.calls_by_rank((rank,))[rank]

    def calls_by_rank(self, ranks: Collection[int]) -> dict[int, dict[Site, Call]]:
        """The calls that each of `ranks` saw, by Site."""
        found: dict[int, dict[Site, Call]] = {rank: {} for rank in ranks}
        for model in self.models:
            for step in self.steps(model):
                for held in self._rank_steps(model, step):
                    if held.rank in found:
                        found[held.rank] |= {c.site: c for c in held.calls() if self._asks(c)}
        return found

    def _asks(self, call: Call) -> bool:
        return all(each.tap.selects_op(call.op) for each in self._filters)
