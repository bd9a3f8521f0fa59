"""Cuts long runs into spans of steps, which are compared one after the other in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.same_steps import SameStep, same_step
from dumpcmp.comparing.side import OpenRun, Side
from dumpcmp.nouns.equal_rows import EqualRows
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.rows import Rows

MOST_VALUES = 16_384  # of all sides together, in one span of more than one step


@dataclass(frozen=True, slots=True)
class Span:
    """Some steps as the sides have them, and how much of the runs they are."""

    golden: Side
    target: Side
    finer: Side | None
    share: float = 1.0  # of all steps, these and those before

    def telling(self, tell: Tell | None, done: int) -> Tell | None:
        """How to tell of bytes, when `done` were measured before: what is to come is estimated."""
        if tell is None:
            return None
        return lambda now, total: tell(done + now, int((done + total) / self.share))


def spans(
    golden: OpenRun, target: OpenRun, finer: OpenRun | None, sorts_out: bool = False
) -> Iterator[Span | SameStep]:
    """The runs, span by span; each is let go of when the next one is asked for.

    Links and depths stay within a step. What a later one needs of those before it is little, and
    known of one model alone. Runs of several models are one span; so are those on several ranks
    where steps may belong together: with microbatches, with gradients, where layouts are not
    stated, or where a side has other steps than the other. Where `sorts_out` says so, steps that
    both runs have bit for bit come by themselves.
    """
    runs = [run for run in (golden, target, finer) if run is not None]
    if not all(run.is_divisible for run in runs) or _may_share_steps(runs):
        yield Span(golden.side(), target.side(), finer.side() if finer else None)
        return
    total = len({step for run in runs for step in run.steps})
    so_far = 0
    for steps in _cut(runs, partial(same_step, golden, target) if sorts_out else _never):
        so_far += 1 if isinstance(steps, SameStep) else len(steps)
        share = so_far / total if total else 1.0
        if isinstance(steps, SameStep):
            yield replace(steps, share=share)
        else:
            others = finer.side(steps) if finer else None
            yield Span(golden.side(steps), target.side(steps), others, share)
        for run in runs:
            run.forget()


def _may_share_steps(runs: Sequence[OpenRun]) -> bool:
    """Whether ranks of one side may have in one step what the other has in several."""
    is_on_ranks = any(run.archive.world_size > 1 for run in runs)
    return is_on_ranks and any(run.all_steps != runs[0].all_steps for run in runs)


def span_of(step: SameStep) -> Span:
    """A step that both runs have bit for bit, to be looked at value by value all the same."""
    steps = [step.number]
    return Span(step.golden.side(steps), step.target.side(steps), None, step.share)


def _never(_step: int) -> None:
    return None


def _cut(
    runs: Sequence[OpenRun], same: Callable[[int], SameStep | None]
) -> Iterator[list[int] | SameStep]:
    """The steps of the runs in order, as many together as have few values."""
    span: list[int] = []
    count = 0
    steps = sorted({step for run in runs[:2] for step in run.steps})
    for step in steps:
        more = sum(run.num_values(step) for run in runs)
        found = same(step)
        if span and (found or count + more > MOST_VALUES):
            yield span
            span, count = [], 0
        if found:
            yield found
            continue
        span.append(step)
        count += more
    if span or not steps:
        yield span


@dataclass(slots=True, eq=False)
class Collected:
    """The rows and roots of all spans: of more than one they lie in a file."""

    rows: Sequence[Row] = ()
    roots: Sequence[Row] = ()
    _places: list[int] = field(default_factory=list)  # of roots
    _is_one: bool = True

    def add(self, rows: Sequence[Row], roots: Sequence[Row] = ()) -> None:
        """Take the rows of the next span, and the roots among them in their order."""
        if self._is_one and not self.rows and not isinstance(rows, EqualRows):
            self.rows, self.roots = tuple(rows), tuple(roots)
            return
        if not isinstance(self.rows, Rows):
            self._is_one, first, first_roots = False, self.rows, self.roots
            self.rows = Rows()
            self._store(self.rows, first, first_roots)
        self._store(self.rows, rows, roots)

    def _store(self, store: Rows, rows: Sequence[Row], roots: Sequence[Row]) -> None:
        place = {id(row): len(store) + at for at, row in enumerate(rows)} if roots else {}
        self._places += [place[id(root)] for root in roots]
        store.extend(rows)

    def outcome(self, remarks: Sequence[str], missing: Sequence[str]) -> Outcome:
        """All of it."""
        roots = self.rows.at(self._places) if isinstance(self.rows, Rows) else self.roots
        return Outcome(self.rows, roots, tuple(remarks), tuple(missing))
