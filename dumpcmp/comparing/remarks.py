"""What a reader must know besides the rows: what is missing, proves little, or was not seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dumpcmp.comparing.own_metrics import failures_of_own
from dumpcmp.comparing.requests import said_of_requests
from dumpcmp.comparing.side import OpenRun
from dumpcmp.comparing.spans import Span
from dumpcmp.comparing.stopped import said_of_ranks
from dumpcmp.judge import Checker, unseen_by
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.row import Measured, Pair, Row, Why, void
from dumpcmp.nouns.rows import Trait, marked
from dumpcmp.nouns.selection import Tap
from dumpcmp.nouns.spoken import counted, plural

_MOST_CALLS = 3  # that differ for nothing, and are told of one by one


def missing_of(name: str, side: OpenRun) -> Iterator[str]:
    """What is known to be lacking of a run: ranks, ends, records."""
    yield from (f"{name}: {said}" for said in said_of_ranks(side.facts.stopped))
    yield from (f"{name}: {problem}" for problem in side.archive.problems)
    for rank, facts in side.archive.run.items():
        if error := facts.get("run", {}).get("error"):
            yield f"{name}: rank {rank}: the program raised {error}"
        if numbers := facts.get("run", {}).get("numbers"):
            kept = ", ".join(map(str, numbers))
            yield f"{name}: rank {rank}: of tensors {kept} alone was kept, which shows no equality"
        if unseen := facts.get("run", {}).get("unseen_replays"):
            replays = counted(unseen, "replay of CUDA graphs is", "replays of CUDA graphs are")
            yield f"{name}: rank {rank}: {replays} not recorded"


def caveats(rule: Checker, rows: Sequence[Row]) -> Iterator[str]:
    """What passes though it proves little: by a rule that does not see all, or without numbers."""
    if said := unseen_by(rule):
        doubted = len(marked(rows, Trait.BLIND))
        values = counted(doubted, "value")
        yield f"what passes does so by {said}; {values} would fail by the rounding rule"
    yield from void(marked(rows, Trait.VOID))
    yield from said_of_requests(rows)


@dataclass(slots=True, eq=False)
class Noted:
    """What is to be said of a comparison, as it is noted span by span."""

    idle: list[CallDifference] = field(default_factory=list)  # the first of them
    num_idle: int = 0
    own: list[tuple[Key, str]] = field(default_factory=list)  # the first that gave no number
    num_own: int = 0
    ops: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    shortcuts: frozenset[str] = frozenset()
    is_undeclared: bool = False  # one side has floats of 8 bits, and nobody says that it may
    num_laps: int = 0  # values of golden that are later laps of a loop
    num_sampled: int = 0  # values of which some rows alone were compared
    num_rounded: int = 0  # values that were rounded to declared levels
    rounded_most: Row | None = None  # the one of them that is farthest from golden's
    end_apart: float = 0.0  # how far from golden's the farthest is that a model gave out in the end
    kept_rows: tuple[int, int] = (0, 0)  # of those: how many were compared, and how many there are

    def note(
        self, span: Span, calls: Mapping[Site, CallDifference], rows: Sequence[Row],
        measured: Mapping[Pair, Measured],
    ) -> None:  # fmt: skip
        """Take notes of one span: calls that differ for nothing, metrics that failed, names."""
        causes = {row.key.site for row in marked(rows, Trait.CALL)}
        idle = [one for site, one in calls.items() if site not in causes]
        self.idle += idle[: _MOST_CALLS - len(self.idle)]
        self.num_idle += len(idle)
        failed = failures_of_own(measured)
        self.own += failed[: 1 - len(self.own)]
        self.num_own += len(failed)
        self._note_samples(rows)
        self._note_levels(rows)
        for ops, side in zip(self.ops, (span.golden, span.target), strict=True):
            ops.update(key.op.plain for key in side.listing.values)

    def _note_samples(self, rows: Sequence[Row]) -> None:
        found = [row.metrics.sample for row in rows if row.metrics and row.metrics.sample]
        kept, total = self.kept_rows
        kept += sum(sample.num_kept for sample in found)
        self.kept_rows = kept, total + sum(sample.num_rows for sample in found)
        self.num_sampled += len(found)

    def _note_levels(self, rows: Sequence[Row]) -> None:
        found = [row for row in rows if row.judgement.why is Why.LEVELS]
        self.num_rounded += len(found)
        known = found if self.rounded_most is None else [self.rounded_most, *found]
        self.rounded_most = max(known, key=_rel_l2, default=None)
        self.end_apart = max([self.end_apart, *map(_rel_l2, marked(rows, Trait.END))])

    def levels(self) -> Iterator[str]:
        """What quantising changed, where it is declared; that it is not, where it shows."""
        if self.is_undeclared:
            yield (
                "one side computes with floats of 8 bits and the other does not; their rounding "
                "explains nothing unless it is declared: --allow fp8, if that is meant"
            )
        most = self.rounded_most
        if most is not None:
            yield (
                f"quantised: {counted(self.num_rounded, 'value was', 'values were')} rounded to "
                f"declared levels, the farthest {most.key.site.place} {most.key.slot} "
                f"(rel_l2 {_rel_l2(most):.2g}); "
                f"what the model gives is up to {self.end_apart:.2g} off"
            )

    def samples(self) -> Iterator[str]:
        """That rows were sampled: what passes does so by those alone."""
        if self.num_sampled:
            kept, total = self.kept_rows
            values = counted(self.num_sampled, "value")
            yield (
                f"rows were sampled: of {values} {kept / total:.2%} of the rows were kept and "
                "compared; what passes does so by these alone"
            )

    def idle_calls(self) -> Iterator[str]:
        """Calls that differ and that nothing fails for."""
        for one in self.idle:
            yield f"{one.golden_site}: {one.said}; nothing fails for it alone"
        if self.num_idle > len(self.idle):
            left = self.num_idle - len(self.idle)
            calls = counted(left, "more call differs", "more calls differ")
            yield f"{calls}, and nothing fails for {plural(left, 'it', 'them')} alone"

    def laps(self) -> Iterator[str]:
        """What golden runs in a loop and the ranks side by side."""
        if self.num_laps:
            yield (
                "golden runs in a loop what each rank runs once: "
                f"{self.num_laps} of its values {plural(self.num_laps, 'stands', 'stand')} beside "
                "those of the first lap"
            )

    def own_metrics(self) -> Iterator[str]:
        """What must be said of metrics that gave no number."""
        others = f", and {self.num_own - 1} more" if self.num_own > 1 else ""
        yield from (f"{key}{others}: {problem}" for key, problem in self.own)


def _rel_l2(row: Row) -> float:
    """How far apart the sides are, where that is a number."""
    found = row.metrics.rel_l2 if row.metrics is not None else 0.0
    return found if found > 0 else 0.0


def facts_to_know(
    tap: Tap, golden: OpenRun, target: OpenRun, finer: OpenRun | None
) -> Iterator[str]:
    """What a reader must know: captures cut short, filters that select nothing, another dtype."""
    sides = {"golden": golden, "my side": target, "the reference": finer}
    for name, side in sides.items():
        if side is not None:
            yield from (f"{name}: {problem}" for problem in side.archive.problems)
            yield from (f"{name}: {text}" for text in _certificates(side))
    steps = max(golden.all_steps, default=-1) + 1
    yield from tap.unmatched(steps, golden.ops | target.ops) if tap != Tap() else ()


def _certificates(side: OpenRun) -> set[str]:
    """Whether a compiled run was shown to be what it would have been without its capture."""
    stated = [facts.get("run", {}).get("certificate") for facts in side.archive.run.values()]
    return {str(words.get("text", "")) for words in stated if isinstance(words, dict)}
