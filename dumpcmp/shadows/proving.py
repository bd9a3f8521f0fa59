"""Asks about the start and the program of two runs, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.judge.tolerances import QUANTISED
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT, Op, Slot
from dumpcmp.shadows.anchors import Anchors, Refusal, is_of_weight
from dumpcmp.shadows.fingerprints import numbers_rounded_to
from dumpcmp.shadows.frontier import frontier, is_together, unknown_leaves
from dumpcmp.shadows.gradient_sums import with_gradients
from dumpcmp.shadows.guilt import Guilt, calls_in_place, guilty, lacking_before
from dumpcmp.shadows.kept_gradients import (
    is_kept,
    knows_earlier,
    with_earlier_gradients,
    with_kept_gradients,
)
from dumpcmp.shadows.kernel_checks import load_value
from dumpcmp.shadows.known_values import KnownValues
from dumpcmp.shadows.outside import (
    COARSEST,
    SLIGHT,
    distance,
    drew_alike,
    is_given,
    is_late,
    may_be_rounded,
    noise_of,
)
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.quantities import Book, Quantity
from dumpcmp.shadows.rank_gradients import with_rank_gradients
from dumpcmp.shadows.rewritten_memory import RewrittenMemory
from dumpcmp.shadows.same_numbers import SameNumbers
from dumpcmp.shadows.shadow import Choices, Shadow
from dumpcmp.shadows.shared_weights import with_sums_of_terms
from dumpcmp.shadows.shown_effects import EffectPair, PairedEffects, paired_effects
from dumpcmp.shadows.starting import Before, Relation, Start, is_gradient, is_spread
from dumpcmp.shadows.together import read_program
from dumpcmp.shadows.unshown import unmade_effects, why_unshown


class ProofAnswer(StrEnum):
    """What is known of two runs."""

    SAME = "SAME"
    DIFFERENT_PROGRAM = "DIFFERENT PROGRAM"
    DIFFERENT_START = "DIFFERENT START"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class ProofFinding:
    """One thing that was found, and where."""

    answer: ProofAnswer
    side: str  # "golden" or "target"
    step: int
    op: Op
    call: int
    slot: str  # of the value that tells it; empty for the call as a whole
    reason: str
    rank: int = 0
    order: int = 0
    instead: tuple[Op, int] | None = None  # golden's call in whose stead the target has this one
    is_extra: bool = False  # golden has nothing like it
    is_confirmed: bool = True  # with the other side's value in its place, effects are the same

    @property
    def is_backward(self) -> bool:
        """Whether it is a gradient, which comes after all that is not."""
        return Slot(self.slot).is_gradient

    @property
    def place(self) -> str:
        """The call, its slot and the rank, as far as they are known."""
        slot = f" {self.slot}" if self.slot else ""
        rank = f" on rank {self.rank}" if self.rank else ""
        return f"{self.op}#{self.call}{slot}{rank}"

    def __str__(self) -> str:
        return f"{self.answer} in {self.side} at {self.place} (token {self.step}): {self.reason}"


@dataclass(eq=False)
class Proof:
    """What was found of two runs, and how much of them was looked at."""

    findings: list[ProofFinding] = field(default_factory=list)
    num_effects: int = 0
    remarks: list[str] = field(default_factory=list)
    shown: dict[str, set[ValueId]] = field(default_factory=dict)  # what effects that are the same
    # on both sides depend on, by side
    unused: dict[str, set[ValueId]] = field(default_factory=dict)  # what no effect depends on
    lone: list[ProofFinding] = field(default_factory=list)  # effects that one side alone has
    levels: dict[tuple[ValueId, ValueId], str] = field(default_factory=dict)  # golden's value and
    # the target's: what declared levels explain between them
    is_rounded: bool = False  # the target computes with quantised weights, and nobody declared it
    unexplained: dict[ValueId, str] = field(default_factory=dict)  # the target's effects: why they
    # may be golden's, where levels are declared, or not

    @property
    def answer(self) -> ProofAnswer:
        """What is known of the runs: where they first part, if they do."""
        if self.first is not None:
            return self.first.answer
        return ProofAnswer.SAME if self.num_effects else ProofAnswer.UNKNOWN

    @property
    def first(self) -> ProofFinding | None:
        """The first thing that differs; if none does, the first that could not be shown."""
        every = [*self.findings, *self.lone]
        differing = [each for each in every if each.answer is not ProofAnswer.UNKNOWN]
        told = differing or every
        return min(told, key=_in_time, default=None)

    def __str__(self) -> str:
        first = f"{self.first}" if self.first else str(self.answer)
        return f"{first} ({self.num_effects} effects)"


def _in_time(finding: ProofFinding) -> tuple[int, bool, int]:
    """When a call ran: the backward pass goes the other way."""
    is_backward = finding.is_backward
    return finding.step, is_backward, -finding.order if is_backward else finding.order


_AS_ROUNDED = 1e-5  # what gradients that a loss gave may be off

StepOfModel = tuple[str, int]  # a model, and its own number of the step


@dataclass(eq=False)
class StepProof:
    """Where the start and the program of one step part."""

    golden: Archive
    target: Archive
    proof: Proof
    before: Before | None
    levels: tuple[str, ...] = ()  # to which the target may have rounded numbers
    parts: tuple[Sequence[StepOfModel], Sequence[StepOfModel]] = ((), ())  # of either step
    _programs_asked: tuple[Program, Program] | None = None
    shadows: Sequence[Shadow] = ()  # golden's and the target's, once they are asked
    _same: list[EffectPair] = field(default_factory=list)  # effects that are shown to be
    _open_names: set[str] = field(default_factory=set)  # of effects that ranks do not have as one
    _open_starts: dict[str, set[ValueId]] = field(  # by side, what the runs start from otherwise
        default_factory=lambda: {"golden": set(), "target": set()}
    )

    def ask(self, ours: StepOfModel, theirs: StepOfModel) -> Before | None:
        """Ask about its start and its program; returns the step for the next one to follow from."""
        with numbers_rounded_to(self._dtypes_of_numbers()):
            return self._ask(ours, theirs)

    def _dtypes_of_numbers(self) -> Iterator[str]:
        """In which dtypes programs have their own numbers, where that is not Python's."""
        for archive in (self.golden, self.target):
            for facts in archive.run.values():
                yield str(facts.get("run", {}).get("numbers_in", ""))

    def _ask(self, ours: StepOfModel, theirs: StepOfModel) -> Before | None:
        book, choices = Book(), Choices()
        start = Start(book, self.before, self.levels)
        programs = [
            read_program(archive, *place, parts)
            for archive, place, parts in zip(
                (self.golden, self.target), (ours, theirs), self.parts, strict=True
            )
        ]
        self.step = theirs[1]
        if any(program.unlinked for program in programs):
            self._unlinked(programs)
            return self.before
        is_single = all(program.is_whole for program in programs)
        programs = [_with_known_state(program, is_single) for program in programs]
        programs = [
            _with_gradients(archive, program)
            for program, archive in zip(programs, (self.golden, self.target), strict=True)
        ]
        start.know("golden", programs[0])
        start.know("target", programs[1])
        mine = Shadow(
            self.target, programs[1], book, start.of_target, choices,
            partial(start.precomputed, "golden"),
        )  # fmt: skip
        for leaf in mine.program.leaves:
            mine.quantity(leaf)
        mine.follow()
        choices.singles = mine.singles
        anchors = Anchors(self.levels, programs[0], mine) if self.levels else None
        its = self._following(
            programs[0], start, choices.copy(), SameNumbers(mine, ()) if anchors else None, anchors
        )
        if anchors is not None:
            anchors.settle(its)
            self.proof.levels |= start.rounded | anchors.known
        elif not _have_one_expression(its, mine):
            start.forget_golden()
            shared = {id(each) for each in its.quantities.values()}
            its = self._following(programs[0], start, choices.copy(), SameNumbers(mine, shared))
        effects = paired_effects(its, mine)
        returned = [
            (one.effect.value, other.effect.value)
            for one, other in effects.pairs
            if not one.effect.value.key.slot.is_gradient and not one.effect.is_state
        ]
        self._starts(start, its, mine, noise_of(returned, its, mine))
        self._programs(its, mine, effects, anchors)
        self._programs_asked, self.shadows = (its.program, mine.program), (its, mine)
        self._show()
        self.proof.unused = {"golden": _unused(its.program), "target": _unused(mine.program)}
        terms = frozenset(effect.name for _, effect, _ in effects.unsettled)
        return Before(its, mine, self.before, terms)

    def _following(
        self,
        program: Program,
        start: Start,
        choices: Choices,
        other: SameNumbers | None,
        anchors: Anchors | None = None,
    ) -> Shadow:
        """Golden's shadow; quantities that the target computes otherwise are known by `other`."""
        return Shadow(
            self.golden, program, start.book, start.of_golden, choices,
            partial(start.precomputed, "target"), other, anchors,
        ).follow()  # fmt: skip

    def _show(self) -> None:
        """Say what the effects depend on that are the same."""
        assert self._programs_asked is not None
        sides = list(zip(("golden", "target"), self._programs_asked, strict=True))
        right = self._right()
        if all(program.is_whole for _, program in sides):
            shown = [[pair[at].effect.value for pair in right] for at in (0, 1)]
        else:  # of several ranks, each of which has its own of one name
            names = {pair[0].effect.name for pair in right} - self._open_names
            shown = [[e.value for e in program.effects if e.name in names] for _, program in sides]
        self.proof.shown = {
            side: _used(program, values) | _memories_like(shadow, values)
            for (side, program), values, shadow in zip(sides, shown, self.shadows, strict=True)
        }

    def _right(self) -> Sequence[EffectPair]:
        """The effects that are the same, and depend on no start value that differs."""
        assert self._programs_asked is not None
        found = self._same
        for at, side in enumerate(("golden", "target")):
            program = self._programs_asked[at]
            found = [
                pair
                for pair in found
                if self._open_starts[side].isdisjoint(_used(program, [pair[at].effect.value]))
            ]
        return found

    def _unlinked(self, programs: Sequence[Program]) -> None:
        """Nothing can be shown of a program whose calls are not linked; it is told."""
        for side, program in zip(("golden", "target"), programs, strict=True):
            if program.unlinked:
                place = _ProofPlace(Op(ROOT), 0, "", 0, 0)
                self._add(ProofAnswer.UNKNOWN, side, place, program.unlinked)

    def _starts(self, start: Start, golden: Shadow, target: Shadow, noise: float) -> None:
        used, mine = (
            _used(each.program, [effect.value for effect in each.program.effects])
            for each in (golden, target)
        )
        for leaf in start.weights_alone(golden, target) if self.step == 0 else ():
            if leaf in mine:
                place = _ProofPlace.of_value(target, leaf)
                reason = "it holds other numbers than golden's"
                self._add(ProofAnswer.DIFFERENT_START, "target", place, reason)
        for leaf in start.alone if self.step else ():
            is_weight = leaf in used and leaf.key.slot.is_weight
            if is_weight and not is_spread(golden.quantity(leaf), target):
                place = _ProofPlace.of_value(golden, leaf)
                reason = "an optimizer that was not recorded has changed it, or mine"
                self._add(ProofAnswer.UNKNOWN, "golden", place, reason)
        others = [p for p in start.differing if p.relation is Relation.OTHER and p.golden in used]
        how_far = {
            id(pair): distance(pair, golden, target, self.before, noise)
            for pair in others
            if pair.target not in target.program.producers
        }
        # Some weights go anywhere, where an optimizer makes steps of noise; most of them do not.
        late = [one for pair in others if pair.target.key.slot.is_weight
                and (one := how_far.get(id(pair))) is not None]  # fmt: skip
        num_weights = sum(leaf.key.slot.is_weight for leaf in used)
        are_moved = 2 * sum(one.found > COARSEST for one in late) > num_weights
        for pair in others:
            place = _ProofPlace.of_value(target, pair.target)
            if pair.target in target.program.producers:
                if drew_alike(pair, golden, target):
                    continue
                self._add(ProofAnswer.UNKNOWN, "target", place, "it drew other numbers than golden")
                continue
            apart = how_far[id(pair)]
            if is_late(pair, self.step) and apart.is_rounding:
                continue
            self._open_starts["golden"].add(pair.golden)
            self._open_starts["target"].add(pair.target)
            is_open = (self.step > 0 or is_late(pair, self.step)) and not (
                are_moved and pair.target.key.slot.is_weight
            )
            is_rounded = may_be_rounded(pair, self.step) and (is_open or apart.found <= COARSEST)
            if is_rounded or apart.found <= SLIGHT:
                reason = (
                    f"code that was not recorded may have rounded it: it is {apart.found:.2g} off "
                    f"golden's"
                )
                self._add(ProofAnswer.UNKNOWN, "target", place, reason)
                continue
            reason = "it holds other numbers than golden's"
            self._add(ProofAnswer.DIFFERENT_START, "target", place, reason)

    def _programs(
        self, golden: Shadow, target: Shadow, effects: PairedEffects, anchors: Anchors | None
    ) -> None:
        self.proof.num_effects += len(effects.pairs)
        self.proof.remarks += effects.remarks
        unmade = [self._unmade("golden", golden), self._unmade("target", target)]
        others = {id(pair) for pair in effects.differing}
        self._same = [
            pair for pair in effects.pairs
            if id(pair) not in others
            and not any(e.effect.value in open_ for e, open_ in zip(pair, unmade, strict=True))
        ]  # fmt: skip
        for side, effect in effects.lone:
            place = _ProofPlace.of_value(golden if side == "golden" else target, effect.value)
            reason = f"only this side has the effect {effect.name}"
            self._add(ProofAnswer.DIFFERENT_PROGRAM, side, place, reason)
            self.proof.lone.append(self.proof.findings.pop())
        self._open_names = {
            *(effect.name for _, effect in effects.uncovered),
            *(effect.name for _, effect, _ in effects.unsettled),
            *(each.effect.name for pair in effects.differing for each in pair),
        }
        for side, effect in effects.uncovered:
            place = _ProofPlace.of_value(golden if side == "golden" else target, effect.value)
            reason = f"what the ranks return are parts of {effect.name}, and not all of it"
            self._add(self._if_alone(), side, place, reason)
        for side, effect, why in effects.unsettled:
            place = _ProofPlace.of_value(golden if side == "golden" else target, effect.value)
            self._add(ProofAnswer.UNKNOWN, side, place, why)
        if anchors is not None:
            self._part_at_levels(golden, target, effects.differing, anchors)
            return
        bridged, differing = _Bridged(golden, target), []
        for pair in effects.differing:
            if any(each.effect.value in open_ for each, open_ in zip(pair, unmade, strict=True)):
                continue
            node = bridged.behind(*(each.quantity for each in pair))
            if node is None:
                if not self._is_open(golden, target, pair):
                    differing.append(pair)
                continue
            reason = f"{pair[1].effect.name} depends on it, and it could not be run in float64"
            self._add(ProofAnswer.UNKNOWN, "target", _ProofPlace.of_node(node), reason)
        if differing and self._differ_by_levels(golden, target):
            return
        differing = list(self._not_set_to_zero(golden, target, differing))
        forward = [pair for pair in differing if not pair[1].effect.value.key.slot.is_gradient]
        if differing:  # what a backward pass differs in follows from what it goes through
            self._localise(golden, target, forward or differing)

    def _not_set_to_zero(
        self, golden: Shadow, target: Shadow, differing: Sequence[EffectPair]
    ) -> Iterator[EffectPair]:
        """Tells which gradients one side alone adds to earlier ones; gives the other effects."""
        for its, mine in differing:
            sides = (golden.program, its.effect.value), (target.program, mine.effect.value)
            kept = [is_kept(*side) for side in sides]
            if len({*kept}) == 1:
                yield its, mine
                continue
            place = _ProofPlace.of_value(target, mine.effect.value)
            if not knows_earlier(*sides[kept.index(False)]):
                reason = "what the step before left of it was not recorded"
                self._add(ProofAnswer.UNKNOWN, "target", place, reason)
                continue
            who, other = ("golden", "mine") if kept[0] else ("mine", "golden")
            reason = f"{who} adds it to what the step before left, {other} sets that to zero first"
            self._add(ProofAnswer.DIFFERENT_PROGRAM, "target", place, reason)

    def _differ_by_levels(self, golden: Shadow, target: Shadow) -> bool:
        """Whether the target computes with quantised weights, which is told; nobody declared it."""
        anchors = Anchors(tuple(QUANTISED), golden.program, target)
        anchors.find_rounded_weights(golden)
        anchors.settle(golden)
        for each in anchors.refused:
            self._add_refusal(ProofAnswer.DIFFERENT_START, target, each)
        self.proof.is_rounded = bool(anchors.refused)
        return self.proof.is_rounded

    def _add_refusal(self, answer: ProofAnswer, target: Shadow, refusal: Refusal) -> None:
        key, order = refusal.place, target.record(refusal.target).order
        place = _ProofPlace(key.op, key.call, key.slot, refusal.target.rank, order)
        self._add(answer, "target", place, refusal.reason)

    def _part_at_levels(
        self, golden: Shadow, target: Shadow, differing: Sequence[EffectPair], anchors: Anchors
    ) -> None:
        """Of effects that differ where levels are declared: the first value these do not explain.

        Without one, how the target computes what it rounds is not known.
        """
        known, found = KnownValues(golden), dict[Refusal, None]()
        for its, mine in differing:
            behind = _used(target.program, [mine.effect.value])
            refused = (r for r in anchors.refused if r.target in behind)
            others = (  # golden computes with such a weight of the target's, so that it has it
                r for r in refused
                if is_of_weight(golden.program, r.golden)
                or not known.has(target.quantity(r.target))
            )  # fmt: skip
            first = next(others, None)
            if first is not None:
                found[first] = None
                continue
            levels, name = ", ".join(self.levels), its.effect.name
            reason = f"nothing shows that {levels} explains what {name} differs in"
            self._add(
                ProofAnswer.UNKNOWN,
                "target",
                _ProofPlace.of_value(target, mine.effect.value),
                reason,
            )
            self.proof.unexplained[mine.effect.value] = reason
        for each in found:
            self._add_refusal(ProofAnswer.DIFFERENT_PROGRAM, target, each)

    def _unmade(self, side: str, shadow: Shadow) -> set[ValueId]:
        """Effects of which it is not known what made them; that is told."""
        found = list(unmade_effects(shadow.program))
        for effect in found:
            place = _ProofPlace.of_value(shadow, effect.value)
            reason = f"no op that was recorded is known to have made {effect.name}"
            self._add(ProofAnswer.UNKNOWN, side, place, reason)
        return {effect.value for effect in found}

    def _is_open(self, golden: Shadow, target: Shadow, pair: EffectPair) -> bool:
        """Whether nobody knows if an effect that differs is the same after all; that is told."""
        why = why_unshown((golden, pair[0].effect), (target, pair[1].effect))
        if why:
            place = _ProofPlace.of_value(target, pair[1].effect.value)
            self._add(ProofAnswer.UNKNOWN, "target", place, why)
        return bool(why)

    def _if_alone(self) -> ProofAnswer:
        """What it means if a step lacks something: others may have it, of microbatches."""
        numbers = [len(a.steps(m)) for a in (self.golden, self.target) for m in a.models[:1]]
        return ProofAnswer.DIFFERENT_PROGRAM if len(set(numbers)) == 1 else ProofAnswer.UNKNOWN

    def _localise(self, golden: Shadow, target: Shadow, differing: Sequence[EffectPair]) -> None:
        effects = [(its.quantity, mine.quantity) for its, mine in differing]
        num = max(len(shadow.program.ranks) for shadow in (golden, target))
        for in_any_order in (False, True):  # what only lies in another order may be meant, or not
            known = tuple(KnownValues(each, in_any_order, num) for each in (golden, target))
            theirs = frontier(target, [mine.effect.value for _, mine in differing], known[0])
            ours = frontier(golden, [its.effect.value for its, _ in differing], known[1])
            if (unsummed := _unsummed(target, theirs, known[0])) is not None:
                node, reason = unsummed
                self._suppose("target", _ProofPlace.of_node(node), reason)
                return
            found = guilty(target, known[0], ours, theirs, effects)
            if found is not None:
                self._add_guilt(found, ours, golden, target)
                return
        told = ", ".join(f"{node}" for node in ours[:3])
        for node in theirs:
            leaf = next(unknown_leaves(target, node, known[0]), None)
            if leaf is not None:
                place = _ProofPlace.of_leaf(target, node, leaf)
                is_handed = target.program.num_parts > 1 and len(target.program.ranks) > 1
                is_outside = is_gradient(target.program, node.takes[leaf]) and not any(
                    is_gradient(golden.program, each) for each in golden.program.leaves
                )  # of a loss that golden alone has recorded
                is_known = not (is_handed or is_outside) and (
                    self.step == 0 or is_given(node.takes[leaf])
                )
                answer = ProofAnswer.DIFFERENT_START if is_known else ProofAnswer.UNKNOWN
                factor = _common_factor(differing)
                told = f"; what differs is {factor:g} times golden's" if factor else ""
                self._suppose("target", place, f"golden has no such numbers{told}", answer)
                return
            if (lacking := lacking_before(target, node, known[0], ours)) is not None:
                self._suppose("golden", _ProofPlace.of_node(lacking), "mine lacks it")
                return
            reason = f"golden never has what it gives; golden has {told or 'nothing'} instead"
            self._suppose("target", _ProofPlace.of_node(node), reason)
            self._stands_for(_alike(node, ours) or calls_in_place(node, golden, target))
        if not theirs:
            for node in ours:
                self._suppose("golden", _ProofPlace.of_node(node), "mine never has what it gives")
        if not theirs and not ours:
            place = _ProofPlace.of_value(target, differing[0][1].effect.value)
            reason = "each value that it is made of stands on both sides, in another order"
            self._suppose("target", place, reason)

    def _add_guilt(
        self, found: Guilt, ours: Sequence[Node], golden: Shadow, target: Shadow
    ) -> None:
        node = found.node
        side = "golden" if found.is_golden else "target"
        in_place = [] if found.is_golden else calls_in_place(node, golden, target)
        alike = in_place if found.is_extra else _alike(node, ours) or in_place
        instead = next((str(each) for each in (*alike, *ours) if each is not node), "nothing")
        reason = (
            "mine lacks it" if found.is_golden
            else "golden has nothing like it" if found.is_extra and not alike
            else f"golden computes something else at {instead}"
        )  # fmt: skip
        self._add(ProofAnswer.DIFFERENT_PROGRAM, side, _ProofPlace.of_node(node), reason)
        is_extra = found.is_extra and not alike
        self.proof.findings[-1] = replace(self.proof.findings[-1], is_extra=is_extra)
        if not found.is_golden:
            self._stands_for(alike)

    def _stands_for(self, alike: Sequence[Node]) -> None:
        """Note in whose stead of golden's calls the target has the one that was just told."""
        if alike and (call := alike[0].call):
            latest = self.proof.findings[-1]
            self.proof.findings[-1] = replace(latest, instead=(call.op, call.call))

    def _add(self, answer: ProofAnswer, side: str, place: _ProofPlace, reason: str) -> None:
        found = ProofFinding(answer, side, self.step, *place[:3], reason, place.rank, place.order)
        self.proof.findings.append(found)

    def _suppose(
        self,
        side: str,
        place: _ProofPlace,
        reason: str,
        answer: ProofAnswer = ProofAnswer.DIFFERENT_PROGRAM,
    ) -> None:
        """Add where runs part, of several places where they may."""
        self._add(answer, side, place, reason)
        self.proof.findings[-1] = replace(self.proof.findings[-1], is_confirmed=False)


