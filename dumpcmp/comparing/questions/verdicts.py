"""The one place where verdicts are made: from typed facts about each value, in order of execution.

A value is wrong where its own call is, where its run started otherwise, or where the programs part.
What comes after such a root inherits from it. What differs although nothing before it is wrong is
rounding that grew, or could not be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from dumpcmp.judge.checkers import ExactChecker
from dumpcmp.judge.conditions import INEXACT, Checker, Conditions, judge
from dumpcmp.judge.replaying import flipped, wrong
from dumpcmp.judge.tolerances import GROWTH, ILL
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.record import NO_KERNEL
from dumpcmp.nouns.replay import Origin, Replay
from dumpcmp.nouns.row import (
    Judgement,
    Measured,
    Pair,
    Trouble,
    Verdict,
    Why,
)


class Meaning(StrEnum):
    """Whether a value of both sides is one quantity in float64."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"


class Absence(StrEnum):
    """Why one side alone has a value, as far as that is no difference."""

    NONE = ""
    UNASKED = "unasked"
    LOST = "lost"
    ZERO = "zero"
    GENERATOR = "generator"
    WEIGHT = "weight"
    FUSED = "fused"


@dataclass(frozen=True, slots=True)
class JudgedFacts:
    """What is known of one value of either run when it is judged."""

    pair: Pair
    measured: Measured
    conditions: Conditions
    meaning: Meaning = Meaning.UNKNOWN
    check: Replay | None = None  # the target's call, run again
    golden_check: Replay | None = None
    regions: tuple[str, ...] = ("", "")  # what is wrong with compiled regions, of either side
    is_update: bool = False  # `check` tells what an optimizer made, as golden's would
    is_settled: bool = False  # both calls did the same to the same bytes
    leaf: str = ""  # in what a start value differs
    levels: str = ""  # how declared levels explain what it differs in
    is_code: bool = False  # the target has codes where golden has numbers
    parting: str = ""  # that the programs part here, and how
    call: str = ""  # of what a call gave: in what it is another than golden's
    is_shown: bool = False  # all effects that depend on it are the same in both programs
    is_parted: bool = False  # it is known where the programs of its step part
    is_effect: bool = False  # it is something that the run leaves behind
    unsettled: str = ""  # of an effect: why it could not be shown
    fresh: bool = False  # memory as it was found
    absence: Absence = Absence.NONE
    said: str = ""  # of what is absent, why
    again: Pair | None = None  # the same two values in an earlier step
    is_passed_on: bool = False  # it is what others are, which are judged
    main: Pair | None = None  # the pair by which its two values are judged, if it is another
    replicas: str = ""  # in what ranks differ that should have one value
    by_rank: str = ""  # of a value that differs: on which ranks, or what that looks like
    holders: str = ""  # the ranks that have it, where one side alone has it and not all of its do
    is_by_rank: bool = False  # each rank's value was measured by itself
    is_stated: bool = False  # the user says how it lies over the ranks
    shown_by: Pair | None = None  # of terms that nobody saw added up: what their sum was used for

    @property
    def is_equal(self) -> bool:
        metrics = self.measured.metrics
        return metrics is not None and metrics.equal and not (self.replicas or self.unsettled)


class Taint(IntEnum):
    """The worst that lies before a value."""

    NOTHING = 0
    DOUBT = 1
    FAULT = 2


@dataclass(frozen=True, slots=True)
class ValueState:
    """A judgement, and what the values must know that were computed from this one."""

    judgement: Judgement
    taint: Taint = Taint.NOTHING
    root: Pair | None = None
    is_flipped: bool = False
    is_near: bool = True  # as near to golden's as rounding explains
    is_alone: bool = False  # one side alone has it, and nothing before it is wrong
    is_hidden: bool = False  # a kernel computes it and does not store it

    @property
    def is_fault(self) -> bool:
        """Whether it is known to be wrong by itself."""
        return self.taint is Taint.FAULT and self.judgement.why in _OWN


