"""From a comparison of runs on ranks to cases: what they compute together, cut out of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.errors import MissingValueError
from dumpcmp.nouns.key import Key, Slot
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row, Verdict
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.reproducing.case import ErrorMeasure, GuiltyKind, ReproCode, error_of
from dumpcmp.reproducing.parallel_case import ParallelCase, flat, named
from dumpcmp.reproducing.parallel_region import (
    CollectiveStatement,
    Join,
    RanksCode,
    is_collective_call,
    join_of,
)
from dumpcmp.reproducing.region import CodeRegion, CodeStatement, RankProgram
from dumpcmp.shadows.program import Node, ValueId

_AGREES = (Verdict.PASS, Verdict.DTYPE)
_CALLS = 4.0  # times eps: what rounding explains of each call
_ELEMENTS, _GAIN = 16.0, 1 / 8
_MOST_ENDS = 12  # values at which the fault may be shown


class ProgramOfRank(RankProgram):
    """One step of one rank, whose collectives are code as well."""

    def _statement(
        self, node: Node, takes: Mapping[str, str], gives: Mapping[str, str]
    ) -> CodeStatement:
        if not is_collective_call(node.call):
            return super()._statement(node, takes, gives)
        if node.call.op.function in (Collective.SEND, Collective.RECV):
            raise Unreplayable(f"{node.call.op} is a message of one rank to another")
        given = {slot: self.value(node.call.site.key(Slot(slot))) for slot in gives}
        shapes = {slot: self.program.records[value].shape for slot, value in given.items()}
        return CollectiveStatement(node.call, takes, gives, shapes)


@dataclass(frozen=True)
class GuiltyRanks:
    """The guilty row of a comparison whose target ran on several ranks."""

    outcome: Outcome
    row: Row
    golden: Archive
    mine: Archive

    def cases(self) -> Iterator[ParallelCase]:
        """Ways to show it: a collective alone, or the programs up to a value that differs."""
        for end in self._ends():
            for cut_out in (self._collective, self._programs):
                try:
                    case = cut_out(end)
                except (Unreplayable, MissingValueError):
                    continue  # another value may show it
                if case is not None:
                    yield case

    def _ends(self) -> list[Row]:
        """Values of both runs that may show it, the guilty row first."""
        roots = [row for row in self.outcome.roots if row is not self.row]
        heirs = [row for row in self.outcome.failures if row.cause == self.row.key]
        found = [
            row
            for row in (self.row, *roots, *heirs)
            if row.golden_key is not None
            and row.target_key is not None
            and row.key.slot.is_output
            and (row.key.model, row.key.step) == (self.row.key.model, self.row.key.step)
        ]
        return found[:_MOST_ENDS]

    @cached_property
    def _ranks(self) -> list[int]:
        return sorted(self.mine.ranks)

    @cached_property
    def _mine_programs(self) -> dict[int, ProgramOfRank]:
        key = self.row.target_key or self.row.key
        return {r: ProgramOfRank(self.mine, key.model, key.step, r) for r in self._ranks}

    @cached_property
    def _golden_programs(self) -> dict[int, ProgramOfRank]:
        key = self.row.golden_key or self.row.key
        ranks = sorted(self.golden.ranks)
        return {r: ProgramOfRank(self.golden, key.model, key.step, r) for r in ranks}

    def _collective(self, end: Row) -> ParallelCase | None:
        """One collective, on what each rank gave."""
        ends = self._on_ranks(self._mine_programs, end.target_key)
        made = [self._mine_programs[rank].producer(value) for rank, value in ends.items()]
        if not all(node is not None and is_collective_call(node.call) for node in made):
            return None
        regions, values = self._cut(self._mine_programs, ends, lambda _: True)
        return self._case(end, Join(), regions, values, None, None, {})

    def _programs(self, end: Row) -> ParallelCase | None:
        """Both programs, from values on which they agree."""
        join = join_of(end.layout)
        if join is None:
            return None
        ends = self._on_ranks(self._mine_programs, end.target_key)
        targets, goldens = self._agreed
        regions, values = self._cut(self._mine_programs, ends, targets.__contains__)
        theirs = self._on_ranks(self._golden_programs, end.golden_key)
        own, others = self._cut(self._golden_programs, theirs, goldens.__contains__, "g")
        if len(own) == 1:
            (alone,) = own.values()
            return self._case(end, join, regions, values, alone, None, flat(others))
        if own.keys() != regions.keys():
            raise Unreplayable("golden ran on other ranks")
        return self._case(end, join, regions, values, None, RanksCode(own), flat(others))

    def _on_ranks(
        self, programs: Mapping[int, ProgramOfRank], key: Key | None
    ) -> dict[int, ValueId]:
        assert key is not None
        found = {rank: program.value(key) for rank, program in programs.items()}
        lacking = [r for r, value in found.items() if value not in programs[r].program.records]
        if lacking:
            raise Unreplayable(f"rank {lacking[0]} has no {key}")
        return found

    def _cut(
        self,
        programs: Mapping[int, ProgramOfRank],
        ends: Mapping[int, ValueId],
        is_given: Callable[[ValueId], bool],
        prefix: str = "x",
    ) -> tuple[dict[int, CodeRegion], dict[int, dict[str, Tensor]]]:
        """The calls behind `ends` on each rank, and what goes into them."""
        regions = {
            rank: programs[rank].behind(end, is_given, None, prefix) for rank, end in ends.items()
        }
        values = {
            rank: {name: programs[rank].tensor(v).contiguous() for name, v in region.inputs.items()}
            for rank, region in regions.items()
        }
        return regions, values

    @cached_property
    def _agreed(self) -> tuple[set[ValueId], set[ValueId]]:
        """The target's values and golden's that are the same but for rounding."""
        targets: set[ValueId] = set()
        goldens: set[ValueId] = set()
        sides = (self._mine_programs, targets, "target_key"), (
            self._golden_programs, goldens, "golden_key",
        )  # fmt: skip
        for row in self.outcome.rows:
            if row.verdict not in _AGREES or row.golden_key is None or row.target_key is None:
                continue
            for programs, found, word in sides:
                key: Key = getattr(row, word)
                for program in programs.values():
                    here = program.program
                    if (key.model, key.step) == (here.model, here.step):
                        found.add(program.value(key))
        return targets, goldens

    def _case(
        self,
        end: Row,
        join: Join,
        regions: Mapping[int, CodeRegion],
        values: Mapping[int, Mapping[str, Tensor]],
        golden: ReproCode | None,
        golden_on_ranks: RanksCode | None,
        whole: Mapping[str, Tensor],
    ) -> ParallelCase:
        code = RanksCode(regions)
        parts = [
            self._mine_programs[rank].tensor(
                self._mine_programs[rank].value(_known(end.target_key))
            )
            for rank in sorted(regions)
        ]
        recorded = join.of([part.contiguous() for part in parts])
        key = self.row.key
        place = f"{key.op}, call {key.call}, token {key.step} of {key.model}"
        case = ParallelCase(
            GuiltyKind.PARALLEL, place, self.row.reason, code, {**flat(values), **whole},
            recorded, recorded, ErrorMeasure.EXACT, 0.0, golden,
            on_ranks=code, golden_on_ranks=golden_on_ranks, join=join, keys=named(regions),
            free_sizes=self._free_sizes(regions),
        )  # fmt: skip
        return self._measured(case)

    def _free_sizes(self, regions: Mapping[int, CodeRegion]) -> frozenset[int]:
        """Sizes of dims of inputs that the ranks have as golden has them: nobody has a share."""
        taken = {value.key for region in regions.values() for value in region.inputs.values()}
        rows = [row for row in self.outcome.rows if row.target_key in taken]
        pairs = [(r.golden_shape, r.target_shape) for r in rows if r.golden_shape]
        sizes = {size for _, shape in pairs for size in shape or ()}
        return frozenset(
            size
            for size in sizes
            if all(shape and _dims_of(size, ours) == _dims_of(size, shape) for ours, shape in pairs)
        )

    def _measured(self, case: ParallelCase) -> ParallelCase:
        """The same with what is right, and the measure that tells the fault from rounding."""
        expected, recorded = case.right_value(), case.recorded
        assert recorded is not None
        if recorded.shape != expected.shape:
            raise Unreplayable(f"{case.place}: the ranks' results have another shape together")
        if not (expected.is_floating_point() or expected.is_complex()):
            if error_of(ErrorMeasure.EXACT, recorded, expected) > 0:
                return replace(case, expected=expected)
            raise Unreplayable(f"{case.place}: these elements are right")
        eps = torch.finfo(recorded.dtype).eps
        rounding = _CALLS * eps * (1 + case.mine_on_ranks.num_calls)
        limits = {
            ErrorMeasure.ROWS: rounding,
            ErrorMeasure.ELEMENTS: max(_ELEMENTS * eps, rounding),
            ErrorMeasure.GAIN: _GAIN * rounding,
        }
        for measure, limit in limits.items():
            if error_of(measure, recorded, expected) > limit:
                return replace(case, expected=expected, measure=measure, limit=limit)
        raise Unreplayable(f"{case.place}: on these values it is within what rounding explains")


def _dims_of(size: int, shape: tuple[int, ...]) -> list[int]:
    return [dim for dim, own in enumerate(shape) if own == size]


def _known(key: Key | None) -> Key:
    assert key is not None
    return key
