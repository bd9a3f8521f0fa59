"""One span of steps, compared on three questions: start, program, kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from dumpcmp.align.laps import in_laps
from dumpcmp.align.listing import Listing
from dumpcmp.align.merging import merged_pairs
from dumpcmp.align.mesh.deliveries import without_collectives
from dumpcmp.align.pairing import in_golden_terms, turned_pair, with_repeats
from dumpcmp.align.partners import Partners
from dumpcmp.align.passes import by_provenance, with_collectives
from dumpcmp.align.unwritten import unwritten
from dumpcmp.comparing.both_sides import let_go
from dumpcmp.comparing.clipping import clipped_by
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.digests import check_all, check_ends
from dumpcmp.comparing.effect_pairs import with_effect_values
from dumpcmp.comparing.effects_seen import Looked
from dumpcmp.comparing.kept_states import kept_states, replay_states
from dumpcmp.comparing.laying import lay_out
from dumpcmp.comparing.leaves import differ_anywhere, leaf_findings
from dumpcmp.comparing.measuring import Tell, measure_all
from dumpcmp.comparing.order_of_roots import in_order
from dumpcmp.comparing.own_metrics import asking
from dumpcmp.comparing.placing import placed
from dumpcmp.comparing.proposals import turns_between
from dumpcmp.comparing.quantised import codes_among, quantised_weights
from dumpcmp.comparing.questions.between_steps import BetweenSteps
from dumpcmp.comparing.questions.facts import Facts
from dumpcmp.comparing.questions.matching import MatchedRun, match_values
from dumpcmp.comparing.questions.step_programs import Programs, RunValues
from dumpcmp.comparing.questions.verdicts import JudgedFacts, Judging, ValueState
from dumpcmp.comparing.shortcuts import allowed
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.span_comparison import Replaying, SpanComparison
from dumpcmp.comparing.spans import Span
from dumpcmp.comparing.trained import replay_updates
from dumpcmp.comparing.ways import Ways
from dumpcmp.judge import ReferenceChecker, RoundingChecker
from dumpcmp.judge.replaying import wrong
from dumpcmp.judge.tolerances import QUANTISED
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Judgement, Measured, Pair, Row, Unwritten, Why

_UnwrittenValues = Mapping[Key, Unwritten]


def compare_span(
    so_far: SpanComparison, span: Span, workers: Executor, progress: Tell | None
) -> None:
    """Compare one span in the light of those before, which were earlier steps."""
    ours, theirs, rule = span.golden, span.target, so_far.rule
    check_ends(ours, theirs)
    if so_far.verify_digests:
        check_all((ours, theirs), workers)
    shortcuts = allowed(so_far.allow, theirs.archive, _devices_of(theirs))
    ours = _in_laps(so_far, ours, theirs)
    is_usual = isinstance(rule, ReferenceChecker | RoundingChecker)
    is_asked = is_usual and so_far.replaying is not Replaying.OFF
    levels = tuple(sorted(QUANTISED.keys() & shortcuts))
    so_far.programs = so_far.programs or Programs(so_far.counting, is_asked, levels)
    steps, golden, target = so_far.programs.of_span(ours, theirs)
    parted = [each for step in steps for each in step.parted()]
    pairs = _matched(so_far, ours, theirs, golden, target, parted)
    pairs, ours, theirs = with_effect_values(pairs, ours, theirs, so_far.counting)
    pairs, ours, theirs = so_far.effects.weights.with_ends(pairs, ours, theirs, so_far.counting)
    golden.side, target.side = ours, theirs
    golden.names = target.names = so_far.effects.weights.names
    ways = Ways.of(ours.listing, theirs.listing, shortcuts)
    work = lay_out(pairs, ours, theirs, span.finer, ways, rule.closeness)
    work = placed(asking(work, so_far.metrics, ours.listing), so_far.device)
    tell = span.telling(progress, so_far.nbytes)
    work, measured = measure_all(work, workers, tell)
    nbytes = sum(job.nbytes for job in work.values())
    leaves = {}
    if is_usual:
        leaves = leaf_findings(pairs, measured, ours, theirs, so_far.is_apart)
    updates: dict[Pair, Replay] = {}
    if is_usual:
        found = partial(_measured_of, measured)
        stale = so_far.history.stale(pairs, ours, theirs)
        made = so_far.courses.updates(pairs, ours, theirs, found)
        is_off = so_far.replaying is Replaying.OFF
        updates = {} if is_off else replay_updates(made, workers)
        right = {pair for pair, one in updates.items() if one.is_known and not wrong(one)}
        kept = kept_states(pairs, so_far.courses, ours, theirs, found)
        updates |= {} if is_off else replay_states(kept, workers)
        leaves |= {pair: each for pair, each in stale.items() if pair not in right}
    rounded = quantised_weights(leaves, ours, theirs, shortcuts)
    between = BetweenSteps(
        pairs,
        so_far.carried.again(pairs, ours.listing, theirs.listing),
        clipped_by(measured, ours, theirs, so_far.counting),
    )
    facts = Facts(
        pairs, measured, steps, golden, target, ways, so_far.counting, leaves, between, updates,
        {pair: one.levels for pair, one in rounded.items()},
        codes_among(pairs, ours.listing, theirs.listing, shortcuts),
    )  # fmt: skip
    if is_usual and so_far.replaying is not Replaying.OFF:
        tell = span.telling(progress, so_far.nbytes + nbytes)
        facts.check(workers, shortcuts, tell)
    so_far.is_apart |= differ_anywhere(pairs, measured)
    known = facts.all(is_usual)
    judging = Judging(rule, facts.sources, facts.takers, so_far.states)
    states = judging.judged(known)
    so_far.states |= states
    rows = [_row(one, states[one.pair], ways) for one in known]
    rows = so_far.effects.judged(rows, so_far.is_apart)
    roots_before = so_far.latest_root
    latest = next((row for row in reversed(rows) if row.root), roots_before)
    flow = DataFlow(pairs, ours.listing, theirs.listing)
    looked = Looked(ours, theirs, so_far.counting, so_far.is_apart, flow, work, measured)
    rows, so_far.latest_root = so_far.effects.with_rows(rows, looked, roots_before, latest)
    roots = in_order(row for row in rows if row.root)
    so_far.showing.add(rows, roots, flow, work, after=len(so_far.gathered.rows))
    so_far.gathered.add(rows, roots)
    so_far.noted.note(span, facts.calls, rows, measured)
    so_far.noted.shortcuts |= shortcuts
    so_far.noted.is_undeclared |= ways.is_undeclared
    so_far.nbytes += nbytes
    let_go()


def _measured_of(measured: Mapping[Pair, Measured], pair: Pair) -> Measured | None:
    """What measuring found of a pair, or of the one that it repeats."""
    first = pair if pair in measured or pair.repeats is None else pair.repeats
    return measured.get(first)


def _in_laps(so_far: SpanComparison, ours: Side, theirs: Side) -> Side:
    """Golden with what it runs in a loop, once for each of the target's ranks, as one value."""
    terms = in_golden_terms(ours.listing, theirs.listing, so_far.counting)
    listing = in_laps(ours.listing, theirs.listing, terms)
    so_far.noted.num_laps += len(ours.listing.values) - len(listing.values)
    return ours if listing is ours.listing else replace(ours, listing=listing)