def _alike(node: Node, others: Sequence[Node]) -> list[Node]:
    """Those of the other run's calls that are of its function."""
    function = node.call.op.function
    return [each for each in others if each.call.op.function == function and each is not node]


def _unsummed(shadow: Shadow, nodes: Sequence[Node], other: KnownValues) -> tuple[Node, str] | None:
    """The first call that gives terms on all ranks whose sum or mean the other run has; and why."""
    named: dict[tuple[Op, int], list[Node]] = {}
    for node in nodes:
        if len(node.gives) == 1:
            named.setdefault((node.call.op, node.call.call), []).append(node)
    for found in named.values():
        terms = [shadow.quantity(value) for node in found for value in node.gives.values()]
        if len(found) < 2 or len(found) < len(shadow.program.ranks):
            continue
        is_summed = all(_is_summed_up(shadow, each) for each in found)
        if not is_summed and other.has_sum(terms):
            return found[0], "each rank has a term of golden's value: a reduction is missing"
        if other.has_sum(terms, len(found)):
            takers = shadow.program.consumers.get(next(iter(found[0].gives.values())), ())
            summing = next((each for each in takers if is_together(each)), None)
            reason = f"golden's value is the mean over {len(found)} ranks of what each of them has"
            return summing or found[0], reason
    return None


