"""Compares one span of steps by rows: pair, lay out, measure, replay, judge, blame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial as partly
from typing import TYPE_CHECKING, NamedTuple

from dumpcmp.align.chunks import in_chunks
from dumpcmp.align.counting import Counting
from dumpcmp.align.followers import followers
from dumpcmp.align.laps import in_laps
from dumpcmp.align.listing import Listing
from dumpcmp.align.mesh.declared import Declarations
from dumpcmp.align.pairing import in_golden_terms, pair_values
from dumpcmp.align.renaming import Renaming
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
from dumpcmp.comparing.own_metrics import asking
from dumpcmp.comparing.placing import placed
from dumpcmp.comparing.proposals import turns_between
from dumpcmp.comparing.remarks import Noted
from dumpcmp.comparing.requests import Asking, spared
from dumpcmp.comparing.reruns import Replaying
from dumpcmp.comparing.same_steps import SameStep
from dumpcmp.comparing.shortcuts import allowed
from dumpcmp.comparing.showing import Showing
from dumpcmp.comparing.side import OpenRun, Side
from dumpcmp.comparing.spans import Collected, Span
from dumpcmp.comparing.staleness import WeightHistory
from dumpcmp.comparing.stopped import open_for
from dumpcmp.comparing.trained import Courses
from dumpcmp.comparing.updates import with_updates
from dumpcmp.comparing.ways import Ways
from dumpcmp.judge import (
    Checker,
    Evidence,
    ReferenceChecker,
    RoundingChecker,
    judge_all,
)
from dumpcmp.judge.settling import Settled
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.row import Following, Judgement, Pair, Row, Verdict, Why

if TYPE_CHECKING:
    from dumpcmp.comparing.proofs import Proofs


@dataclass(slots=True, eq=False)
class RowComparison:
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
        shortcuts = allowed(self.allow, theirs.archive, devices_of(theirs))
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
            run = GoldenRun(ours, allowed((), ours.archive, devices_of(ours)), self.device)
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


def devices_of(side: Side) -> Iterator[str]:
    """Where the values of a side lay."""
    return (records[0].device for records in side.listing.values.values())


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