def _matched(
    so_far: SpanComparison,
    ours: Side,
    theirs: Side,
    one: RunValues,
    other: RunValues,
    parted: Sequence[tuple[Site | None, Site]],
) -> list[Pair]:
    """The values of both sides in pairs, by what they are."""
    golden, target = ours.listing, theirs.listing
    ranked = max(golden.num_ranks, target.num_ranks) > 1
    mine, its = (
        (without_collectives(golden), without_collectives(target)) if ranked else (golden, target)
    )
    terms = in_golden_terms(mine, its, so_far.counting)
    turns = turns_between(ours, theirs, so_far.renaming)
    partners = Partners(mine, its, so_far.renaming, terms, turns)
    pairs = match_values(
        MatchedRun(
            mine, one.quantity, {site: site for site in mine.sites}, one.sole, one.is_put_aside
        ),
        MatchedRun(its, other.quantity, terms, other.sole, other.is_put_aside),
        so_far.renaming,
        merged_pairs(partners) if so_far.renaming.merges else (),
        parted,
    )
    if any(call.kernel for call in target.calls.values()):
        known = by_provenance(pairs, mine, its, _Kernels(its, terms).kernel_of)
        pairs = list(known)
    if turns is not None:
        pairs = [turned_pair(partners, pair) for pair in pairs]
    if ranked:
        pairs = with_collectives(pairs, golden, target)
    blank = unwritten(golden), unwritten(target)
    pairs = [_with_blank(pair, ours, theirs, *blank) for pair in pairs]
    return with_repeats(pairs, golden, target)


