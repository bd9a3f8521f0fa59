"""Audits an archive against itself: schema, digests, torn records, missing ranks, leftovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dumpcmp.archive import paths
from dumpcmp.archive.copies import written_there
from dumpcmp.archive.locks import alone
from dumpcmp.archive.manifest import read_manifest
from dumpcmp.archive.paths import RankDirectory, gaps, listed
from dumpcmp.archive.read.captures import model_name, why_short
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import ring_records
from dumpcmp.archive.schema import KNOWN_VERSIONS, RUN_FILE, SCHEMA_VERSION, SHARED_DIRECTORY
from dumpcmp.archive.soundness import Flaw, StepAudit, StepTask, audit_step, audit_steps
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.engines.engine import Workers, is_elsewhere, whole_path, workers_of
from dumpcmp.execute import SerialExecutor, in_batches, run_each
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.spoken import counted, plural

COMPACTOR_SECONDS = 600.0  # the compactor of a killed dump is waited for so long
_NO_DIGEST = (
    "it has no digest, as those of earlier versions: nobody can tell whether it says what it said"
)
StepsTold = Callable[[int, int], None]  # is told how many are checked, and how many there are


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found. `exit_code` is 0 where nothing is wrong, or nothing any more."""

    path: Path
    findings: tuple[Flaw, ...]
    num_parts: int
    num_records: int
    nbytes: int  # of tensors whose digests were checked

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, or nothing any more, and all of it can be known."""
        return not self.exit_code and not any(finding.unknown for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 where nothing was found to be wrong, 1 where something was."""
        return int(any(finding.stands for finding in self.findings))


def audit(
    path: str | Path,
    *,
    repair: bool = False,
    jobs: int = 1,
    executor: Workers | None = None,
    progress: StepsTold | None = None,
) -> Audit:
    """Check the archive at `path` against itself; with `repair`, recover what a crash left.

    Repair seals parts that have no index, with all that their journal and the dead writer's
    ring hold for them, and clears leftovers away. It touches nothing that is still being
    written, and invents nothing: a value whose digest is wrong stays a finding. `jobs` processes,
    or the workers of an `executor` as for `compare`, share the steps; a repair is done here.
    `progress` is told how many steps are done, of how many.
    """
    paths.clear_rings()
    archive = Archive(whole_path(path) if is_elsewhere(executor) else path)
    if repair and isinstance(archive.path, RemotePath):
        return _mended_there(archive.path, progress)
    if repair:
        with alone(archive.path, _patience(archive)):
            return _audit(archive, repair, SerialExecutor(), progress)
    with workers_of(executor, jobs, roots=[archive.path]) as workers:
        return _audit(archive, repair, workers, progress)


def _patience(archive: Archive) -> float:
    """How long a repair waits for whoever compacts the archive.

    The compactor beside a dump outlives a dump that was killed, and ends by itself.
    """
    runs = [(facts, archive.path / f"worldsize{archive.world_size}_global_rank{rank}")
            for rank, facts in archive.run.items()]  # fmt: skip
    is_killed = any(not facts.get("ended") for facts, _ in runs)
    lives = any(paths.writer_lives(facts, directory) for facts, directory in runs)
    return COMPACTOR_SECONDS if is_killed and not lives else 0.0


def _mended_there(url: RemotePath, tell: StepsTold | None) -> Audit:
    """Mend a copy of the archive here, and put what has changed into the store.

    An audit reads all of it anyway; what was cleared away here is removed there at the end.
    """
    with written_there(url, with_old=True) as copy:
        mended = audit(copy, repair=True, progress=tell)
        gone = [name for name in url.store.below(url.key) if not (copy / name).exists()]
    for name in gone:
        url.store.remove((url / name).key)
    url.refresh()
    there = [replace(each, place=url / each.place.relative_to(copy)) for each in mended.findings]
    return replace(mended, path=url, findings=tuple(there))


