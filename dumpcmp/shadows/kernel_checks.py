"""Whether each call computed what it was asked for: itself in float64, on its own inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import UNWRITTEN, Kept, Record
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import to_torch
from dumpcmp.replay.holding import hold
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.kernel_regions import check_regions, is_compiled
from dumpcmp.shadows.program import Node, OwnOperation, Program, ValueId


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """What a call gave that its op does not give, or why that could not be told."""

    node: Node
    slot: str
    wrong: str = ""
    unknown: str = ""


def check_kernels(
    archive: Archive, program: Program, nodes: Iterable[Node]
) -> Iterator[KernelFinding]:
    """Check each of `nodes`; what is right is not told."""
    compiled, others = _apart(nodes)
    for found in check_regions(program, compiled, partial(load_value, archive, program)):
        yield KernelFinding(found.node, found.slot, found.wrong, found.unknown)
    for node in others:
        if node.own is not None:
            yield from _checked_own(archive, program, node, node.own)
        elif node.gives:
            yield from _checked(archive, program, node)


def _apart(nodes: Iterable[Node]) -> tuple[list[Node], list[Node]]:
    """What kernels of compiled graphs made, and what calls did."""
    listed = list(nodes)
    compiled = [node for node in listed if is_compiled(node)]
    return compiled, [node for node in listed if not is_compiled(node)]


def _checked(archive: Archive, program: Program, node: Node) -> Iterator[KernelFinding]:
    try:
        if function_named(node.call.target).kind is FunctionKind.NOTHING:
            return
        given = {slot: load_value(archive, program, value) for slot, value in node.takes.items()}
        again = rerun(node.call, given)
    except DumpcmpError as error:
        yield KernelFinding(node, "", unknown=error.message)
        return
    for slot, value in node.gives.items():
        try:
            replay = hold(again, slot, load_value(archive, program, value))
        except DumpcmpError as error:
            replay = Replay(unknown=error.message)
        if not replay.is_known:
            yield KernelFinding(node, slot, unknown=replay.unknown)
        elif reason := wrong(replay):
            yield KernelFinding(node, slot, wrong=reason)


def _checked_own(
    archive: Archive, program: Program, node: Node, own: OwnOperation
) -> Iterator[KernelFinding]:
    ((_, value),) = node.gives.items()
    try:
        given = {slot: load_value(archive, program, each) for slot, each in node.takes.items()}
        replay = own.held(given, load_value(archive, program, value))
    except DumpcmpError as error:
        replay = Replay(unknown=error.message)
    if replay is None:
        return
    if not replay.is_known:
        yield KernelFinding(node, own.slot, unknown=replay.unknown)
    elif reason := wrong(replay):
        yield KernelFinding(node, own.slot, wrong=reason)


def load_value(archive: Archive, program: Program, value: ValueId) -> Tensor:
    """A value as it was recorded; DumpcmpError where it was not kept."""
    record = program.records[value]
    if record.problem == UNWRITTEN:
        return _blank(record)
    if record.kept is not Kept.FULL:
        raise Unreplayable(record.problem or "only a summary of it was kept")
    return to_torch(archive.load(record)).reshape(record.shape)


def _blank(record: Record) -> Tensor:
    import torch

    return torch.empty(record.shape, dtype=getattr(torch, record.dtype), device="meta")