def _is_summed_up(shadow: Shadow, node: Node) -> bool:
    """Whether all that takes what a call gives does so together with other ranks."""
    takers = [each for v in node.gives.values() for each in shadow.program.consumers.get(v, ())]
    return bool(takers) and all(map(is_together, takers))


def _common_factor(differing: Sequence[EffectPair]) -> float | None:
    """By which whole number all effects that differ are too large, or too small."""
    found = set[float]()
    for its, mine in differing:
        try:
            ours, theirs = its.quantity.tensor, mine.quantity.tensor
        except DumpcmpError:
            return None
        size = float((ours * ours).sum().abs()) if ours.shape == theirs.shape else 0.0
        factor = float((ours * theirs).sum()) / size if size else 0.0
        whole = factor if factor >= 1 else 1 / factor if factor > 0 else 0.0
        if round(whole) < 2 or abs(whole - round(whole)) > _AS_ROUNDED * whole:
            return None
        factor = float(round(whole)) if factor >= 1 else 1 / round(whole)
        if _is_far(theirs, ours * factor):
            return None
        found.add(factor)
    return found.pop() if len(found) == 1 else None


def _is_far(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) > _AS_ROUNDED * float(other.norm())


def _have_one_expression(golden: Shadow, target: Shadow) -> bool:
    """Whether both programs compute all of their effects alike."""
    ours, theirs = (
        {each.name: shadow.quantity(each.value) for each in shadow.program.effects}
        for shadow in (golden, target)
    )
    return ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)