class _Kernels:
    """The kernels of a compiled target, also of calls of which no value is stored."""

    def __init__(self, target: Listing, terms: Mapping[Site, Site]) -> None:
        self._calls = target.calls
        self._steps = {golden[:2]: site[:2] for site, golden in terms.items()}

    def kernel_of(self, pair: Pair) -> str:
        """The kernel in which the target computes the call of `pair`; empty if in none."""
        site = pair.target.site if pair.target else None
        if site is None and pair.golden is not None:
            here = pair.golden.site
            site = Site(*self._steps.get(here[:2], here[:2]), *here[2:])
        call = self._calls.get(site) if site else None
        return call.kernel if call else ""


def _with_blank(
    pair: Pair, ours: Side, theirs: Side, one: _UnwrittenValues, other: _UnwrittenValues
) -> Pair:
    """`pair`, which knows how much of it is memory that nobody has written."""
    found = one.get(ours.listing.first(pair.golden)) if pair.golden else None
    found = found or (other.get(theirs.listing.first(pair.target)) if pair.target else None)
    return replace(pair, unwritten=found) if found else pair


def _devices_of(side: Side) -> Iterator[str]:
    """Where the values of a side lay."""
    return (records[0].device for records in side.listing.values.values())


def _turned(pair: Pair) -> str:
    """What to say of a value whose dims lie in another order."""
    return f"my dims in golden's order: {' '.join(map(str, pair.turn))}" if pair.turn else ""


def _row(one: JudgedFacts, state: ValueState, ways: Ways) -> Row:
    pair, measured, judgement = one.pair, one.measured, state.judgement
    listing = ways.golden if pair.key is pair.golden else ways.target
    ours = ways.golden.record(pair.golden) if pair.golden else None
    theirs = ways.target.record(pair.target) if pair.target else None
    own = ours if pair.key is pair.golden else theirs
    call = listing.call(pair.key)
    is_root = state.root is pair and judgement.verdict.fails
    cause = state.root.key if state.root and not is_root and judgement.verdict.fails else None
    kernel, suspects = _fused_with(pair, judgement, ways.target) if is_root else ("", ())
    return Row(
        key=pair.key,
        order=own.order if own else listing.record(pair.key).order,
        judgement=judgement,
        metrics=measured.metrics,
        golden_key=pair.golden,
        target_key=pair.target,
        golden_dtype=ours.dtype if ours else "",
        target_dtype=theirs.dtype if theirs else "",
        golden_shape=ours.shape if ours else None,
        target_shape=theirs.shape if theirs else None,
        paired_by=pair.by,
        root=is_root,
        cause=cause,
        source=call.source if call else "",
        layout=measured.laid.note if measured.laid else _turned(pair),
        by_rank=measured.laid.by_rank if measured.laid else (),
        reference_errors=measured.reference,
        own=measured.own,
        replay=one.check,
        kernel=kernel,
        suspects=suspects,
    )


def _fused_with(pair: Pair, judgement: Judgement, target: Listing) -> tuple[str, tuple[str, ...]]:
    """The kernel that stores a root, and the ops in it that store nothing: any may be wrong."""
    call = target.call(pair.target) if pair.target else None
    if call is None or pair.key.slot.is_gradient or judgement.why in (Why.LEAF, Why.CALL):
        return "", ()
    sites = [
        Site(call.model, call.step, Op(op), int(number))
        for op, _, number in (origin.rpartition("#") for origin in call.origins)
    ]
    silent = [s for s in sites if not any(key.slot.is_output for key in target.sites.get(s, ()))]
    return call.kernel, tuple(f"{site.op}#{site.call}" for site in silent)