_HALF_OF_DIGITS = 0.5  # a power of eps: no chain of sound ops loses more
_SETTLED = (
    "the sides differ, but both programs give the same in float64, and every call that it "
    "depends on is right"
)
_CODES = "the target has codes here, by levels that are declared"
_SETTLED_BY_PROGRAMS = frozenset((Trouble.SHAPE, Trouble.UNSOLVED, Trouble.LACKING))
_UNMEASURED = frozenset((Trouble.UNSOLVED, Trouble.UNKEPT))
_NO_DIFFERENCE = frozenset(Absence) - {Absence.NONE, Absence.FUSED}
_OWN = frozenset((Why.INTRODUCED, Why.GOLDEN, Why.LEAF, Why.CALL, Why.WIRED, Why.REPLICAS))
_TROUBLES = {
    Trouble.UNREADABLE: Verdict.ERROR,
    Trouble.SHAPE: Verdict.SHAPE,
    Trouble.LOST: Verdict.INCONCLUSIVE,
    Trouble.UNSOLVED: Verdict.INCONCLUSIVE,
    Trouble.LACKING: Verdict.UNPAIRED,
    Trouble.UNCHECKED: Verdict.INCONCLUSIVE,
    Trouble.UNKEPT: Verdict.INCONCLUSIVE,
}