class _ProofPlace(NamedTuple):
    """Where something was found."""

    op: Op
    call: int
    slot: str
    rank: int
    order: int

    @classmethod
    def of_node(cls, node: Node, slot: str = "") -> _ProofPlace:
        slot = slot or (node.own.slot if node.own is not None else "")
        return cls(node.call.op, node.call.call, slot, node.rank, node.call.order)

    @classmethod
    def of_leaf(cls, shadow: Shadow, node: Node, slot: str) -> _ProofPlace:
        """Where a call takes a leaf; what is made of several calls names none of them."""
        if node.own is None:
            return cls.of_node(node, slot)
        return cls.of_value(shadow, node.takes[slot])

    @classmethod
    def of_value(cls, shadow: Shadow, value: ValueId) -> _ProofPlace:
        key, order = value.key, shadow.record(value).order
        return cls(key.op, key.call, key.slot, value.rank, order)


def _with_gradients(archive: Archive, program: Program) -> Program:
    """`program` with how its gradients follow from each other, as far as that is known."""
    program = with_earlier_gradients(archive, program) if program.step else program
    load = partial(load_value, archive, program)
    if program.is_whole:
        return with_kept_gradients(with_gradients(program, load), load)
    return with_sums_of_terms(with_rank_gradients(program, load))


