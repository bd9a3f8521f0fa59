"""What both programs tell that are run again in float64: where they are known, that decides.

Rows are judged value by value, by what was paired. Whether two programs ask for the same is known
from their effects in exact arithmetic, however they are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dumpcmp.align.counting import Counting
from dumpcmp.comparing.requests import Asking
from dumpcmp.comparing.side import Side, StepName
from dumpcmp.nouns.arithmetic import keeps_statistics, moments_written
from dumpcmp.nouns.effects import Effect, effect_of
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.record import UNWRITTEN, Kept, Record
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why
from dumpcmp.nouns.selection import Io, Level
from dumpcmp.shadows.program import ValueId
from dumpcmp.shadows.proving import Proof, ProofAnswer, ProofFinding, StepProof
from dumpcmp.shadows.starting import Before

_MOST_BYTES = 1 << 31  # of a step in float64, on both sides
_PLAIN = frozenset(("eager", "fx", "aten", "compiled", "onnx"))
_SETTLED = (
    "the sides differ, but both programs give the same in float64, and every call that it "
    "depends on is right"
)
_ELSEWHERE = "the other side computes the same under another name"
_ASKED = "right for what it was given, but asked for something else"
_PLAINLY = frozenset((Verdict.PASS, Verdict.DTYPE, Verdict.EMPTY, Verdict.SKIPPED))
_OPEN = frozenset((Verdict.FAIL, Verdict.UNPAIRED, Verdict.SHAPE, Verdict.INCONCLUSIVE))
_WHY = {
    ProofAnswer.WRONG: Why.INTRODUCED,
    ProofAnswer.DIFFERENT_PROGRAM: Why.CALL,
    ProofAnswer.DIFFERENT_START: Why.LEAF,
}


@dataclass(eq=False)
class Proofs:
    """What is known of both programs, step by step."""

    counting: Counting
    remarks: dict[str, None] = field(default_factory=dict)  # what a reader must know, each once
    _before: dict[str, tuple[int, Before | None]] = field(default_factory=dict)
    _is_apart: bool = False  # an earlier step differs, and what later ones begin with follows

    def settled(self, rows: Sequence[Row], golden: Side, target: Side) -> list[Row]:
        """`rows` of some steps, as the programs of both sides tell."""
        found = list(rows)
        if not (_is_plain(golden) and _is_plain(target)):
            return found
        for ours, theirs in _steps(golden, target, self.counting):
            places = [at for at, row in enumerate(found) if _is_of(row, ours, theirs)]
            some = [found[at] for at in places]
            told = self._of_step(some, ours, theirs, golden, target)
            for at, row in zip(places, told, strict=True):
                found[at] = row
            self._is_apart |= any(row.root and row.verdict.fails for row in told)
        return found

    def _of_step(
        self, rows: Sequence[Row], ours: StepName, theirs: StepName, golden: Side, target: Side
    ) -> Sequence[Row]:
        if all(row.verdict in _PLAINLY for row in rows):
            return rows  # both programs do the same, call by call
        if not (_is_closed(golden, ours) and _is_closed(target, theirs)):
            return rows
        proof = Proof()
        asking = StepProof(golden.archive, target.archive, proof, self._earlier(ours))
        try:
            self._before[ours[0]] = ours[1], asking.ask(ours, theirs)
            if any(row.verdict in _OPEN for row in rows):
                asking.ask_kernels()
        except Exception as error:  # whatever it is, the rows are judged without it
            self.remarks[f"the programs could not be run in float64: {error!r}"] = None
            return rows
        self.remarks |= dict.fromkeys(proof.remarks)
        if proof.answer is ProofAnswer.SAME and proof.num_bridges:
            return rows  # what an optimizer did is judged by what it was given
        if proof.answer is ProofAnswer.SAME and any(map(_is_other_result, rows)):
            return rows  # each side is right by itself, and they leave other numbers behind
        if proof.answer is ProofAnswer.SAME:
            return [_excused(row, proof, golden, target) for row in rows]
        if proof.answer is ProofAnswer.UNKNOWN or proof.first is None:
            return rows
        if proof.lone and (proof.first in proof.lone or not proof.first.is_confirmed):
            return rows  # what one side alone gives out has rows of its own
        if self._is_apart and proof.first.answer is ProofAnswer.DIFFERENT_START:
            return [_by_its_own_inputs(row, proof, target) for row in rows]
        return _Accusing(rows, golden, target, proof).accused(proof.findings, proof.first)

    def _earlier(self, place: StepName) -> Before | None:
        number, before = self._before.get(place[0], (-1, None))
        return before if number == place[1] - 1 else None


def _steps(golden: Side, target: Side, counting: Counting) -> Iterator[tuple[StepName, StepName]]:
    """The steps that both sides have, each under its own name."""
    mine: dict[StepName, StepName] = {}
    for site in target.listing.sites:
        name = counting.names.get(site.model, site.model)
        mine.setdefault((name, counting.in_golden_terms(site.model, site.step)), site[:2])
    for place in dict.fromkeys(site[:2] for site in golden.listing.sites):
        if place in mine:
            yield place, mine[place]


def _is_of(row: Row, ours: StepName, theirs: StepName) -> bool:
    if row.golden_key is not None:
        return (row.golden_key.model, row.golden_key.step) == ours
    return (row.key.model, row.key.step) == theirs


def _is_plain(side: Side) -> bool:
    """Whether every op that a side ran was to be recorded."""
    runs = [facts.get("run", {}) for facts in side.archive.run.values()]
    tap = Asking.of(side.archive).tap
    return (
        side.is_whole
        and not side.facts.stopped
        and all(run.get("mode") in _PLAIN for run in runs)
        and not tap.layers
        and tap.io is Io.ALL
        and tap.level is Level.FUNCTIONS
    )


def _is_closed(side: Side, place: StepName) -> bool:
    """Whether all values of a step are kept, and it is not too large to be run in float64."""
    nbytes = 0
    for key, records in side.listing.values.items():
        if (key.model, key.step) == place:
            if not all(map(_is_kept, records)):
                return False
            nbytes += sum(8 * math.prod(r.shape) * (r.same_as is None) for r in records)
    return 2 * nbytes <= _MOST_BYTES


def _is_kept(record: Record) -> bool:
    return record.kept is Kept.FULL or record.problem == UNWRITTEN or record.same_as is not None


def _by_its_own_inputs(row: Row, proof: Proof, target: Side) -> Row:
    """A row of a step that goes on from what an earlier one did.

    A replay takes what golden's call took. Where the target's call was given something else, and
    is right for that, it was asked for something else.
    """
    is_blamed = row.root and row.verdict.fails and row.judgement.why is Why.INTRODUCED
    if not is_blamed or row.target_key is None:
        return row
    records = target.listing.values[row.target_key]
    values = {ValueId(each.rank, row.target_key) for each in records}
    if not values <= proof.right.get("target", set()):
        return row
    return replace(row, judgement=replace(row.judgement, reason=_ASKED, why=Why.CALL))


def _is_other_result(row: Row) -> bool:
    """Whether both sides have an effect of this name, and it is not the same."""
    is_result = effect_of(row.key.op) in (Effect.RESULT, Effect.INPUTS, Effect.YIELDED)
    return is_result and row.verdict.fails and row.metrics is not None


def _excused(row: Row, proof: Proof, golden: Side, target: Side) -> Row:
    """A row of a step of which it is proven that both sides compute the same."""
    is_open = row.verdict in _OPEN and row.judgement.why is not Why.VOID
    if not is_open or _writes_moments(row, golden, target):
        return row
    if row.key.op == Effect.STATE.op:
        if row.golden_key is None or row.golden_key.slot not in proof.buffers:
            return row
    elif row.key.op.is_effect or not _is_shown(row, proof, golden, target):
        return row
    verdict = Verdict.PASS if row.metrics is not None else Verdict.COVERED
    return replace(
        row, judgement=Judgement(verdict, _SETTLED, why=Why.RIGHT), root=False, cause=None
    )


def _writes_moments(row: Row, golden: Side, target: Side) -> bool:
    """Whether a call may have written to moments that later steps read: a norm in training."""
    for side, key in ((golden, row.golden_key), (target, row.target_key)):
        if key is None or not keeps_statistics(key.op):
            continue
        call = side.listing.calls.get(key.site)
        if call is None or moments_written(call):
            return True
    return False


def _is_shown(row: Row, proof: Proof, golden: Side, target: Side) -> bool:
    """Whether effects depend on it on each side that has it, so that it was looked at.

    Of several ranks some may have no use for it, such as those that send what one receives.
    """
    for name, side, key in (
        ("golden", golden, row.golden_key),
        ("target", target, row.target_key),
    ):
        if key is None:
            continue
        values = {ValueId(each.rank, key) for each in side.listing.values[key]}
        if values.isdisjoint(proof.shown[name]) or values - proof.shown[name] - proof.idle[name]:
            return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Accusing:
    """The rows of a step in which the sides are known to compute something else."""

    rows: Sequence[Row]
    golden: Side
    target: Side
    proof: Proof

    def accused(self, findings: Sequence[ProofFinding], first: ProofFinding) -> Sequence[Row]:
        """The rows, with the root where it was found; those that stand there already remain."""
        known = [self._known_elsewhere(row) if self._is_translated else row for row in self.rows]
        if any(one is not other for one, other in zip(known, self.rows, strict=True)):
            return replace(self, rows=known).accused(findings, first)
        roots = [row for row in self.rows if row.root and row.verdict.fails]
        is_program = first.answer is not ProofAnswer.DIFFERENT_START and not any(
            each.answer is ProofAnswer.WRONG for each in findings
        )
        is_told = self._is_exactly_at if self._is_left_out(first) else self._is_at
        at = self._place_of(first)
        is_cleared = self._is_translated and self._are_all_right and at is not None
        if not is_cleared and any(is_told(root, each) for root in roots for each in findings):
            told = self._as_programs(first) if is_program else self.rows
            return self._with_heirs(told, first) if is_told == self._is_exactly_at else told
        if at is None or (roots and not first.is_confirmed and not is_cleared):
            return self._as_programs(first) if is_program else self.rows
        is_golden = first.side == "golden" and first.answer is ProofAnswer.WRONG
        why = Why.GOLDEN if is_golden else _WHY[first.answer]
        found = [self._heir(row, at) if row.root else row for row in self.rows]
        judgement = Judgement(Verdict.FAIL, self._reason(first), why=why)
        found[at] = replace(self.rows[at], judgement=judgement, root=True, cause=None)
        return found

    @property
    def _is_translated(self) -> bool:
        """Whether a side is written in another language: its ops have names and orders of its own.

        What was paired by these is little evidence then; what both sides have in float64 is.
        """
        archives = self.golden.archive, self.target.archive
        runs = (facts.get("run", {}) for each in archives for facts in each.run.values())
        return any("numbers_in" in run for run in runs)

    @property
    def _is_program(self) -> bool:
        """Whether every call is right for what it was given."""
        return not any(each.answer is ProofAnswer.WRONG for each in self.proof.findings)

    @property
    def _are_all_right(self) -> bool:
        """Whether every call that effects depend on was looked at, on both sides, and is right."""
        return self.proof.right.keys() == {"golden", "target"}

    def _known_elsewhere(self, row: Row) -> Row:
        """A row of a value that one side has by this name, and the other by another.

        Two values that were paired, and are others, may both be such: they are no pair.
        """
        is_alone = row.verdict is Verdict.UNPAIRED
        is_mispaired = row.root and row.verdict is Verdict.FAIL and self._is_program
        if row.key.op.is_effect or row.key.slot.is_weight or not (is_alone or is_mispaired):
            return row
        for side, own, key in (
            ("golden", self.golden, row.golden_key),
            ("target", self.target, row.target_key),
        ):
            if key is None:
                continue
            values = {ValueId(each.rank, key) for each in own.listing.values.get(key, ())}
            if not values or not values <= self.proof.common.get(side, set()):
                return row
        judgement = Judgement(Verdict.COVERED, _ELSEWHERE, why=Why.RIGHT)
        return replace(row, judgement=judgement, root=False, cause=None)

    def _reason(self, finding: ProofFinding) -> str:
        side = self.golden if finding.side == "golden" else self.target
        on = f"on rank {finding.rank}: " if side.facts.num_ranks > 1 else ""
        return f"{on}{finding.reason}"

    def _as_programs(self, first: ProofFinding) -> Sequence[Row]:
        findings = [first, *self.proof.findings]
        return [
            self._as_program(row, next((f for f in findings if self._is_at(row, f)), first))
            for row in self.rows
        ]

    def _as_program(self, row: Row, first: ProofFinding) -> Row:
        """A root, where every call is right for what it was given: the program asks for another.

        Weights are made between the steps, of which the programs of steps tell nothing.
        """
        why = row.judgement.why
        if (
            row.key.slot.is_weight
            or not row.root
            or not row.verdict.fails
            or why in (Why.LEAF, Why.CALL, Why.GOLDEN)
        ):
            return row
        # Of what is laid together the reason names the pieces, which a finding does not.
        is_replayed = row.replay is not None and row.replay.is_known and not row.layout
        at = "" if first.op == row.key.op else f"at {first.place} "
        is_exact = self._is_shown_alone(first) and self._is_exactly_at(row, first)
        reason = f"{_ASKED}: {at}{self._reason(first)}" if is_replayed else row.judgement.reason
        if is_exact and at and not row.layout:
            reason = f"{at}{self._reason(first)}"
        return replace(row, judgement=Judgement(row.verdict, reason, why=Why.CALL))

    def _heir(self, row: Row, at: int) -> Row:
        return replace(row, root=False, cause=self.rows[at].key)

    def _with_heirs(self, rows: Sequence[Row], first: ProofFinding) -> Sequence[Row]:
        """One call explains all effects, so that what they depend on differs by it."""
        at = next(i for i, row in enumerate(rows) if row.root and self._is_exactly_at(row, first))
        return [
            self._heir(row, at)
            if row.root and not self._is_exactly_at(row, first) and self._is_looked_at(row)
            else row
            for row in rows
        ]

    def _is_looked_at(self, row: Row) -> bool:
        return _is_shown(row, self.proof, self.golden, self.target)

    def _is_left_out(self, first: ProofFinding) -> bool:
        """Whether a call of golden's alone, put into mine, explains the effects: none beside it."""
        return self._is_shown_alone(first) and first.side == "golden"

    def _is_shown_alone(self, first: ProofFinding) -> bool:
        return first.is_confirmed and first.answer is ProofAnswer.DIFFERENT_PROGRAM

    def _is_exactly_at(self, row: Row, finding: ProofFinding) -> bool:
        key = row.golden_key if finding.side == "golden" else row.target_key
        return key is not None and (key.op, key.call) == (finding.op, finding.call)

    def _is_at(self, row: Row, finding: ProofFinding) -> bool:
        """Whether a root is the call that was found, or one next to it."""
        if self._is_exactly_at(row, finding):
            return True
        side = self.golden if finding.side == "golden" else self.target
        key = row.golden_key if finding.side == "golden" else row.target_key
        if key is None:
            return False
        site = Site(key.model, key.step, finding.op, finding.call)
        near = {side.listing.first(each) for each in side.listing.sites.get(site, ())}
        here = {side.listing.first(each) for each in side.listing.sites.get(key.site, ())}
        return not near.isdisjoint(here)

    def _place_of(self, finding: ProofFinding) -> int | None:
        """The row that tells of a finding: of the slot, or the first of what the call gave."""
        here = [
            (at, key)
            for at, row in enumerate(self.rows)
            if (key := row.golden_key if finding.side == "golden" else row.target_key) is not None
            and (key.op, key.call) == (finding.op, finding.call)
        ]
        exact = [at for at, key in here if key.slot == finding.slot]
        given = [at for at, key in here if key.slot.is_output]
        return next(iter([*exact, *given, *(at for at, _ in here)]), None)