@dataclass(frozen=True)
class Judging:
    """Judges the values of some steps."""

    checker: Checker
    sources: Mapping[Pair, Sequence[Pair]]  # what each value was computed from
    takers: Mapping[Pair, Sequence[Pair]]  # of what one side alone has: what was made of it
    earlier: Mapping[Pair, ValueState]

    def judged(self, facts: Iterable[JudgedFacts]) -> dict[Pair, ValueState]:
        """The state of each value; sources come before what is made of them."""
        known = {one.pair: one for one in facts}
        states: dict[Pair, ValueState] = {}
        first = {pair: [one.main] for pair, one in known.items() if one.main not in (None, pair)}
        for pair in _after_sources(known, {**self.sources, **first}):
            before = [
                state
                for each in self.sources.get(pair, ())
                if (state := states.get(each) or self.earlier.get(each)) is not None
            ]
            states[pair] = _by_rank(known[pair], self._state(known[pair], before, states))
        states = _with_shown_sums(known, states)
        return _covered(
            known, _with_other_takers(known, states, self.sources), self.takers, self.sources
        )

    def _state(
        self, one: JudgedFacts, before: Sequence[ValueState], states: Mapping[Pair, ValueState]
    ) -> ValueState:
        pair = one.pair
        main = states.get(one.main) if one.main is not None and one.main is not pair else None
        if main is not None and known_again(one):
            return _repeated(main)
        known = states.get(one.again) or self.earlier.get(one.again) if one.again else None
        if known is not None and known_again(one):
            return _repeated(known)
        taint = max((each.taint for each in before), default=Taint.NOTHING)
        roots = [each.root for each in before if each.root is not None]
        faults = [each.root for each in before if each.taint is Taint.FAULT]
        root = next(iter([*faults, *roots]), None)
        is_flipped = any(each.is_flipped for each in before)
        if one.is_code:
            return ValueState(Judgement(Verdict.SKIPPED, _CODES), taint, root, is_flipped, False)
        if one.leaf and not one.levels:
            return ValueState(_failing(one.leaf, Why.LEAF), Taint.FAULT, pair, is_flipped, False)
        if one.absence in _NO_DIFFERENCE:
            return ValueState(_alone(one), taint, root, is_flipped, False)
        if one.is_equal and not one.parting:
            passed = self._by_numbers(one).coming(Origin.EQUAL)
            return ValueState(passed)
        fault = self._fault(one)
        if fault is not None and not pair.both:
            said = f"only {_side(one)} has it; {fault.reason}"
            fault = replace(fault, verdict=Verdict.UNPAIRED, reason=said)
        if fault is not None:
            return ValueState(fault, Taint.FAULT, pair, is_flipped, False)
        if not pair.both:
            judgement = _alone(one)
            is_open = not (one.is_shown or one.is_parted)
            is_alone = judgement.verdict is Verdict.UNPAIRED and is_open
            if is_alone and root is None:
                root, judgement = pair, replace(judgement, why=Why.CALL)
            is_alone = is_alone and taint is not Taint.FAULT
            is_hidden = one.absence is Absence.FUSED
            is_near = is_hidden and all(each.is_near for each in before)
            return ValueState(judgement, taint, root, is_flipped, is_near, is_alone, is_hidden)
        if (flip := self._flip(one)) is not None:
            return ValueState(flip, taint, root, True, False)
        judgement = _of_ranks(one, self._by_trouble(one) or self._by_numbers(one))
        is_doubted = judgement.verdict is not Verdict.PASS
        if one.is_stated and is_doubted and all(each.is_near for each in before):
            judgement = replace(judgement, why=Why.WIRED, origin=Origin.INTRODUCED)
            return ValueState(judgement, Taint.FAULT, pair, is_flipped, False)
        if one.measured.trouble in _SETTLED_BY_PROGRAMS and one.is_shown and taint is Taint.NOTHING:
            return ValueState(Judgement(Verdict.PASS, _SETTLED, why=Why.RIGHT), is_near=False)
        judgement = judgement.coming(_origin(one, is_flipped))
        if judgement.verdict.fails and one.levels and taint is not Taint.FAULT:
            stands = replace(judgement, verdict=Verdict.DTYPE, reason=one.levels, why=Why.LEVELS)
            return ValueState(stands, is_near=False)
        if one.unsettled and taint is not Taint.FAULT:
            doubt = Judgement(Verdict.INCONCLUSIVE, one.unsettled)
            return ValueState(doubt, Taint.DOUBT, root, is_flipped, False)
        if not judgement.verdict.fails:
            is_open = judgement.verdict is Verdict.INCONCLUSIVE
            taint = max(taint, Taint.DOUBT) if is_open else taint
            is_near = not is_open or _is_passed_by(one, before)
            return ValueState(judgement, taint, root, is_flipped, is_near)
        return self._far(one, judgement, before, taint, root, is_flipped)

    # what is wrong by itself

    def _fault(self, one: JudgedFacts) -> Judgement | None:
        for check, why in ((one.check, Why.INTRODUCED), (one.golden_check, Why.GOLDEN)):
            if check is not None and check.is_known and (said := wrong(check)):
                if one.parting and why is Why.INTRODUCED:
                    break
                return _failing(_with_others(said, check), Why.WIRED if one.is_update else why)
        for said, why in zip(one.regions, (Why.INTRODUCED, Why.GOLDEN), strict=True):
            if said and not (one.parting and why is Why.INTRODUCED):
                return _failing(said, why)
        return _failing(one.call or one.parting, Why.CALL) if one.parting else None

    def _flip(self, one: JudgedFacts) -> Judgement | None:
        check = one.check
        if check is None or check.choice is None or not check.choice.decides:
            return None
        if one.conditions.kinds & INEXACT:
            return None
        return Judgement(Verdict.FLIP, flipped(check.choice), origin=Origin.FLIPPED)

    # by numbers

    def _by_trouble(self, one: JudgedFacts) -> Judgement | None:
        if one.fresh:
            said = "memory as it was found: nothing has been computed yet"
            return Judgement(Verdict.SKIPPED, said)
        if one.pair.key.slot.is_generator:
            reason = (
                "the generators were in different states, so that random ops draw other numbers"
            )
            return Judgement(Verdict.INCONCLUSIVE, f"{reason}: seed both runs alike")
        trouble = one.measured.trouble
        why = Why.TERMS if one.measured.terms else Why.PLAIN
        return Judgement(_TROUBLES[trouble], one.measured.said, why=why) if trouble else None

    def _by_numbers(self, one: JudgedFacts) -> Judgement:
        metrics, conditions = one.measured.metrics, one.conditions
        assert metrics is not None, "a pair without trouble has been measured"
        exact = not conditions.kinds & INEXACT
        try:
            return judge(metrics, conditions, ExactChecker() if exact else self.checker)
        except CheckError as error:
            return Judgement(Verdict.INCONCLUSIVE, error.message)

    # what differs by more than rounding explains at once

    def _far(
        self,
        one: JudgedFacts,
        judgement: Judgement,
        before: Sequence[ValueState],
        taint: Taint,
        root: Pair | None,
        is_flipped: bool,
    ) -> ValueState:
        if judgement.verdict is Verdict.ERROR:
            return ValueState(judgement, max(taint, Taint.DOUBT), root, is_flipped, False)
        if taint is Taint.FAULT:
            return ValueState(judgement, taint, root, is_flipped, False)
        if judgement.why is Why.REPLICAS and all(each.is_near for each in before):
            return ValueState(judgement, Taint.FAULT, one.pair, is_flipped, False)
        is_right = _is_shown(one)
        is_other = one.meaning is Meaning.OTHER and one.is_parted
        if is_other or (one.meaning is not Meaning.SAME and one.is_shown):
            where = "they part elsewhere" if one.is_parted else "no effect depends on that"
            said = f"{judgement.reason}; the programs compute something else here, and {where}"
            other = replace(judgement, verdict=Verdict.COVERED, reason=said)
            return ValueState(other, taint, root, is_flipped, False)
        if is_right and (one.is_update or one.meaning is Meaning.SAME):
            return self._grown(one, judgement, taint, is_flipped)
        if one.is_by_rank and is_right and one.pair.key.slot.is_gradient:
            return ValueState(judgement, taint, one.pair, is_flipped, False, is_alone=True)
        lone = [each for each in before if each.is_alone]
        is_clear = not is_flipped and _exceeds_hidden(one, before)
        if all(each.is_near or each.is_alone for each in before) and is_clear:
            if lone:
                return ValueState(judgement, Taint.FAULT, lone[0].root, is_flipped, False)
            is_asked = is_right and one.call  # both did what they were asked for, which differs
            supposed = replace(
                judgement,
                reason=one.call if is_asked else judgement.reason,
                why=Why.CALL if is_asked else Why.INTRODUCED,
                origin=Origin.INTRODUCED,
            )
            return ValueState(supposed, Taint.FAULT, one.pair, is_flipped, False)
        said = f"{judgement.reason}; {_why_open(one)}"
        doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
        return ValueState(doubt, Taint.DOUBT, root, is_flipped, False)

    def _grown(
        self, one: JudgedFacts, judgement: Judgement, taint: Taint, is_flipped: bool
    ) -> ValueState:
        if taint is Taint.DOUBT:
            said = f"{judgement.reason}; the op is right, but one before it could not be judged"
            doubt = replace(judgement, verdict=Verdict.INCONCLUSIVE, reason=said)
            return ValueState(doubt, taint, None, is_flipped, False)
        condition = one.check.condition if one.check else 1.0
        how, why = "another choice was made" if is_flipped else "rounding grew", Why.RIGHT
        if not is_flipped and condition * one.conditions.eps > ILL:
            left = f"this is what is left after cancellation (condition {condition:.1g})"
            how, why = f"{left}, and agrees with nothing", Why.ILL
        said = f"{judgement.reason}; every op on the way is right: {how}"
        absolved = replace(judgement, verdict=Verdict.PASS, reason=said, why=why)
        return ValueState(absolved, taint, None, is_flipped, False)


