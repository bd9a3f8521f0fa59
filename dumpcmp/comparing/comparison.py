"""The use case, as a straight line: pair, lay out, measure, replay, judge, blame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial as partly
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dumpcmp.align.chunks import in_chunks
from dumpcmp.align.counting import Counting
from dumpcmp.align.followers import followers
from dumpcmp.align.laps import in_laps
from dumpcmp.align.listing import Listing
from dumpcmp.align.mapfile import read_mapping
from dumpcmp.align.mesh.declared import Declarations, read_stated
from dumpcmp.align.pairing import in_golden_terms, pair_values
from dumpcmp.align.renaming import Renaming
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import place
from dumpcmp.comparing.blame import blame_after, in_order
from dumpcmp.comparing.both_sides import let_go
from dumpcmp.comparing.carried import Carried
from dumpcmp.comparing.clipping import clipped_by
from dumpcmp.comparing.clues import Clues, Inquiry, find_clues
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.digests import check_all, check_ends
from dumpcmp.comparing.effect_pairs import with_effect_values
from dumpcmp.comparing.effects_seen import EffectsSeen, Looked
from dumpcmp.comparing.evidence import gather
from dumpcmp.comparing.golden_itself import (
    GoldenRun,
    in_doubt,
    is_telling,
    replay_golden,
    with_golden,
)
from dumpcmp.comparing.laying import lay_out
from dumpcmp.comparing.leaves import differ_anywhere
from dumpcmp.comparing.measuring import Tell, measure_all, unsolved_in
from dumpcmp.comparing.no_gradient import with_zeros
from dumpcmp.comparing.own_metrics import asking, loadable
from dumpcmp.comparing.placing import device_named, placed, plain_arithmetic, workers_for
from dumpcmp.comparing.proposals import mapping_by_values, turns_between
from dumpcmp.comparing.remarks import Noted, caveats, facts_to_know, missing_of
from dumpcmp.comparing.requests import Asking, spared
from dumpcmp.comparing.reruns import Replaying
from dumpcmp.comparing.same_steps import SameStep
from dumpcmp.comparing.shortcuts import allowed, said_of
from dumpcmp.comparing.showing import Showing
from dumpcmp.comparing.side import OpenRun, Side, ask_anew, open_run
from dumpcmp.comparing.spans import Collected, Span, span_of, spans
from dumpcmp.comparing.staleness import WeightHistory
from dumpcmp.comparing.stepping import counted_steps
from dumpcmp.comparing.stopped import open_for
from dumpcmp.comparing.trained import Courses
from dumpcmp.comparing.uncompared import alone, not_compared
from dumpcmp.comparing.updates import with_updates
from dumpcmp.comparing.ways import Ways
from dumpcmp.engines.engine import Workers, is_elsewhere, whole_path, workers_of
from dumpcmp.judge import (
    Checker,
    Evidence,
    Fp64Checker,
    ReferenceChecker,
    RoundingChecker,
    judge_all,
)
from dumpcmp.judge.settling import Settled
from dumpcmp.nouns.errors import CheckError, SelectionError
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Following, Judgement, Pair, Row, Verdict, Why
from dumpcmp.nouns.selection import make_tap

if TYPE_CHECKING:
    from dumpcmp.comparing.proofs import Proofs

PathLike = str | Path


def compare(
    golden: PathLike,
    target: PathLike,
    *,
    reference: PathLike | None = None,
    mapping: PathLike | None = None,
    layers: str | Sequence[str] | None = None,
    tokens: str | Iterable[int] | None = None,
    token_offset: int | None = None,
    layouts: str | Sequence[str] = (),
    checker: Checker | None = None,
    metrics: str | Sequence[str] = (),
    replay: str = Replaying.AUTO,
    allow: str | Sequence[str] = (),
    partial: bool = False,
    verify_digests: bool = False,
    closely: int | str = 0,
    jobs: int = 1,
    device: str = "cpu",
    executor: Workers | None = None,
    progress: Tell | None = None,
) -> Outcome:
    """Compare the archive `target` with `golden`, value by value, and find the first divergence.

        outcome = dumpcmp.compare("d1", "d2")
        print(outcome.first_divergence)
        outcome.to_pandas()

    `reference` is an archive of golden in higher precision. `layers` and `tokens` select as in
    `dumpcmp.capture`; `token_offset` is added to the target's tokens, and is found from what the
    steps were given where it is not stated. `layouts` say how a partitioned run's values lie over
    its mesh: files, or lines such as ``"layers.*.o=b s h[tp:partial]"``. `replay` says which ops
    are run again in float64 on what the target was given: ``"auto"`` those that need it, ``"all"``,
    or ``"off"``. `allow` names shortcuts in arithmetic that the target took, such as ``"tf32"``,
    besides those that its run had leave to take, and levels that it is quantised to, such as
    ``"int8"``. Runs that are known not to be whole are never
    called the same, unless `partial` says that this is known. What is measured is held against its
    digest; `verify_digests` does so with values, too, that need not be read because their digests
    are the same. `closely` is the number of rows that the outcome's `background` looks at closely,
    the first root before other roots and the worst rows, or a glob over their ops. `executor`, or
    `jobs` processes, do the measuring, or a `device` such as ``"cuda"``; the outcome is the same.
    An executor is any of concurrent.futures, a Dask Client, or a name as for ``--executor``.
    """
    ask_anew()
    tap = make_tap(tokens, layers)
    stated = read_stated([layouts] if isinstance(layouts, str) else layouts)
    if is_elsewhere(executor):  # of workers that may stand elsewhere
        golden, target = whole_path(golden), whole_path(target)
        reference = reference and whole_path(reference)
    archives = Archive(golden), Archive(target)
    counting = counted_steps(*archives, token_offset)
    ours = open_run(archives[0], tap, declared=stated.golden)
    theirs = open_run(archives[1], tap, counting, stated.target)
    finer = open_run(reference, tap) if reference is not None else None
    proposal = mapping_by_values(*archives) if mapping is None else None
    renaming = Renaming() if mapping is None else read_mapping(place(mapping))
    comparing = _engine()(
        renaming=proposal.renaming if proposal else renaming,
        counting=counting,
        rule=_chosen(checker, finer),
        metrics=loadable([metrics] if isinstance(metrics, str) else metrics),
        replaying=_replaying(replay),
        allow=allow,
        verify_digests=verify_digests,
        showing=Showing(closely),
        is_mapped=mapping is not None,
        device=device_named(device),
    )
    opened = [run.archive.path for run in (ours, theirs, finer) if run is not None]
    made = workers_of(executor, jobs, roots=opened, local=partly(workers_for, device=device))
    with plain_arithmetic(device), made as workers:
        for span in spans(ours, theirs, finer, comparing.sorts_out(ours, theirs, finer)):
            if not isinstance(span, SameStep):
                comparing.compare(span, workers, progress)
            elif comparing.history.agrees_on(span.weights):
                comparing.take(span, progress)
            else:
                comparing.compare(span_of(span), workers, progress)
    rows, noted = comparing.gathered.rows, comparing.noted
    remarks = [
        *noted.samples(),
        *counting.remarks,
        *(proposal.remarks if proposal else ()),
        *noted.laps(),
        *noted.chunks(),
        *noted.idle_calls(),
        *caveats(comparing.rule, rows),
        *noted.own_metrics(),
        *facts_to_know(tap, ours, theirs, finer),
        *comparing.renaming.idle(*noted.ops),
        *stated.idle(ours.ops, theirs.ops),
        *said_of(noted.shortcuts),
        *(comparing.proofs.remarks if comparing.proofs else ()),
        *noted.levels(),
        *comparing.effects.weights.remarks(),
        *alone(rows),
        *not_compared(rows),
    ]
    missing = () if partial else (
        *missing_of("golden", ours), *missing_of("my side", theirs), *comparing.effects.missing
    )  # fmt: skip
    background = comparing.showing.background(ours.archive, theirs.archive)
    outcome = comparing.gathered.outcome(remarks, missing)
    return replace(outcome, background=background, num_sampled=noted.num_sampled)


def _engine() -> type[_Comparing]:
    import os

    if os.environ.get("DUMPCMP_ENGINE") == "new":
        from dumpcmp.newengine.comparison import Comparing

        return Comparing
    return _Comparing


@dataclass(slots=True, eq=False)
class _Comparing:
    """How to compare, and what earlier spans of steps have come to."""

    renaming: Renaming
    counting: Counting
    rule: Checker
    metrics: tuple[str, ...]
    replaying: Replaying
    allow: str | Sequence[str]
    verify_digests: bool
    showing: Showing
    is_mapped: bool  # the user says which op is which
    device: str = "cpu"
    gathered: Collected = field(default_factory=Collected)
    noted: Noted = field(default_factory=Noted)
    latest_root: Row | None = None
    is_apart: bool = False  # the sides differ in something that an op gave out
    history: WeightHistory = field(default_factory=WeightHistory)
    courses: Courses = field(default_factory=Courses)
    carried: Carried = field(default_factory=Carried)
    effects: EffectsSeen = field(default_factory=EffectsSeen)
    proofs: Proofs | None = None
    nbytes: int = 0  # measured

    def sorts_out(self, golden: OpenRun, target: OpenRun, finer: OpenRun | None) -> bool:
        """Whether of a step that is the same bit for bit nothing is asked but that it is."""
        is_asked = finer or self.metrics or self.verify_digests or self.showing.closely
        is_plain = self.device == "cpu" and self.replaying is not Replaying.ALL
        stated = golden.facts.declared, target.facts.declared
        is_stated = self.renaming != Renaming() or any(one != Declarations() for one in stated)
        return is_plain and not is_asked and not is_stated

    def take(self, step: SameStep, progress: Tell | None) -> None:
        """Take the rows of a step that both sides have bit for bit: nothing is wrong in it."""
        step.pass_by()
        self.history.remember(step.weights, step.golden.archive, step.target.archive)
        self.courses.pass_by()
        self.gathered.add(step.rows)
        if rows := self.effects.of_same_step(step, self.counting):
            self.gathered.add(rows)
        self.noted.shortcuts |= allowed(self.allow, step.target.archive, step.devices)
        if tell := step.telling(progress, self.nbytes):
            tell(step.nbytes, step.nbytes)
        self.nbytes += step.nbytes

    def compare(self, span: Span, workers: Executor, progress: Tell | None) -> None:
        """Compare one span in the light of those before, which were earlier steps."""
        ours, theirs, rule = span.golden, span.target, self.rule
        check_ends(ours, theirs)
        if self.verify_digests:
            check_all((ours, theirs), workers)
        shortcuts = allowed(self.allow, theirs.archive, _devices(theirs))
        terms = in_golden_terms(ours.listing, theirs.listing, self.counting)
        ours = _listing(ours, in_laps(ours.listing, theirs.listing, terms))
        self.noted.num_laps += len(span.golden.listing.values) - len(ours.listing.values)
        ours, theirs = self._in_chunks(ours, theirs, terms)
        turns = turns_between(ours, theirs, self.renaming)
        pairs = pair_values(ours.listing, theirs.listing, self.renaming, self.counting, turns)
        pairs, ours, theirs = with_effect_values(pairs, ours, theirs, self.counting)
        pairs, ours, theirs = self.effects.weights.with_ends(pairs, ours, theirs, self.counting)
        ways = Ways.of(ours.listing, theirs.listing, shortcuts)
        work = lay_out(pairs, ours, theirs, span.finer, ways, rule.closeness)
        work = placed(asking(work, self.metrics, ours.listing), self.device)
        tell = span.telling(progress, self.nbytes)
        work, measured = measure_all(work, workers, tell)
        nbytes = sum(job.nbytes for job in work.values())
        again = self.carried.again(pairs, ours.listing, theirs.listing)
        clipped = clipped_by(measured, ours, theirs, self.counting)
        flow = DataFlow(pairs, ours.listing, theirs.listing, again, clipped)
        clues = Clues()
        if isinstance(rule, ReferenceChecker | RoundingChecker):
            tell = span.telling(progress, self.nbytes + nbytes)
            inquiry = Inquiry(
                ours, theirs, self.replaying, shortcuts, self.is_apart, self.history,
                self.courses, tell,
            )  # fmt: skip
            clues = find_clues(inquiry, flow, work, measured, workers)
        self.is_apart |= differ_anywhere(pairs, measured)
        measured = clues.flips.measured(work, measured, rule.closeness)
        evidence = gather(pairs, measured, clues, ways)
        asked = Asking.of(ours.archive), Asking.of(theirs.archive, self.counting)
        evidence = spared(evidence, *asked, self.counting.names)
        evidence = open_for(evidence, ours.facts.stopped, theirs.facts.stopped)
        evidence = with_zeros(evidence, ours, theirs)
        following = followers(pairs, ours.listing, theirs.listing, unsolved_in(measured))
        following = with_updates(following, pairs, measured, ours.listing)
        judge = partly(self._judged, flow=flow, following=following, ways=ways)
        judged = judge(evidence)
        if clues.replays:
            run = GoldenRun(ours, allowed((), ours.archive, _devices(ours)), self.device)
            own = replay_golden(in_doubt(evidence, judged.rows), flow, run, workers)
            judged = judge(with_golden(evidence, own)) if is_telling(own) else judged
        before = self.latest_root
        rows, self.latest_root, self.carried.settled = judged
        if self._asks_for_proof():
            rows = self._proven(rows, span)
        self.carried.let_go()
        looked = Looked(ours, theirs, self.counting, self.is_apart, flow, work, measured)
        rows, self.latest_root = self.effects.with_rows(rows, looked, before, self.latest_root)
        roots = in_order(row for row in rows if row.root)
        self.showing.add(rows, roots, flow, work, after=len(self.gathered.rows))
        self.gathered.add(rows, roots)
        self.noted.note(span, clues.calls, rows, measured)
        self.noted.shortcuts |= shortcuts
        self.noted.is_undeclared |= ways.is_undeclared
        self.nbytes += nbytes
        let_go()

    def _asks_for_proof(self) -> bool:
        """Whether programs are to be run in float64: nothing is declared that is not in them."""
        is_usual = isinstance(self.rule, ReferenceChecker) and not self.is_mapped
        return is_usual and self.replaying is not Replaying.OFF and not self.allow

    def _proven(self, rows: Sequence[Row], span: Span) -> list[Row]:
        """The rows of a span, as both programs tell; they are run by torch, which takes time."""
        from dumpcmp.comparing.proofs import Proofs

        self.proofs = self.proofs or Proofs(self.counting)
        return self.proofs.settled(rows, span.golden, span.target)

    def _judged(
        self, evidence: Sequence[Evidence], flow: DataFlow, following: Following, ways: Ways
    ) -> _Judged:
        """The rows of a span, with their roots, in the light of earlier ones."""
        settled = dict(self.carried.settled)
        judgements = judge_all(evidence, self.rule, flow.sources, following, settled)
        rows = [_row(one, judgements[one.pair], ways) for one in evidence]
        rows = self.effects.judged(rows, self.is_apart)
        return _Judged(*blame_after(self.latest_root, rows, flow.golden, flow.target), settled)

    def _in_chunks(
        self, golden: Side, target: Side, terms: Mapping[Site, Site]
    ) -> tuple[Side, Side]:
        """Both sides, with what one puts through a loop and the other runs at once in one.

        Of two implementations, which a mapping tells, calls of one name need not be the same.
        """
        if self.renaming != Renaming():
            return golden, target
        ours, theirs = in_chunks(golden.listing, target.listing, terms)
        self.noted.note_chunks(
            len(golden.listing.values) - len(ours.values),
            len(target.listing.values) - len(theirs.values),
        )
        return _listing(golden, ours), _listing(target, theirs)


class _Judged(NamedTuple):
    """What a span comes to."""

    rows: list[Row]
    latest_root: Row | None
    settled: dict[Pair, Settled]


def _listing(side: Side, listing: Listing) -> Side:
    return side if listing is side.listing else replace(side, listing=listing)


def _devices(side: Side) -> Iterator[str]:
    return (records[0].device for records in side.listing.values.values())


def _chosen(checker: Checker | None, finer: OpenRun | None) -> Checker:
    if isinstance(checker, Fp64Checker) and finer is None:
        raise CheckError(
            "Fp64Checker needs a run of golden in higher precision",
            hint="compare: --reference with a dump of golden in float64",
        )
    return checker or ReferenceChecker()


def _replaying(word: str) -> Replaying:
    try:
        return Replaying(word)
    except ValueError:
        hint = f"valid are: {', '.join(Replaying)}"
        raise SelectionError(f"replay {word!r} is not known", hint=hint) from None


def _turned(pair: Pair) -> str:
    """What to say of a value whose dims lie in another order."""
    return f"my dims in golden's order: {' '.join(map(str, pair.turn))}" if pair.turn else ""


def _row(evidence: Evidence, judgement: Judgement, ways: Ways) -> Row:
    pair, measured = evidence.pair, evidence.measured
    listing = ways.golden if pair.key is pair.golden else ways.target
    ours = ways.golden.record(pair.golden) if pair.golden else None
    theirs = ways.target.record(pair.target) if pair.target else None
    own = ours if pair.key is pair.golden else theirs
    call = listing.call(pair.key)
    is_by_rows = measured.metrics is None and judgement.verdict in (Verdict.PASS, Verdict.DTYPE)
    return Row(
        key=pair.key,
        order=own.order if own else listing.record(pair.key).order,
        judgement=judgement,
        metrics=measured.by_rows if is_by_rows else measured.metrics,
        golden_key=pair.golden,
        target_key=pair.target,
        golden_dtype=ours.dtype if ours else "",
        target_dtype=theirs.dtype if theirs else "",
        golden_shape=ours.shape if ours else None,
        target_shape=theirs.shape if theirs else None,
        paired_by=pair.by,
        source=call.source if call else "",
        layout=measured.laid.note if measured.laid else _turned(pair),
        by_rank=measured.laid.by_rank if measured.laid else (),
        reference_errors=measured.reference,
        own=measured.own,
        replay=evidence.golden_replay if judgement.why is Why.GOLDEN else evidence.replay,
        touched=evidence.touched,
    )
