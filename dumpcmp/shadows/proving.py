"""Asks three questions of two runs: about their start, their program and their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT, Op, Slot
from dumpcmp.shadows.frontier import Guilt, KnownQuantities, frontier, guilty
from dumpcmp.shadows.gradient_sums import with_gradients
from dumpcmp.shadows.kernel_checks import KernelFinding, check_kernels
from dumpcmp.shadows.outside import distance, is_outside, noise_of
from dumpcmp.shadows.program import Node, Program, StepEffect, ValueId, read_program
from dumpcmp.shadows.quantities import Book, Quantity
from dumpcmp.shadows.rewritten_memory import with_writes
from dumpcmp.shadows.shadow import Choices, Shadow
from dumpcmp.shadows.slices import is_part
from dumpcmp.shadows.starting import Before, Relation, Start
from dumpcmp.shadows.unshown import unmade_effects, why_unshown


class ProofAnswer(StrEnum):
    """What is known of two runs."""

    SAME = "SAME"
    WRONG = "WRONG"  # a kernel
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
    num_calls: int = 0
    num_bridges: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def answer(self) -> ProofAnswer:
        """What is known of the runs: where they first part, if they do."""
        if self.first is not None:
            return self.first.answer
        return ProofAnswer.SAME if self.num_effects else ProofAnswer.UNKNOWN

    @property
    def first(self) -> ProofFinding | None:
        """The first thing that differs; if none does, the first that could not be shown."""
        differing = [each for each in self.findings if each.answer is not ProofAnswer.UNKNOWN]
        told = differing or self.findings
        return min(told, key=_in_time, default=None)

    def __str__(self) -> str:
        first = f"{self.first}" if self.first else str(self.answer)
        counted = f"{self.num_effects} effects, {self.num_calls} calls, {self.num_bridges} bridges"
        return f"{first} ({counted})"


def _in_time(finding: ProofFinding) -> tuple[int, bool, int]:
    """When a call ran: the backward pass goes the other way."""
    is_backward = finding.is_backward
    return finding.step, is_backward, -finding.order if is_backward else finding.order


def prove(golden: str | Path, target: str | Path) -> Proof:
    """Ask the three questions of every step that both archives have."""
    ours, theirs = Archive(golden), Archive(target)
    proof = Proof()
    before: Before | None = None
    for pair in _steps(ours, theirs):
        before = _StepProof(ours, theirs, proof, before).ask(*pair)
    return proof


def _steps(golden: Archive, target: Archive) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """The steps of both, models in the order in which they ran."""
    for ours, theirs in zip(golden.models, target.models, strict=False):
        mine = set(target.steps(theirs))
        for step in golden.steps(ours):
            if step in mine:
                yield (ours, step), (theirs, step)


@dataclass(eq=False)
class _StepProof:
    """The three questions about one step."""

    golden: Archive
    target: Archive
    proof: Proof
    before: Before | None

    def ask(self, ours: tuple[str, int], theirs: tuple[str, int]) -> Before | None:
        """Ask them; returns the step for the next one to follow from."""
        book, choices = Book(), Choices()
        start = Start(book, self.before)
        programs = [
            with_gradients(with_writes(archive, read_program(archive, *place)))
            for archive, place in ((self.golden, ours), (self.target, theirs))
        ]
        self.step = theirs[1]
        if any(program.unlinked for program in programs):
            self._unlinked(programs)
            return self.before
        start.know("golden", programs[0])
        start.know("target", programs[1])
        mine = Shadow(
            self.target, programs[1], book, start.of_target, choices,
            partial(start.precomputed, "golden"),
        )  # fmt: skip
        for leaf in mine.program.leaves:
            mine.quantity(leaf)
        mine.follow()
        its = Shadow(
            self.golden, programs[0], book, start.of_golden, choices,
            partial(start.precomputed, "target"),
        )  # fmt: skip
        its.follow()
        pairs, lone = _paired_effects(its, mine)
        returned = [
            (one.effect.value, other.effect.value)
            for one, other in pairs
            if not one.effect.value.key.slot.is_gradient
        ]
        self._starts(start, its, mine, noise_of(returned, its, mine))
        self._programs(its, mine, pairs, lone)
        self._kernels(its.program, mine.program)
        return Before(its, mine)

    def _unlinked(self, programs: Sequence[Program]) -> None:
        """Nothing can be shown of a program whose calls are not linked; it is told."""
        for side, program in zip(("golden", "target"), programs, strict=True):
            if program.unlinked:
                place = _ProofPlace(Op(ROOT), 0, "", 0, 0)
                self._add(ProofAnswer.UNKNOWN, side, place, program.unlinked)

    def _starts(self, start: Start, golden: Shadow, target: Shadow, noise: float) -> None:
        used = _used(golden)
        for pair in start.differing:
            if pair.relation is not Relation.OTHER or pair.golden not in used:
                continue
            place = _ProofPlace.of_value(target, pair.target)
            if not is_outside(pair, self.step):
                reason = "it holds other numbers than golden's"
                self._add(ProofAnswer.DIFFERENT_START, "target", place, reason)
                continue
            apart = distance(pair, golden, target, self.before, noise)
            if apart.is_rounding:
                self.proof.num_bridges += 1
                continue
            answer = ProofAnswer.DIFFERENT_START if apart.is_other else ProofAnswer.UNKNOWN
            reason = (
                f"code that was not recorded made it; it is {apart.found:.2g} off golden's, where "
                f"rounding explains {apart.allowed:.2g}"
            )
            self._add(answer, "target", place, reason)

    def _programs(
        self,
        golden: Shadow,
        target: Shadow,
        pairs: Sequence[tuple[_ShownEffect, _ShownEffect]],
        lone: Sequence[tuple[str, StepEffect]],
    ) -> None:
        self.proof.num_effects += len(pairs)
        for side, shadow in (("golden", golden), ("target", target)):
            for effect in unmade_effects(shadow.program):
                place = _ProofPlace.of_value(shadow, effect.value)
                reason = f"no op that was recorded is known to have made {effect.name}"
                self._add(ProofAnswer.UNKNOWN, side, place, reason)
        for side, effect in lone:
            place = _ProofPlace.of_value(golden if side == "golden" else target, effect.value)
            reason = f"only this side has the effect {effect.name}"
            self._add(ProofAnswer.DIFFERENT_PROGRAM, side, place, reason)
        differing = [
            (ours, theirs) for ours, theirs in pairs
            if not _is_same(ours, theirs) and not self._is_part(ours, theirs)
            and not self._is_open(golden, target, ours, theirs)
        ]  # fmt: skip
        forward = [pair for pair in differing if not pair[1].effect.value.key.slot.is_gradient]
        if differing:  # what a backward pass differs in follows from what it goes through
            self._localise(golden, target, forward or differing)

    def _is_open(
        self, golden: Shadow, target: Shadow, ours: _ShownEffect, theirs: _ShownEffect
    ) -> bool:
        """Whether nobody knows if an effect that differs is the same after all; that is told."""
        why = why_unshown((golden, ours.effect), (target, theirs.effect))
        if why:
            place = _ProofPlace.of_value(target, theirs.effect.value)
            self._add(ProofAnswer.UNKNOWN, "target", place, why)
        return bool(why)

    def _is_part(self, ours: _ShownEffect, theirs: _ShownEffect) -> bool:
        """Whether one side returns a part of what the other returns, which is told."""
        try:
            golden, target = ours.quantity.tensor, theirs.quantity.tensor
        except DumpcmpError:
            return False
        fewer, more = (
            ("mine", "golden's") if target.numel() < golden.numel() else ("golden", "mine")
        )
        small, large = sorted((golden, target), key=lambda tensor: tensor.numel())
        found = is_part(small, large)
        if found:
            self.proof.remarks.append(f"{fewer} returns {found} of {more} {theirs.effect.name}")
        return bool(found)

    def _localise(
        self, golden: Shadow, target: Shadow, differing: Sequence[tuple[_ShownEffect, _ShownEffect]]
    ) -> None:
        known = KnownQuantities(golden), KnownQuantities(target)
        theirs = frontier(target, [mine.effect.value for _, mine in differing], known[0])
        ours = frontier(golden, [its.effect.value for its, _ in differing], known[1])
        effects = [(its.quantity, mine.quantity) for its, mine in differing]
        found = guilty(target, known[0], ours, theirs, effects)
        if found is not None:
            self._add_guilt(found, ours)
            return
        told = ", ".join(f"{node}" for node in ours[:3])
        for node in theirs:
            reason = f"golden never has what it gives; golden has {told or 'nothing'} instead"
            self._add(ProofAnswer.DIFFERENT_PROGRAM, "target", _ProofPlace.of_node(node), reason)
        if not theirs:
            for node in ours:
                reason = "mine never has what it gives"
                self._add(
                    ProofAnswer.DIFFERENT_PROGRAM, "golden", _ProofPlace.of_node(node), reason
                )
        if not theirs and not ours:
            place = _ProofPlace.of_value(target, differing[0][1].effect.value)
            reason = "each value that it is made of stands on both sides, in another order"
            self._add(ProofAnswer.DIFFERENT_PROGRAM, "target", place, reason)

    def _add_guilt(self, found: Guilt, ours: Sequence[Node]) -> None:
        node = found.node
        side = "golden" if found.is_golden else "target"
        instead = next((str(each) for each in ours if each is not node), "nothing")
        reason = (
            "mine lacks it" if found.is_golden
            else "golden has nothing like it" if found.is_extra
            else f"golden computes something else at {instead}"
        )  # fmt: skip
        self._add(ProofAnswer.DIFFERENT_PROGRAM, side, _ProofPlace.of_node(node), reason)

    def _kernels(self, golden: Program, target: Program) -> None:
        settled = _signatures(golden) & _signatures(target)
        for side, archive, program in (
            ("golden", self.golden, golden), ("target", self.target, target),
        ):  # fmt: skip
            needed = program.behind([effect.value for effect in program.effects])
            nodes = [
                node for node in program.nodes
                if node in needed and _signature(program, node) not in settled
            ]  # fmt: skip
            self.proof.num_calls += len(needed)
            for finding in check_kernels(archive, program, nodes):
                self._add_kernel(side, finding)

    def _add_kernel(self, side: str, finding: KernelFinding) -> None:
        node = finding.node
        answer = ProofAnswer.WRONG if finding.wrong else ProofAnswer.UNKNOWN
        reason = finding.wrong or finding.unknown
        self._add(answer, side, _ProofPlace.of_node(node, finding.slot), reason)

    def _add(self, answer: ProofAnswer, side: str, place: _ProofPlace, reason: str) -> None:
        found = ProofFinding(answer, side, self.step, *place[:3], reason, place.rank, place.order)
        self.proof.findings.append(found)


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
    def of_value(cls, shadow: Shadow, value: ValueId) -> _ProofPlace:
        key, order = value.key, shadow.record(value).order
        return cls(key.op, key.call, key.slot, value.rank, order)


def _used(shadow: Shadow) -> set[ValueId]:
    """The values that an effect depends on."""
    program = shadow.program
    shown = [effect.value for effect in program.effects]
    nodes = program.behind(shown)
    return {value for node in nodes for value in node.takes.values()} | set(shown)


@dataclass(frozen=True, slots=True, eq=False)
class _ShownEffect:
    effect: StepEffect
    quantity: Quantity


def _paired_effects(
    golden: Shadow, target: Shadow
) -> tuple[list[tuple[_ShownEffect, _ShownEffect]], list[tuple[str, StepEffect]]]:
    """Effects of one name; of what is left, those that are one quantity; and what is left then."""
    ours, theirs = ([_ShownEffect(e, s.quantity(e.value)) for e in s.program.effects]
                    for s in (golden, target))  # fmt: skip
    pairs: list[tuple[_ShownEffect, _ShownEffect]] = []
    for is_pair in (_same_name, _is_same):
        for its in list(ours):
            mine = next((each for each in theirs if is_pair(its, each)), None)
            if mine is not None:
                pairs.append((its, mine))
                ours.remove(its)
                theirs.remove(mine)
    if len(ours) == len(theirs) == 1:  # one result on each side, under other names
        return [*pairs, (ours[0], theirs[0])], []
    left = [*(("golden", each.effect) for each in ours), *(("target", e.effect) for e in theirs)]
    return pairs, left


def _same_name(one: _ShownEffect, other: _ShownEffect) -> bool:
    return one.effect.name == other.effect.name


def _is_same(one: _ShownEffect, other: _ShownEffect) -> bool:
    return one.quantity.is_same(other.quantity)


def _signatures(program: Program) -> set[tuple[object, ...]]:
    return {sign for node in program.nodes if (sign := _signature(program, node)) is not None}


def _signature(program: Program, node: Node) -> tuple[object, ...] | None:
    """What a call was asked, given and gave, by its bytes; None where bytes are not known."""
    values = (*sorted(node.takes.items()), *sorted(node.gives.items()))
    digests = tuple((slot, program.records[value].digest) for slot, value in values)
    if not all(digest for _, digest in digests):
        return None
    return node.call.target, node.call.arguments, digests