def _exceeds_hidden(one: JudgedFacts, before: Iterable[ValueState]) -> bool:
    """Whether ops that a kernel hides cannot have rounded so much, however many they are.

    Gradients may: behind a norm they cancel, and what is left is rounding.
    """
    if not any(each.is_hidden for each in before):
        return True
    metrics, check = one.measured.metrics, one.golden_check
    is_gradient = one.pair.key.slot.is_gradient
    if is_gradient or metrics is None or check is None or not check.is_known:
        return False  # how well it is determined is not known
    most = max(check.condition, 1.0) * one.conditions.eps**_HALF_OF_DIGITS
    return not metrics.rel_l2 <= most


def _of_ranks(one: JudgedFacts, judgement: Judgement) -> Judgement:
    """`judgement`, where ranks should have one value and do not, or have terms of a result."""
    if judgement.verdict.fails or judgement.verdict is Verdict.INCONCLUSIVE:
        return judgement
    if one.replicas:
        return replace(judgement, verdict=Verdict.FAIL, reason=one.replicas, why=Why.REPLICAS)
    if one.unsettled:
        return Judgement(Verdict.INCONCLUSIVE, one.unsettled)
    return judgement


def _by_rank(one: JudgedFacts, state: ValueState) -> ValueState:
    """`state`, which tells on which ranks a value differs."""
    judgement = state.judgement
    if not judgement.verdict.fails or not one.by_rank or one.by_rank in judgement.reason:
        return state
    said = f"{judgement.reason}; {one.by_rank}"
    return replace(state, judgement=replace(judgement, reason=said))