def _audit(archive: Archive, repair: bool, workers: Executor, tell: StepsTold | None) -> Audit:
    flaws: list[Flaw] = []
    if missing := listed(chain.from_iterable(archive.missing_runs)):
        flaws.append(Flaw(archive.path, f"rank {missing} of {archive.world_size} is missing"))
    ranks = [
        _RankAudit(directory, RankDirectory(archive.path, rank, world_size), repair)
        for directory, (world_size, rank) in paths.rank_directories(archive.path).items()
    ]
    steps = [step for each in ranks for step in each.steps]
    done = _step_audits([step for step in steps if not step.stranded], workers)
    checked: list[StepAudit] = []
    for each in ranks:
        flaws += each.before()
        begin = len(checked)
        for step in each.steps:
            checked.append(audit_step(step) if step.stranded else next(done))
            flaws += checked[-1].flaws
            if tell is not None:
                tell(len(checked), len(steps))
        flaws += each.after(checked[begin:])
    everyone = set(archive.ranks)
    flaws += [
        Flaw(archive.path, f"rank {rank} has no step {step} of {model}, others do")
        for model in archive.models
        for step in archive.steps(model)
        for rank in sorted(everyone.difference(archive.ranks_with(model, step)))
    ]
    counts = ((one.num_parts, one.num_records, one.nbytes) for one in checked)
    return Audit(archive.path, tuple(flaws), *map(sum, zip((0, 0, 0), *counts, strict=True)))


def _step_audits(steps: Sequence[StepTask], workers: Executor) -> Iterator[StepAudit]:
    """What the steps come to, in their order; each is looked at when it is asked for, or before."""
    if isinstance(workers, SerialExecutor):
        yield from map(audit_step, steps)
        return
    batches = in_batches(steps, workers, lambda step: step.nbytes)
    for done in run_each(audit_steps, batches, workers):
        yield from done


