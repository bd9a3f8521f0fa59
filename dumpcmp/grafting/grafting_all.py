"""Puts every root of two recorded runs right, without running the program, and measures that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare
from dumpcmp.grafting.exact_sides import exact_sides
from dumpcmp.grafting.measuring_roots import EXACT, MeasuredRoot, MeasuredStep, measured
from dumpcmp.grafting.suspects import Suspects
from dumpcmp.judge.tolerances import QUANTISED
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.spoken import counted
from dumpcmp.shadows.proving import StepOfModel


@dataclass(frozen=True, slots=True, eq=False)
class GraftedRoot:
    """A root, and how much of the effects' difference it makes."""

    step: int
    op: Op
    call: int
    rank: int
    kind: str
    reason: str
    gone: float  # the share of the difference that goes away with this root alone put right
    alone: float  # the difference that is left with all other roots put right
    beside: Sequence[str] = ()  # ops that may be wrong, too: no value between them is in both runs

    @property
    def name(self) -> str:
        """The call, its rank and its token."""
        on = f" on rank {self.rank}" if self.rank else ""
        return f"{self.op}#{self.call}{on}, token {self.step}"


@dataclass(frozen=True, slots=True, eq=False)
class GraftedStep:
    """What grafts tell of one step."""

    step: int
    total: float  # the effects' difference as they ran, relative to golden's
    left: float  # of it in exact arithmetic, with all roots put right
    left_at: str
    recorded: float  # what the recorded effects are off the runs in float64
    rounding: float  # what rounding explains of that
    num_effects: int
    num_idle: int
    roots: Sequence[GraftedRoot]
    remarks: Sequence[str]

    @property
    def is_explained(self) -> bool:
        """Whether nothing but rounding is left with all roots put right."""
        return self.num_effects > 0 and self.left <= EXACT and self.recorded <= self.rounding

    @property
    def rest(self) -> str:
        """What is left with all roots put right, in a sentence."""
        if not self.num_effects:
            return "no effect of this token was recorded on both sides: nothing could be measured"
        if self.left > EXACT:
            at = f", from {self.left_at} on" if self.left_at else ""
            done = "all of them" if self.roots else "nothing"
            return f"with {done} put right {self.left:.2g} is left{at}: a further fault"
        if self.total <= EXACT:
            return "in float64 these effects are golden's: what differs is not seen in them"
        off = f"the recorded effects are {self.recorded:.2g} off that"
        if self.recorded <= self.rounding:
            return (
                f"with all of them put right nothing is left; {off}, which rounding explains "
                f"(up to {self.rounding:.2g})"
            )
        return (
            f"with all of them put right nothing is left in float64; {off}, and rounding explains "
            f"{self.rounding:.2g}: a further fault, or calls that could not be checked"
        )


@dataclass(frozen=True, slots=True, eq=False)
class GraftReport:
    """All roots of two runs, the most costly of each step first."""

    outcome: Outcome
    steps: Sequence[GraftedStep]

    @property
    def roots(self) -> list[GraftedRoot]:
        """The roots of all steps."""
        return [root for step in self.steps for root in step.roots]

    @property
    def exit_code(self) -> int:
        """0: nothing is wrong, 1: there are roots or something is left, 2: nothing was measured."""
        if not all(step.num_effects for step in self.steps):
            return 2
        is_fine = all(step.is_explained and not step.roots for step in self.steps)
        return 0 if is_fine and not self.outcome.failures else 1

    @property
    def text(self) -> str:
        """The report for a terminal."""
        lines = [line for step in self.steps for line in _lines(step)]
        return "\n".join(lines or ["no value differs: there is nothing to put right"])


def graft_all(
    mine: str | Path,
    golden: str | Path,
    *,
    by_layer: bool | None = None,
    outcome: Outcome | None = None,
    **comparison: Any,
) -> GraftReport:
    """Say of each root of `mine` how much of the effects' difference goes away without it.

    Both recorded programs are run again in float64; the program itself is not run. With `by_layer`,
    which is the default where `allow` declares that mine is quantised, all that differs in a module
    is put right at once. An `outcome` that is at hand spares the comparison; `comparison` are
    options of `compare`.

        print(dumpcmp.graft_all("d2", "d1").text)
    """
    found = compare(golden, mine, **comparison) if outcome is None else outcome
    archives = Archive(golden), Archive(mine)
    allowed = comparison.get("allow", ())
    words = (allowed,) if isinstance(allowed, str) else tuple(allowed)
    is_quantised = not QUANTISED.keys().isdisjoint(words)
    joins = is_quantised if by_layer is None else by_layer
    steps = [_step(archives, pair, found, joins) for pair in _differing(found)]
    return GraftReport(found, steps)


