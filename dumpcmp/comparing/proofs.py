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
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import UNWRITTEN, Kept, Record
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why
from dumpcmp.nouns.selection import Io, Level
from dumpcmp.shadows.program import ValueId
from dumpcmp.shadows.proving import Proof, ProofAnswer, ProofFinding, StepProof
from dumpcmp.shadows.starting import Before

_MOST_BYTES = 1 << 31  # of a step in float64, on both sides
_PLAIN = frozenset(("eager", "fx", "aten"))  # modes in which every op is a call of its own
_SETTLED = (
    "the sides differ, but both programs give the same in float64, and every call that it "
    "depends on is right"
)
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
    problems: dict[str, None] = field(default_factory=dict)
    _before: dict[str, tuple[int, Before]] = field(default_factory=dict)

    def settled(self, rows: Sequence[Row], golden: Side, target: Side) -> list[Row]:
        """`rows` of some steps, as the programs of both sides tell."""
        found = list(rows)
        if not (_is_plain(golden) and _is_plain(target)):
            return found
        for ours, theirs in _steps(golden, target, self.counting):
            places = [at for at, row in enumerate(found) if _is_of(row, ours)]
            some = [found[at] for at in places]
            for at, row in zip(
                places, self._of_step(some, ours, theirs, golden, target), strict=True
            ):
                found[at] = row
        return found

    def _of_step(
        self, rows: Sequence[Row], ours: StepName, theirs: StepName, golden: Side, target: Side
    ) -> Sequence[Row]:
        if not (_is_closed(golden, ours) and _is_closed(target, theirs)):
            return rows
        proof = Proof()
        asking = StepProof(golden.archive, target.archive, proof, self._earlier(ours))
        try:
            self._before[ours[0]] = ours[1], asking.ask(ours, theirs)
            if proof.answer is ProofAnswer.SAME and any(row.verdict in _OPEN for row in rows):
                asking.ask_kernels()
        except Exception as error:  # whatever it is, the rows are judged without it
            self.problems[f"the programs could not be run in float64: {error!r}"] = None
            return rows
        if proof.answer is ProofAnswer.SAME:
            return [_excused(row, proof, golden, target) for row in rows]
        if proof.answer is ProofAnswer.UNKNOWN or proof.first is None:
            return rows
        return _accused(rows, proof.findings, proof.first)

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


def _is_of(row: Row, place: StepName) -> bool:
    return row.key.model == place[0] and row.key.step == place[1]


def _is_plain(side: Side) -> bool:
    """Whether a side ran on one rank, and every op that it ran was to be recorded."""
    runs = [facts.get("run", {}) for facts in side.archive.run.values()]
    tap = Asking.of(side.archive).tap
    return (
        side.facts.num_ranks == 1
        and side.is_whole
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
            nbytes += 8 * math.prod(records[0].shape) * (records[0].same_as is None)
    return 2 * nbytes <= _MOST_BYTES


def _is_kept(record: Record) -> bool:
    return record.kept is Kept.FULL or record.problem == UNWRITTEN or record.same_as is not None


def _excused(row: Row, proof: Proof, golden: Side, target: Side) -> Row:
    """A row of a step of which it is proven that both sides compute the same."""
    if row.verdict not in _OPEN or not _is_shown(row, proof, golden, target):
        return row
    verdict = Verdict.PASS if row.metrics is not None else Verdict.COVERED
    return replace(
        row, judgement=Judgement(verdict, _SETTLED, why=Why.RIGHT), root=False, cause=None
    )


def _is_shown(row: Row, proof: Proof, golden: Side, target: Side) -> bool:
    """Whether effects depend on it, so that it was looked at, on each side that has it."""
    sides = ("golden", golden, row.golden_key), ("target", target, row.target_key)
    return all(
        ValueId(0, side.listing.first(key)) in proof.shown[name]
        for name, side, key in sides
        if key is not None
    )


def _accused(
    rows: Sequence[Row], findings: Sequence[ProofFinding], first: ProofFinding
) -> Sequence[Row]:
    """The rows of a step in which the sides are known to compute something else."""
    roots = [row for row in rows if row.root and row.verdict.fails]
    if any(_is_at(root, each) for root in roots for each in findings):
        return rows
    if roots and not first.is_confirmed:
        return rows
    at = _place_of(rows, first)
    if at is None:
        return rows
    why = (
        Why.GOLDEN
        if first.side == "golden" and first.answer is ProofAnswer.WRONG
        else _WHY[first.answer]
    )
    judgement = Judgement(Verdict.FAIL, first.reason, why=why)
    found = [replace(row, root=False, cause=rows[at].key) if row.root else row for row in rows]
    found[at] = replace(rows[at], judgement=judgement, root=True, cause=None)
    return found


def _is_at(row: Row, finding: ProofFinding) -> bool:
    keys = (row.golden_key, row.target_key, row.key)
    return any(k is not None and k.op == finding.op and k.call == finding.call for k in keys)


def _place_of(rows: Sequence[Row], finding: ProofFinding) -> int | None:
    """The row that tells of a finding: of the slot, or the first of what the call gave."""

    def key_of(row: Row) -> Key | None:
        return row.golden_key if finding.side == "golden" else row.target_key

    here = [
        (at, key)
        for at, row in enumerate(rows)
        if (key := key_of(row)) is not None and key.op == finding.op and key.call == finding.call
    ]
    exact = [at for at, key in here if key.slot == finding.slot]
    given = [at for at, key in here if key.slot.is_output]
    return next(iter([*exact, *given, *(at for at, _ in here)]), None)