def _with_shown_sums(
    known: Mapping[Pair, JudgedFacts], states: Mapping[Pair, ValueState]
) -> dict[Pair, ValueState]:
    """The states, in which terms are right if what was made of their sum is."""
    found = dict(states)
    for pair, one in known.items():
        after, state = states.get(one.shown_by) if one.shown_by else None, states[pair]
        is_open = state.judgement.verdict is Verdict.INCONCLUSIVE
        if is_open and after is not None and after.judgement.verdict in _AGREES:
            said = f"{state.judgement.reason}; what was made of their sum agrees"
            judgement = replace(state.judgement, verdict=Verdict.COVERED, reason=said)
            found[pair] = replace(state, judgement=judgement)
    return found


def _with_other_takers(
    known: Mapping[Pair, JudgedFacts],
    states: Mapping[Pair, ValueState],
    sources: Mapping[Pair, Sequence[Pair]],
) -> dict[Pair, ValueState]:
    """The states, in which gradients are covered that other calls hand back, if all after agrees.

    A part of a value is taken by what is done with the part; a rank's value by all that it does.
    """
    found = dict(states)
    odd = {pair for pair, state in states.items() if state.is_alone and pair.both}
    names = {pair for pair, one in known.items() if not pair.both and one.is_passed_on}
    others = odd | names
    failing = {
        each
        for pair, before in sources.items()
        if pair in states and pair not in others and states[pair].judgement.verdict not in _AGREES
        for each in before
    }
    for pair in odd - failing:
        state = states[pair]
        said = f"{state.judgement.reason}; other calls take it here, and what follows agrees"
        judgement = replace(state.judgement, verdict=Verdict.COVERED, reason=said)
        found[pair] = replace(state, judgement=judgement, root=None)
    return found


def known_again(one: JudgedFacts) -> bool:
    """Whether a value is judged where it first appeared."""
    is_open = one.parting or one.unsettled or one.measured.terms or one.is_stated
    return not is_open and (not one.leaf or bool(one.levels))


def _repeated(first: ValueState) -> ValueState:
    judgement = first.judgement
    if judgement.verdict is Verdict.FLIP:
        judgement = replace(judgement, verdict=Verdict.PASS, why=Why.RIGHT)
    elif judgement.why in _OWN:
        judgement = replace(judgement, why=Why.PLAIN, origin=Origin.INHERITED)
    return replace(first, judgement=judgement)


def _failing(said: str, why: Why) -> Judgement:
    return Judgement(Verdict.FAIL, said, why=why, origin=Origin.INTRODUCED)


def _with_others(said: str, replay: Replay) -> str:
    if len(replay.blamed) < 2:
        return said
    return f"{said}; what {', '.join(replay.blamed)} gave is added up in it: any may be meant"


def _is_shown(one: JudgedFacts) -> bool:
    """Whether the calls that made a value are right on both sides."""
    if one.is_settled:
        return True
    if one.is_update:
        return one.check is not None and one.check.is_known
    checks = (one.check, one.golden_check)
    return one.is_passed_on or all(check is not None and check.is_known for check in checks)


def _is_passed_by(one: JudgedFacts, before: Sequence[ValueState]) -> bool:
    """Whether a value was measured nowhere, and all that it was computed from is near golden's.

    What is far after it is where that first shows: here or there something is wrong.
    """
    return one.measured.trouble in _UNMEASURED and all(each.is_near for each in before)


def _why_open(one: JudgedFacts) -> str:
    for check, who in ((one.check, "the op"), (one.golden_check, "golden's op")):
        if check is not None and not check.is_known:
            return f"{who} could not be run again: {check.unknown}"
    return "what computed it could not be run again"


def _origin(one: JudgedFacts, is_flipped: bool) -> Origin:
    if one.check is None or not one.check.is_known:
        return Origin.UNKNOWN
    if is_flipped:
        return Origin.FLIPPED
    return Origin.AMPLIFIED if one.check.amplification > GROWTH else Origin.INHERITED


def _side(one: JudgedFacts) -> str:
    """Who has what one side alone has."""
    if one.pair.golden:
        return "golden"
    return f"the target on {one.holders}" if one.holders else "the target"