class _RankAudit:
    """Checks one rank: its run.json, its parts, and what should not be there."""

    def __init__(self, directory: Path, rank: RankDirectory, repair: bool) -> None:
        self.directory, self.rank = directory, rank
        self.facts = paths.read_run(directory)
        self.live = paths.writer_lives(self.facts, directory)
        self.mends = repair and not self.live
        self.ring = paths.ring_left_by(directory)
        self.stranded = list(ring_records(self.ring)) if self.ring else []
        self.models = paths.models_in(directory)
        self.steps = [
            StepTask(step, self.live, self.mends, self.stranded)
            for model in self.models
            for step in (*_shared_in(model), *paths.steps_in(model).values())
        ]
        self.flaws: list[Flaw] = []

    def find(self, place: Path, problem: str, mended: str = "", *, harmless: bool = False) -> None:
        """Note a flaw; `mended` says what a repair does about it."""
        self.flaws.append(Flaw(place, problem, mended if self.mends else "", harmless))

    def before(self) -> list[Flaw]:
        """What shows before its steps are looked at."""
        if self.live:
            self.find(self.directory, "the capture is still running", harmless=True)
        else:
            self._check_leftovers()
        if self.ring is not None:
            records = counted(len(self.stranded), "record", "records")
            are = plural(len(self.stranded), "is", "are")
            told = f"{records} of a dead writer {are} still in its ring"
            self.find(self.ring, told, "moved into their parts")
        return self._told()

    def after(self, checked: Sequence[StepAudit]) -> list[Flaw]:
        """What shows when its steps are `checked`, and mended."""
        if self.mends and self.ring is not None:
            self.ring.unlink(missing_ok=True)
        self._check_run()
        self._check_whole(checked)
        for model in self.models:
            self._check_tokens(model)
            self._check_unused(model, checked)
        return self._told()

    def _told(self) -> list[Flaw]:
        told, self.flaws = self.flaws, []
        return told

    def _check_leftovers(self) -> None:
        for draft in paths.leftovers(self.directory):
            if self.mends:
                paths.remove(draft)
            self.find(draft, "a draft that nobody finished", "removed")

    def _check_run(self) -> None:
        place, facts = self.directory / RUN_FILE, self.facts
        if facts and facts.get("schema") not in KNOWN_VERSIONS:
            self.find(place, f"schema {facts.get('schema')}; this dumpcmp knows {SCHEMA_VERSION}")
            return
        if facts and "digest" not in facts:
            self.flaws.append(Flaw(place, _NO_DIGEST, unknown=True))
        if self.live or facts.get("complete") is True:
            return
        told = "is missing or cannot be read" if not facts else "says that the capture "
        if facts:
            told += f"stopped: {p}" if (p := facts.get("problem")) else "never ended"
        if facts.get("repaired"):
            self.find(place, f"{told}; repaired at {facts['repaired']}", harmless=True)
            return
        if self.mends:
            self.rank.write_run(_mended(facts, self.rank))
        self.find(place, told, "the run is marked as repaired")

    def _check_whole(self, checked: Sequence[StepAudit]) -> None:
        """Find out whether there is less than a capture wrote that ended in order."""
        if self.facts.get("schema") not in KNOWN_VERSIONS or self._has_moved:
            return
        whys = list(self._lost(checked))
        if whys and self.mends:
            self.rank.write_run(_mended({**self.facts, "problem": "; ".join(whys[:3])}, self.rank))
        for why in whys:
            self.find(self.directory / RUN_FILE, why, "the run is marked as repaired")

    def _lost(self, checked: Sequence[StepAudit]) -> Iterator[str]:
        """What the run wrote, by its manifest or at least by its count, and is not there."""
        try:
            manifest = read_manifest(self.directory, self.facts)
        except ArchiveError as error:
            yield error.message
            return
        if manifest is None:
            why = why_short(self.facts, sum(each.num_records for each in checked))
            yield from [why] if why else []
            return
        steps = {place: done for task, done in zip(self.steps, checked, strict=True)
                 if (place := _step_of(task.directory))}  # fmt: skip
        there: dict[str, list[int]] = {}
        for model, step in steps:
            there.setdefault(model, []).append(step)
        yield from manifest.lost_steps(there)
        for place, done in steps.items():
            yield from manifest.lost_parts(place, done.kinds, done.names)

    @property
    def _has_moved(self) -> bool:
        """Whether parts are in a store, and no longer here."""
        return bool(paths.moved_to(self.directory))

    def _check_tokens(self, model: Path) -> None:
        """Find steps that are not there, although the capture was told to leave out none."""
        told = self.facts.get("run")
        filters = told.get("filters") if isinstance(told, dict) else None
        everything = isinstance(filters, dict) and not any(
            filters.get(name) for name in ("tokens", "layers", "every")
        )
        steps = paths.steps_in(model)
        first = 0 if everything else min(steps, default=0)
        if missing := listed(gaps(steps, first)):
            self.find(model, f"token {missing} is not there", harmless=not everything)

    def _check_unused(self, model: Path, checked: Sequence[StepAudit]) -> None:
        """Find shared parts that no step leads to; told only where every step can tell."""
        if self.live or self._has_moved:
            return
        steps = {task.directory: done for task, done in zip(self.steps, checked, strict=True)}
        used = [steps[step].leads_to for step in paths.steps_in(model).values() if step in steps]
        known = [found for found in used if found is not None]
        if len(known) < len(used):
            return
        for number, part in paths.shared_in(model).items():
            if number not in frozenset().union(*known):
                size = readable(part.stat().st_size)
                told = f"no step leads to it any more; dumpcmp compact frees its {size}"
                self.find(part, told, harmless=True)


def _step_of(directory: Path) -> tuple[str, int] | None:
    """The model and the number of a step's directory; None for what steps share."""
    if directory.name == SHARED_DIRECTORY:
        return None
    return model_name(directory.parent), int(directory.name)


def _shared_in(model: Path) -> list[Path]:
    """The directory with what the steps of a model share, which they lead to: it comes first."""
    shared = model / SHARED_DIRECTORY
    return [shared] if paths.is_own_directory(shared) else []


def _mended(facts: dict[str, Any], rank: RankDirectory) -> dict[str, Any]:
    """run.json of a capture that was cut short, once its parts are sealed."""
    told = {"schema": SCHEMA_VERSION, "world_size": rank.world_size, "rank": rank.rank, "run": {}}
    told |= facts
    told |= {"complete": False, "writer": None, "repaired": paths.now()}
    told["problem"] = facts.get("problem") or "the capture was cut short"
    return told
