"""Verifies one op: itself against float64, then each partition of it against itself."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning.annotation import Annotation
from dumpcmp.partitioning.call import Candidate, leaves
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.differences import (
    compare_slots,
    compare_with_reference,
    first_random,
    worst,
)
from dumpcmp.partitioning.findings import Finding
from dumpcmp.partitioning.inputs import domains_of, wanted_grads
from dumpcmp.partitioning.partition import (
    Option,
    Refused,
    every_option,
    option_of,
    partition_by,
    unpartitioned,
)
from dumpcmp.partitioning.parts import (
    Joined,
    LeafTensors,
    PartFailedError,
    Runner,
    Trial,
    inputs_of,
    observe,
)
from dumpcmp.partitioning.rules.ruling import NoRule
from dumpcmp.partitioning.table import Entry, entry_for

_RANDOM = "random: two runs with different seeds differ, so neither is a reference"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to verify: parts where an option does not say, seed of the inputs, device."""

    num: int = 2
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Alone:
    """The op on whole inputs: in its own precision and in float64."""

    entry: Entry
    trial: Trial
    inputs: LeafTensors
    single: Joined
    reference: Joined | None  # None: the op does not exist in float64

    @property
    def annotation(self) -> Annotation:
        """The annotation, for as many outputs as the op has given."""
        return self.entry.annotation(len(self.single.outputs))

    @property
    def lengths(self) -> dict[str, int]:
        """How long each name of the annotation is."""
        shapes = [tuple(output.shape) for output in self.single.outputs]
        return self.entry.lengths(self.annotation, shapes)


def check_op(candidate: Candidate, runner: Runner, settings: Settings) -> Iterator[Finding]:
    """Verify `candidate`: one Finding for the op itself and one for each partition."""
    row = Finding(candidate.node, candidate.call.fsig, source=candidate.source)
    began = time.perf_counter()
    try:
        if candidate.reason:
            raise NoRule(candidate.reason)
        alone = run_alone(entry_for(candidate.call, candidate.anno), settings)
        options = _options(candidate, alone, settings.num)
    except (NoRule, DumpcmpError) as error:
        skipped = isinstance(error, NoRule)
        verdict = Verdict.SKIPPED if skipped else Verdict.ERROR
        yield replace(row, verdict=verdict, reason=_reason(error), seconds=_since(began))
        return
    row = replace(row, annotation=str(alone.annotation), loss_single=_loss(alone.single))
    single = _check_single(row, alone)
    yield replace(single, seconds=_since(began))
    for option in options:
        began = time.perf_counter()
        asked = replace(row, idx=option.idx, dim=option.dim, num=option.num)
        found = _check_partition(asked, alone, option, runner)
        if single.reason == _RANDOM and found.verdict is not Verdict.REFUSED:
            found = replace(found, verdict=Verdict.INCONCLUSIVE, reason=_RANDOM)
        yield replace(found, seconds=_since(began))


def _since(began: float) -> float:
    return time.perf_counter() - began


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, DumpcmpError) else str(error)


def run_alone(entry: Entry, settings: Settings) -> Alone:
    """Run the op on whole inputs, in its own precision and in float64."""
    trial = Trial(
        entry.call,
        unpartitioned(len(leaves(entry.call))),
        domains_of(entry),
        wanted_grads(entry),
        entry.arguments.paths,
        seed=settings.seed,
        device=settings.device,
    )
    inputs = inputs_of(trial)
    try:
        single = observe(trial, inputs)
    except PartFailedError as error:
        if "not implemented" not in error.message:
            raise
        trial = replace(trial, backward=False)  # an op without a derivative: forward only
        single = observe(trial, inputs)
    trial = replace(trial, native=tuple(output.dtype for output in single.outputs))
    try:
        reference = observe(replace(trial, double=True), inputs)
    except PartFailedError:
        reference = None
    return Alone(entry, trial, inputs, single, reference)


def _options(candidate: Candidate, alone: Alone, num: int) -> list[Option]:
    lengths, given, found = alone.lengths, candidate.noutputs, len(alone.single.outputs)
    if given not in (None, found):
        raise PartitionError(f"{candidate.call.fsig} gives {found} outputs, noutputs says {given}")
    if candidate.options is None:
        return every_option(alone.annotation, lengths, num)
    return [option_of(option, num) for option in candidate.options]


def _loss(found: Joined) -> float:
    """The sum of all outputs: what a weaker check would look at."""
    return sum(float(value.double().sum()) for value in found.outputs if value.is_floating_point())


def _check_single(row: Finding, alone: Alone) -> Finding:
    """The op itself: it must be the same twice, and near its float64 run."""
    row = replace(row, rule="single")
    again = observe(replace(alone.trial, backward=False, noise=1), alone.inputs)
    if slot := first_random(alone.single, again):
        return replace(row, verdict=Verdict.INCONCLUSIVE, worst_slot=slot, reason=_RANDOM)
    if alone.reference is None:
        reason = "the op does not run in float64: partitions are judged by rounding alone"
        return replace(row, verdict=Verdict.PASS, reason=reason)
    found = worst(row, compare_with_reference(row, alone.single, alone.reference))
    if found.verdict is Verdict.PASS and not alone.trial.backward:
        return replace(found, reason="the op has no derivative: verified forward only")
    return found


def _check_partition(row: Finding, alone: Alone, option: Option, runner: Runner) -> Finding:
    try:
        partition = partition_by(alone.entry, alone.annotation, alone.lengths, option)
        row = replace(row, rule=str(partition))
        found = runner.observe(replace(alone.trial, partition=partition), alone.inputs)
    except Refused as refused:
        return replace(row, verdict=Verdict.REFUSED, reason=refused.message)
    except DumpcmpError as error:
        verdict = Verdict.FAIL if isinstance(error, PartFailedError) else Verdict.ERROR
        return replace(row, verdict=verdict, reason=error.message)
    row = replace(row, loss_multi=_loss(found))
    return worst(row, compare_slots(row, alone.single, found, alone.reference))