def _alone(one: JudgedFacts) -> Judgement:
    side = _side(one)
    match one.absence:
        case Absence.UNASKED:
            return Judgement(Verdict.SKIPPED, one.said, why=Why.UNASKED)
        case Absence.GENERATOR:
            return Judgement(Verdict.SKIPPED, f"only {side} tells of its generator here")
        case Absence.WEIGHT:
            return Judgement(Verdict.SKIPPED, f"only {side} has such a weight, or tells of it")
        case Absence.LOST:
            return Judgement(Verdict.INCONCLUSIVE, f"only {side} has it; {one.said}")
        case Absence.ZERO:
            other = "the target" if one.pair.golden else "golden"
            said = f"only {side} has it; it is zero everywhere, and {other} has no gradient there"
            return Judgement(Verdict.COVERED, said)
        case Absence.FUSED if one.pair.golden is None:
            said = f"a step inside the op, in {one.pair.inside}: golden has no such value"
            return Judgement(Verdict.INCONCLUSIVE, said)
        case Absence.FUSED if one.pair.inside == NO_KERNEL:
            said = "no kernel computes it: the compiler folded it into others or removed it"
            return Judgement(Verdict.FUSED, said, why=Why.REMOVED)
        case Absence.FUSED:
            return Judgement(Verdict.FUSED, f"inside {one.pair.inside}, which does not store it")
    if one.fresh:
        return Judgement(Verdict.SKIPPED, "memory as it was found: nothing has been computed yet")
    return Judgement(Verdict.UNPAIRED, f"only {side} has it")


# what one side alone has


class _LeadsTo(IntEnum):
    NOWHERE = 0
    AGREEING = 1
    PARTED = 2
    OPEN = 3
    FAILING = 4
    END = 5


_AGREES = frozenset(map(Verdict, ("PASS", "DTYPE", "EMPTY", "FLIP", "COVERED", "DEAD", "SKIPPED")))


def _covered(
    known: Mapping[Pair, JudgedFacts],
    states: dict[Pair, ValueState],
    takers: Mapping[Pair, Sequence[Pair]],
    sources: Mapping[Pair, Sequence[Pair]],
) -> dict[Pair, ValueState]:
    """The states, in which what one side alone has is judged by what was made of it.

    What it alone gives out, which is a value that both have, is judged as that value.
    """
    for pair in [pair for pair, state in states.items() if _is_given_out(state, known[pair])]:
        before = [states[each] for each in sources.get(pair, ()) if each in states]
        if before and all(each.judgement.verdict in _AGREES for each in before):
            said = f"{states[pair].judgement.reason}; it is a value that agrees"
            judgement = Judgement(Verdict.COVERED, said)
            states[pair] = replace(states[pair], judgement=judgement, root=None, is_alone=False)
    ways: dict[Pair, _LeadsTo] = {}
    alone = [pair for pair, state in states.items() if _is_open_to_cover(pair, state, known[pair])]
    for pair in _after_sources(dict.fromkeys(alone), takers):
        ways[pair] = _way(pair, known, states, takers, ways)
    for pair, way in ways.items():
        if not pair.both or way in (_LeadsTo.AGREEING, _LeadsTo.PARTED):
            states[pair] = _by_way(states[pair], way)
        if way is _LeadsTo.FAILING and (root := _other_cause(pair, states, takers)) is not None:
            judgement = replace(states[pair].judgement, why=Why.PLAIN)
            states[pair] = replace(states[pair], judgement=judgement, root=root)
    return _with_roots(states, sources)


def _with_roots(
    states: dict[Pair, ValueState], sources: Mapping[Pair, Sequence[Pair]]
) -> dict[Pair, ValueState]:
    """The states, in which what fails follows from something that fails by itself.

    What was taken for its root may have been shown to be no matter.
    """
    for pair, state in states.items():
        if state.judgement.verdict.fails and not _is_rooted(state.root, states):
            before = (states[each].root for each in sources.get(pair, ()) if each in states)
            root = next((each for each in before if _is_rooted(each, states)), pair)
            states[pair] = replace(state, root=root)
    return states


def _is_rooted(root: Pair | None, states: Mapping[Pair, ValueState]) -> bool:
    if root is None or root not in states:  # which is in an earlier step
        return root is not None
    return states[root].judgement.verdict.fails and states[root].root is root