def _with_known_state(program: Program, is_single: bool) -> Program:
    """`program` with those buffers as effects that calls are known to have made, on one rank."""
    effects = [
        effect for effect in program.effects
        if not effect.is_state or (is_single and effect.value in program.producers)
    ]  # fmt: skip
    return replace(program, effects=effects)


def _used(program: Program, effects: Sequence[ValueId]) -> set[ValueId]:
    """The values that `effects` depend on, at each place where they were recorded."""
    nodes = program.behind(effects)
    used = {value for node in nodes for value in node.takes.values()} | set(effects)
    return used | {place for place, value in program.places.items() if value in used}


def _memories_like(shadow: Shadow, effects: Sequence[ValueId]) -> set[ValueId]:
    """Memories that were written to, and hold what one of `effects` is: nothing else is in them."""
    known = {id(shadow.quantity(effect)) for effect in effects}
    return {
        value
        for value, node in shadow.program.producers.items()
        if isinstance(node.own, RewrittenMemory) and id(shadow.quantity(value)) in known
    }


@dataclass(eq=False)
class _Bridged:
    """What stands on one side as it was recorded, rounded, and not on the other."""

    golden: Shadow
    target: Shadow

    def behind(self, *quantities: Quantity) -> Node | None:
        """A call that could not be run in float64 and that one of `quantities` depends on."""
        both = self._own(self.golden) & self._own(self.target)
        found = self.golden.bridges | self.target.bridges
        bridges = {each: node for each, node in found.items() if each not in both}
        seen: set[int] = set()
        waiting = list(quantities)
        while waiting and bridges:
            each = waiting.pop()
            if id(each) not in seen:
                seen.add(id(each))
                waiting += each.inputs
            if id(each) in bridges:
                return bridges[id(each)]
        return None

    @staticmethod
    def _own(shadow: Shadow) -> set[int]:
        return {id(each) for each in shadow.quantities.values()}


def call_digests(program: Program, node: Node) -> tuple[object, ...] | None:
    """What a call was asked, given and gave, by its bytes; None where bytes are not known."""
    values = (*sorted(node.takes.items()), *sorted(node.gives.items()))
    digests = tuple((slot, program.records[value].digest) for slot, value in values)
    if not all(digest for _, digest in digests):
        return None
    return node.call.target, node.call.arguments, digests


def _unused(program: Program) -> set[ValueId]:
    """The values that no effect depends on, at each place where they were recorded."""
    used = _used(program, [effect.value for effect in program.effects])
    found = program.producers.keys() - used
    return found | {place for place, value in program.places.items() if value in found}