def _differing(outcome: Outcome) -> Iterator[tuple[StepOfModel, StepOfModel]]:
    """The steps in which a divergence began, or else all of them that show a difference."""
    steps = {_steps(row): None for row in outcome.rows if _steps(row) is not None}
    begun = {(row.key.model, row.key.step) for row in outcome.roots if row.verdict.fails}
    others = {(row.key.model, row.key.step) for row in outcome.rows if _differs(row)}
    for pair in steps:
        if pair is not None and pair[0] in (begun or others):
            yield pair


def _steps(row: Row) -> tuple[StepOfModel, StepOfModel] | None:
    golden, target = row.golden_key, row.target_key
    if golden is None or target is None or golden.op.is_effect:
        return None
    return (golden.model, golden.step), (target.model, target.step)


def _differs(row: Row) -> bool:
    return row.metrics is not None and row.metrics.rel_l2 != 0


def _step(
    archives: tuple[Archive, Archive],
    steps: tuple[StepOfModel, StepOfModel],
    outcome: Outcome,
    by_layer: bool,
) -> GraftedStep:
    rows = [
        row for row in outcome.rows
        if (row.golden_key is None or (row.golden_key.model, row.golden_key.step) == steps[0])
        and (row.target_key is None or (row.target_key.model, row.target_key.step) == steps[1])
    ]  # fmt: skip
    for archive in archives:
        _check_whole(archive)
    is_first = steps[1][1] == min(archives[1].steps(steps[1][0]))
    sides = exact_sides(archives, steps, rows)
    return _told(steps[0][1], measured(Suspects(sides, rows, is_first).find(), by_layer))


def _check_whole(archive: Archive) -> None:
    filters = [facts.get("run", {}).get("filters", {}) for facts in archive.run.values()]
    for told in filters:
        if told.get("layers") or told.get("io", "all") != "all" or told.get("level") == "modules":
            raise DumpcmpError(
                f"{archive.path} has only some of the run's values (--layer, --io or --level)",
                hint="a program can be run again only if all of its calls were recorded",
            )


def _told(step: int, found: MeasuredStep) -> GraftedStep:
    roots = [_root(step, each, found) for each in found.roots]
    roots.sort(key=lambda root: (-root.gone, -root.alone))
    return GraftedStep(
        step, found.total, found.left, found.left_at, found.recorded, found.rounding,
        found.num_effects, found.num_idle, roots, found.remarks,
    )  # fmt: skip


def _root(step: int, one: MeasuredRoot, found: MeasuredStep) -> GraftedRoot:
    each = one.suspect
    return GraftedRoot(
        step, each.op, each.call, each.rank, each.kind.value, each.reason,
        _share(found.total, one.without), one.alone, each.beside,
    )  # fmt: skip


def _share(total: float, without: float) -> float:
    if not math.isfinite(without):
        return 0.0
    return 1.0 - without / total if math.isfinite(total) and total else 1.0


def _lines(step: GraftedStep) -> Iterator[str]:
    effects = counted(step.num_effects, "effect")
    yield f"token {step.step}: {effects}, {step.total:.2g} off golden's as they ran"
    for number, root in enumerate(step.roots, 1):
        yield (
            f"  {number}. {root.name}: {root.kind}; put right alone, {root.gone:.0%} of it goes "
            f"away; it alone makes {root.alone:.2g}"
        )
        yield f"     {root.reason}"
        if root.beside:
            yield f"     or at {', '.join(root.beside)}: both runs have no value between them"
    if step.num_idle:
        yield f"  {counted(step.num_idle, 'further place')} differ in what changes no effect"
    yield f"  {step.rest}"
    yield from (f"  note: {remark}" for remark in step.remarks)