def _is_given_out(state: ValueState, known: JudgedFacts) -> bool:
    """Whether one side alone gives out a value that stands elsewhere, too."""
    is_lone = not known.pair.both and state.judgement.verdict is Verdict.UNPAIRED
    return is_lone and known.is_effect and known.is_passed_on and not state.is_fault


def _other_cause(
    pair: Pair, states: Mapping[Pair, ValueState], takers: Mapping[Pair, Sequence[Pair]]
) -> Pair | None:
    """What else made all fail that was computed from a value of one side; None if that did."""
    after = (states[each] for each in takers.get(pair, ()) if each in states)
    roots = [state.root for state in after if state.judgement.verdict.fails]
    return roots[0] if roots and pair not in roots else None


def _is_open_to_cover(pair: Pair, state: ValueState, known: JudgedFacts) -> bool:
    """Whether what was made of a value may show that it is no matter.

    One side alone has it, or has it in another shape, or nobody knows how ranks hold it.
    """
    if state.is_fault:
        return False
    verdict = state.judgement.verdict
    if pair.both and verdict is Verdict.INCONCLUSIVE:
        is_unsolved = known.measured.trouble is Trouble.UNSOLVED and not known.measured.terms
        return is_unsolved and not (known.is_effect or known.unsettled)
    if pair.both:
        return verdict is Verdict.SHAPE and not known.is_effect
    return verdict is Verdict.UNPAIRED


def _way(
    pair: Pair,
    known: Mapping[Pair, JudgedFacts],
    states: Mapping[Pair, ValueState],
    takers: Mapping[Pair, Sequence[Pair]],
    ways: Mapping[Pair, _LeadsTo],
) -> _LeadsTo:
    if known[pair].is_shown:
        return _LeadsTo.AGREEING
    if known[pair].is_effect:
        return _LeadsTo.END
    if known[pair].is_parted:
        return _LeadsTo.PARTED
    found = [_end(other, states, ways) for other in takers.get(pair, ())]
    return max(found, default=_LeadsTo.NOWHERE)


def _end(other: Pair, states: Mapping[Pair, ValueState], ways: Mapping[Pair, _LeadsTo]) -> _LeadsTo:
    if other in ways:
        return ways[other]
    state = states.get(other)
    if state is None or state.judgement.verdict in _AGREES:
        return _LeadsTo.AGREEING
    if state.judgement.verdict in (Verdict.FUSED,):
        return _LeadsTo.AGREEING
    return _LeadsTo.FAILING if state.judgement.verdict.fails else _LeadsTo.OPEN


_BY_WAY = {
    _LeadsTo.NOWHERE: (Verdict.DEAD, "nothing that is recorded was computed from it"),
    _LeadsTo.AGREEING: (Verdict.COVERED, "all that was computed from it agrees"),
    _LeadsTo.PARTED: (Verdict.COVERED, "the programs part elsewhere"),
    _LeadsTo.OPEN: (Verdict.INCONCLUSIVE, "nothing after it shows whether it is right"),
    _LeadsTo.FAILING: (Verdict.UNPAIRED, "what was computed from it differs"),
}


def _by_way(state: ValueState, way: _LeadsTo) -> ValueState:
    if way not in _BY_WAY:
        return state
    verdict, said = _BY_WAY[way]
    reason = f"{state.judgement.reason}; {said}"
    why = state.judgement.why if verdict is Verdict.UNPAIRED else Why.PLAIN
    judgement = replace(state.judgement, verdict=verdict, reason=reason, why=why)
    return replace(state, judgement=judgement)


def _after_sources(
    some: Mapping[Pair, object], sources: Mapping[Pair, Sequence[Pair]]
) -> list[Pair]:
    """Those of `some`, each after its sources; what runs in circles as it comes."""
    found: list[Pair] = []
    done: set[Pair] = set()
    for first in some:
        waiting = [(first, False)]
        while waiting:
            pair, is_ready = waiting.pop()
            if is_ready:
                found.append(pair)
            elif pair not in done:
                done.add(pair)
                waiting.append((pair, True))
                before = sources.get(pair, ())
                waiting += [(each, False) for each in before if each in some and each not in done]
    return found
