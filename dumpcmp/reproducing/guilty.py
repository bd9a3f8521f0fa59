"""From a comparison to the case of a repro: which calls are guilty, and on what values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.judge.replaying import bound
from dumpcmp.nouns.errors import MissingValueError, SelectionError
from dumpcmp.nouns.key import Key, Slot
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row, Verdict, Why
from dumpcmp.nouns.selection import closest, names_key
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.report.advice import first_value
from dumpcmp.reproducing.case import (
    ErrorMeasure,
    GuiltyKind,
    ReproCase,
    ShownBy,
    error_of,
)
from dumpcmp.reproducing.optimizer_steps import steps_before, values_before
from dumpcmp.reproducing.parallel_guilty import GuiltyRanks
from dumpcmp.reproducing.parallel_region import join_of
from dumpcmp.reproducing.region import CodeRegion, RankProgram
from dumpcmp.shadows.program import ValueId

_AGREES = (Verdict.PASS, Verdict.DTYPE)
_SINGLE = 2.0**-23
_ROW, _ELEMENT, _GAIN = 2.0, 16.0, 1 / 8  # as a replay is judged
_CALLS = 4.0  # times eps: what rounding explains of each call of a region
_ANY = "write a compare report to see all that fails: dumpcmp compare --out report.csv"


def guilty_row(outcome: Outcome, name: str) -> Row:
    """The row that is meant: the first root that a call or a leaf is, or what fails of `name`."""
    if not name:
        if outcome.first_divergence is None:
            raise SelectionError(f"nothing to reproduce: {outcome.word}", hint=_ANY)
        return first_value(outcome) or outcome.first_divergence
    found = [row for row in outcome.rows if names_key(row.key, name)]
    if not found:
        near = ", ".join(closest(name, sorted({row.key.op for row in outcome.rows})))
        raise SelectionError(f"no value is called {name!r}", hint=f"closest: {near or 'none'}")
    failing = [row for row in found if row.verdict.fails]
    if not failing:
        raise SelectionError(f"nothing fails of {name!r}: {found[0].verdict}", hint=_ANY)
    return next((row for row in failing if row.root), failing[0])


@dataclass(frozen=True)
class Guilty:
    """The guilty row of a comparison, and both runs."""

    outcome: Outcome
    row: Row
    golden: Archive
    mine: Archive

    def cases(self) -> Iterator[ReproCase]:
        """Ways to show the fault, the smallest first, each to be tried."""
        if self.row.key.op.is_effect:
            raise _not_cut_out(self.row, "it is nothing that a call gave")
        if len(self.mine.ranks) == 1:
            yield from self._on_one_rank()
            return
        num_cases = 0
        for case in self._on_ranks():
            num_cases += 1
            yield case
        if not num_cases:
            why = "of no value on the way it is known how the ranks' parts make one"
            raise _not_cut_out(self.row, why)

    def _on_ranks(self) -> Iterator[ReproCase]:
        """Of one rank, where it can be; else of all together."""
        row = self.row
        if row.judgement.why in (Why.INTRODUCED, Why.GOLDEN):
            yield from _possible(self._kernel())
        elif row.key.slot.is_weight or row.judgement.why is Why.LEAF:
            yield from _possible(self._value_on_ranks())
        elif len(self._holders) == 1:
            yield from _possible(self._program() for _ in self._holders)
        yield from GuiltyRanks(self.outcome, row, self.golden, self.mine).cases()

    @cached_property
    def _holders(self) -> list[int]:
        """The ranks of mine that have the value."""
        key = self.row.target_key
        return [] if key is None else sorted({shard.rank for shard in self.mine.shards(key)})

    def _on_one_rank(self) -> Iterator[ReproCase]:
        row = self.row
        if row.key.slot.is_weight or row.judgement.why is Why.LEAF:
            if row.key.slot.is_weight and row.key.step > self.mine.steps(row.key.model)[0]:
                yield self._optimizer_or_value()
            else:
                yield self._value("")
        elif row.judgement.why in (Why.CALL, Why.WIRED) or None in (row.golden_key, row.target_key):
            yield self._program()
        else:
            yield from self._kernel()

    @cached_property
    def _golden_program(self) -> RankProgram:
        key = self.row.golden_key or self.row.key
        rank = self._mine_program.rank
        return RankProgram(
            self.golden, key.model, key.step, rank if rank in self.golden.ranks else 0
        )

    @cached_property
    def _mine_program(self) -> RankProgram:
        key = self.row.target_key or self.row.key
        model = key.model if key.model in self.mine.models else self.mine.models[0]
        rank = self._holders[0] if len(self._holders) == 1 else min(self.mine.ranks)
        return RankProgram(self.mine, model, key.step, rank)

    def _kernel(self) -> Iterator[ReproCase]:
        """One call, on what it was given, on the first rank where it is wrong."""
        is_golden = self.row.judgement.why is Why.GOLDEN
        archive = self.golden if is_golden else self.mine
        key = _known(self.row.golden_key if is_golden else self.row.target_key)
        key = self._output_of(key, archive)
        *others, last = (shard.rank for shard in archive.shards(key))
        for rank in others:
            try:
                yield from self._kernel_on(RankProgram(archive, key.model, key.step, rank), key)
                return
            except Unreplayable:
                continue  # it may be right there, and wrong on another
        yield from self._kernel_on(RankProgram(archive, key.model, key.step, last), key)

    def _kernel_on(self, program: RankProgram, key: Key) -> Iterator[ReproCase]:
        """The call alone, and then with those before it that the same kernel computes."""
        value = program.value(key)
        region = program.behind(value, lambda _: True)
        values = {name: program.tensor(each) for name, each in region.inputs.items()}
        call = region.statements[-1].call
        kind = GuiltyKind.COMPILED if call.is_compiled else GuiltyKind.KERNEL
        recorded = program.tensor(value)
        yield self._case(kind, region, values, recorded, call.source)
        if kind is GuiltyKind.COMPILED:
            yield from self._wider(program, value, recorded)

    def _wider(self, program: RankProgram, value: ValueId, recorded: Tensor) -> Iterator[ReproCase]:
        """The calls before it that the same kernel computes."""
        node = program.producer(value)
        assert node is not None
        inside = {f"{node.call.op}#{node.call.call}", *node.call.origins}

        def is_given(other: ValueId) -> bool:
            made = program.producer(other)
            return made is None or f"{made.call.op}#{made.call.call}" not in inside

        region = program.behind(value, is_given)
        if len(region.statements) > 1:
            values = {name: program.tensor(each) for name, each in region.inputs.items()}
            yield self._case(GuiltyKind.COMPILED, region, values, recorded, node.call.source)

    def _output_of(self, key: Key, archive: Archive) -> Key:
        """What the call gave, where the row is of what it took."""
        if not key.slot.is_input:
            return key
        given = (k for k in archive.keys_of(key.model, key.step, key.op) if k.site == key.site)
        found = next((k for k in given if k.slot.is_output), None)
        if found is None:
            raise _not_cut_out(self.row, "its call gave nothing that was recorded")
        return found

    def _program(self) -> ReproCase:
        """Both spellings, from values on which the runs agree to one on which they do not."""
        end = self._meeting()
        golden, mine = self._golden_program, self._mine_program
        agreed = self._agreed
        targets = set(agreed.values())
        theirs = golden.value(_known(end.golden_key))
        own = mine.value(_known(end.target_key))
        region = mine.behind(own, lambda value: value in targets)
        names = {value: name for name, value in region.inputs.items()}
        known = {g: names[t] for g, t in agreed.items() if t in names}
        other = golden.behind(theirs, lambda value: value in agreed, known, "g")
        values = {name: mine.tensor(value) for name, value in region.inputs.items()}
        for name, value in other.inputs.items():
            if name not in values:
                values[name] = (
                    mine.tensor(agreed[value]) if value in agreed else golden.tensor(value)
                )
        source = region.statements[-1].call.source
        kind = GuiltyKind.PROGRAM
        try:
            return self._case(kind, region, values, mine.tensor(own), source, other)
        except Unreplayable:  # less than the run rounds, and still another program
            wide = {n: v.double() if v.is_floating_point() else v for n, v in values.items()}
            return self._case(kind, region, wide, region.run(wide), source, other)

    def _meeting(self) -> Row:
        """Where both runs have a value that shows the difference."""
        row = self.row
        if row.golden_key is not None and row.target_key is not None:
            if not row.key.slot.is_input:
                return row
            site = row.key.site
            heirs = [r for r in self.outcome.rows if r.key.site == site and r.key.slot.is_output]
        else:
            heirs = [r for r in self.outcome.rows if r.cause == row.key]
        for heir in heirs:
            both = heir.golden_key is not None and heir.target_key is not None
            slot = heir.key.slot
            if both and slot.is_output and not heir.key.op.is_module and heir.metrics is not None:
                return heir
        raise _not_cut_out(row, "no call of both runs gives a value that shows the difference")

    @cached_property
    def _agreed(self) -> Mapping[ValueId, ValueId]:
        """Golden's values -> the target's, where both are the same but for rounding."""
        here = self._golden_program.program
        found: dict[ValueId, ValueId] = {}
        for row in self.outcome.rows:
            if row.golden_key is None or row.target_key is None or row.verdict not in _AGREES:
                continue
            if (row.golden_key.model, row.golden_key.step) == (here.model, here.step):
                golden = self._golden_program.value(row.golden_key)
                found.setdefault(golden, self._mine_program.value(row.target_key))
        return found

    def _optimizer_or_value(self) -> ReproCase:
        try:
            return self._optimizer()
        except (Unreplayable, MissingValueError) as error:
            return self._value(error.message)

    def _optimizer(self) -> ReproCase:
        """What made a weight of its gradients, on both sides, from where mine began."""
        golden, mine = _known(self.row.golden_key), _known(self.row.target_key)
        theirs, own = steps_before(self.golden, golden), steps_before(self.mine, mine)
        values = values_before(self.mine, mine)
        recorded, expected = self.mine.tensor(mine), theirs.run(values)
        eps = torch.finfo(recorded.dtype).eps
        measure, limit = ErrorMeasure.ELEMENTS, _CALLS * eps * (1 + len(theirs.settings))
        if error_of(measure, recorded, expected) <= limit:
            raise _not_cut_out(self.row, "golden's optimizer makes the same of these gradients")
        return ReproCase(
            GuiltyKind.OPTIMIZER, _place(self.row.key), self.row.reason, own, values, expected,
            recorded, measure, limit, theirs,
        )  # fmt: skip

    def _value(self, note: str) -> ReproCase:
        """A weight or an input that is another: both sides of it."""
        row = self.row
        golden, mine = _known(row.golden_key), _known(row.target_key)
        theirs, own = self.golden.tensor(golden), self.mine.tensor(mine)
        region = CodeRegion((), {"x0": ValueId(0, mine)}, "x0")
        limit = 0.0
        return ReproCase(
            GuiltyKind.VALUE, _place(row.key), row.reason, region, {"x0": own}, theirs, own,
            ErrorMeasure.EXACT, limit, shown=ShownBy.FRESH, right="expected",
            facts={"note": note} if note else {},
        )  # fmt: skip

    def _value_on_ranks(self) -> Iterator[ReproCase]:
        """A weight or an input of all ranks as one value, and golden's."""
        row, join = self.row, join_of(self.row.layout)
        golden, mine = _known(row.golden_key), _known(row.target_key)
        if join is None or len(self.golden.ranks) > 1:
            raise _not_cut_out(row, "how the ranks' parts make one value is not known")
        parts = [self.mine.tensor(record) for record in self.mine.shards(mine)]
        whole, own = self.golden.tensor(golden), join.of(parts)
        theirs = join.of([whole] * len(parts)) if join.is_of_replicas else whole
        region = CodeRegion((), {"x0": ValueId(0, mine)}, "x0")
        yield ReproCase(
            GuiltyKind.VALUE, _place(row.key), row.reason, region, {"x0": own}, theirs, own,
            ErrorMeasure.EXACT, 0.0, shown=ShownBy.FRESH, right="expected",
            facts={"note": "x0 is what all ranks have together"},
        )  # fmt: skip

    def _case(
        self,
        kind: GuiltyKind,
        region: CodeRegion,
        values: Mapping[str, Tensor],
        recorded: Tensor,
        source: str,
        golden: CodeRegion | None = None,
    ) -> ReproCase:
        right = golden or region
        expected = right.run(values)
        measure, limit = self._measured(right, values, recorded, expected)
        if measure is ErrorMeasure.EXACT and recorded.is_floating_point():
            expected = expected.to(recorded.dtype)
        facts = {"source": source, "kernel": right.statements[-1].call.kernel}
        facts = {word: text for word, text in facts.items() if text}
        return ReproCase(
            kind, _place(self.row.key), self.row.reason, region, values, expected, recorded,
            measure, limit, golden, facts=facts,
        )  # fmt: skip

    def _measured(
        self, right: CodeRegion, values: Mapping[str, Tensor], recorded: Tensor, expected: Tensor
    ) -> tuple[ErrorMeasure, float]:
        """The measure that tells the fault from rounding, and how much rounding explains."""
        if not (expected.is_floating_point() or expected.is_complex()) or _moves(right, values):
            return ErrorMeasure.EXACT, 0.0
        eps = torch.finfo(recorded.dtype).eps if recorded.dtype.is_floating_point else _SINGLE
        replay = self.row.replay
        single = len(right.statements) == 1 and replay is not None and replay.is_known
        single = single and replay is not None and replay.eps <= eps  # rounded as the run was
        whole = bound(replay) if single and replay else _CALLS * eps * len(right.statements)
        element = eps + _ELEMENT * max(
            min(eps, _SINGLE) * (replay.condition if single and replay else 1.0), 0.0
        )
        limits = {
            ErrorMeasure.ROWS: _ROW * whole,
            ErrorMeasure.ELEMENTS: max(element, whole),
            ErrorMeasure.GAIN: _GAIN * max(eps, whole),
        }
        for measure, limit in limits.items():
            if error_of(measure, recorded, expected) > limit:
                return measure, limit
        raise _not_cut_out(self.row, "on these values it is within what rounding explains")


def _possible(cases: Iterator[ReproCase]) -> Iterator[ReproCase]:
    """The cases that can be made; of ranks there are other ways."""
    try:
        yield from cases
    except (Unreplayable, MissingValueError):
        return


def _moves(region: CodeRegion, values: Mapping[str, Tensor]) -> bool:
    """Whether the code is one call of which every bit is known."""
    if len(region.statements) != 1:
        return False
    (one,) = region.statements
    given = {slot: values[name] for slot, name in one.takes.items()}
    return rerun(one.call, given, is_rated=False).is_exact


def _known(key: Key | None) -> Key:
    assert key is not None, "rows that were asked for have both sides"
    return key


def _place(key: Key) -> str:
    slot = "" if key.slot == Slot("output.0") else f" {key.slot}"
    return f"{key.op}{slot}, call {key.call}, token {key.step} of {key.model}"


def _not_cut_out(row: Row, why: str) -> Unreplayable:
    return Unreplayable(f"{row.key} cannot be cut out: {why}", hint=_ANY)
