"""Verifies one op: itself against float64, then each partition of it against itself."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning.annotation import Annotation
from dumpcmp.partitioning.call import OpCall, leaves
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.differences import (
    Compared,
    compare_slots,
    compare_with_reference,
    first_random,
    worst,
)
from dumpcmp.partitioning.findings import Finding
from dumpcmp.partitioning.inputs import domains_of, wanted_grads
from dumpcmp.partitioning.observing import (
    Joined,
    PartFailedError,
    Trial,
    inputs_of,
    observe,
)
from dumpcmp.partitioning.partition import (
    Option,
    Refused,
    every_option,
    option_of,
    partition_by,
    unpartitioned,
)
from dumpcmp.partitioning.rules.ruling import NoRule
from dumpcmp.partitioning.table import Entry, entry_for

_RANDOM = "random: two runs with different seeds differ, so neither is a reference"


class Runner(Protocol):
    """Runs the partitioned side of a trial."""

    def observe(self, trial: Trial, inputs: Sequence[torch.Tensor | None]) -> Joined:
        """Run `trial`; a backend inside this process may use its whole `inputs`."""
        ...


class InProcess:
    """All parts in this process, one after the other."""

    def observe(self, trial: Trial, inputs: Sequence[torch.Tensor | None]) -> Joined:
        """Run `trial` on slices of `inputs`."""
        return observe(trial, inputs)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An op to be verified, and what to call it in the report."""

    call: OpCall
    options: tuple[Mapping[str, Any], ...] | None = None  # None: every legal one
    anno: str = ""
    node: str = ""
    source: str = ""
    noutputs: int | None = None  # how many outputs the user expects


@dataclass(frozen=True, slots=True)
class Runs:
    """The op on whole inputs: in its own precision and in float64."""

    entry: Entry
    trial: Trial
    inputs: Sequence[torch.Tensor | None]
    single: Joined
    reference: Joined | None  # None: the op does not exist in float64

    @property
    def annotation(self) -> Annotation:
        """The annotation, for as many outputs as the op has given."""
        return self.entry.annotation(len(self.outputs))

    @property
    def lengths(self) -> dict[str, int]:
        """How long each name of the annotation is."""
        shapes = [tuple(output.shape) for output in self.outputs]
        return self.entry.lengths(self.annotation, shapes)

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The outputs of the single run."""
        return [value for slot, value in self.single.values.items() if slot.startswith("output.")]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to verify: parts where an option does not say, seed of the inputs, device."""

    num: int = 2
    seed: int = 0
    device: str = "cpu"


def check_op(candidate: Candidate, backend: Runner, settings: Settings) -> Iterator[Finding]:
    """Verify `candidate`: one Finding for the op itself and one for each partition."""
    row = Finding(node=candidate.node, op=candidate.call.fsig, source=candidate.source)
    began = time.perf_counter()
    try:
        runs = run_whole(entry_for(candidate.call, candidate.anno), settings)
        _check_outputs(candidate, len(runs.outputs))
        options = _options(candidate, runs, runs.lengths, settings.num)
    except NoRule as reason:
        yield replace(row, verdict=Verdict.SKIPPED, reason=str(reason), seconds=_since(began))
        return
    except DumpcmpError as error:
        yield replace(row, verdict=Verdict.ERROR, reason=error.message, seconds=_since(began))
        return
    row = replace(row, annotation=str(runs.annotation), loss_single=_loss(runs.single))
    single = _check_single(row, runs)
    yield replace(single, seconds=_since(began))
    for option in options:
        began = time.perf_counter()
        asked = replace(row, idx=option.idx, dim=option.dim, num=option.num)
        found = _check_partition(asked, runs, option, backend)
        if single.reason == _RANDOM and found.verdict is not Verdict.REFUSED:
            found = replace(found, verdict=Verdict.INCONCLUSIVE, reason=_RANDOM)
        yield replace(found, seconds=_since(began))


def _check_outputs(candidate: Candidate, found: int) -> None:
    if candidate.noutputs not in (None, found):
        raise PartitionError(
            f"{candidate.call.fsig} gives {found} outputs, noutputs says {candidate.noutputs}"
        )


def _since(began: float) -> float:
    return time.perf_counter() - began


def run_whole(entry: Entry, settings: Settings) -> Runs:
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
    runs = Runs(entry, trial, inputs, single, None)
    trial = replace(trial, native=tuple(output.dtype for output in runs.outputs))
    try:
        reference = observe(replace(trial, double=True), inputs)
    except PartFailedError:
        reference = None
    return replace(runs, trial=trial, reference=reference)


def _options(
    candidate: Candidate, runs: Runs, lengths: Mapping[str, int], num: int
) -> list[Option]:
    if candidate.options is None:
        return every_option(runs.annotation, lengths, num)
    return [option_of(given, num) for given in candidate.options]


def _loss(found: Joined) -> float:
    """The sum of all outputs: what a weaker check would look at."""
    return sum(
        float(value.double().sum())
        for slot, value in found.values.items()
        if slot.startswith("output.") and value.is_floating_point()
    )


def _check_single(row: Finding, runs: Runs) -> Finding:
    """The op itself: it must be the same twice, and near its float64 run."""
    row = replace(row, rule="single")
    again = observe(replace(runs.trial, backward=False, noise=1), runs.inputs)
    slot = first_random(runs.single, again)
    if slot:
        return replace(row, verdict=Verdict.INCONCLUSIVE, worst_slot=slot, reason=_RANDOM)
    if runs.reference is None:
        reason = "the op does not run in float64: partitions are judged by rounding alone"
        return replace(row, verdict=Verdict.PASS, reason=reason)
    found = _told(row, worst(compare_with_reference(runs.single, runs.reference)))
    if found.verdict is Verdict.PASS and not runs.trial.backward:
        return replace(found, reason="the op has no derivative: verified forward only")
    return found


def _check_partition(row: Finding, runs: Runs, option: Option, backend: Runner) -> Finding:
    try:
        partition = partition_by(runs.entry, runs.annotation, runs.lengths, option)
    except Refused as refused:
        return replace(row, verdict=Verdict.REFUSED, reason=refused.message)
    row = replace(row, rule=str(partition))
    try:
        found = backend.observe(replace(runs.trial, partition=partition), runs.inputs)
    except PartFailedError as error:
        return replace(row, verdict=Verdict.FAIL, reason=error.message)
    except DumpcmpError as error:
        return replace(row, verdict=Verdict.ERROR, reason=error.message)
    row = replace(row, loss_multi=_loss(found))
    return _told(row, worst(compare_slots(runs.single, found, runs.reference)))


def _told(row: Finding, found: Compared) -> Finding:
    return replace(
        row,
        verdict=found.verdict,
        worst_slot=found.slot,
        reason=found.judgement.reason,
        max_abs_diff=found.max_abs_diff,
        max_rel_err=found.max_rel_err,
        rmse_reference=found.scale,
        rmse_single=found.single_error,
        rmse_partitioned=found.partitioned_error,
    )
