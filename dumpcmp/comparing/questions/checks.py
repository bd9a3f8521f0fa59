"""Whether each call computed what it was asked for: run again in float64 on its own inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dumpcmp.comparing.questions.row_checks import common_rows, load_rows, sample_of
from dumpcmp.comparing.side import archive_at
from dumpcmp.judge.tolerances import (
    ACTIVATED,
    FAST_SUMS,
    IN_PARTS,
    SHORT_SUMS,
    SHORTCUTS,
)
from dumpcmp.nouns.arithmetic import (
    activates_in_short,
    adds_in_short,
    multiplies_in_parts,
    shortcuts_of,
)
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.record import UNWRITTEN, Call, Kept, Record
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.sampled import Sample
from dumpcmp.nouns.value import to_torch
from dumpcmp.shadows.program import OwnOperation, RatedOperation

if TYPE_CHECKING:
    from torch import Tensor

    from dumpcmp.replay.running import Rerun

IN_VMAP = "it ran inside of torch.func.vmap, on one example of a batch at a time"
_TOGETHER = 256  # calls whose values are held against their replays at once
_SMALL = 1 << 12  # elements of a value


@dataclass(frozen=True, slots=True)
class CallRecords:
    """What a run recorded of a call."""

    path: Path
    takes: Mapping[str, Record]
    gives: Mapping[str, Record]

    @property
    def nbytes(self) -> int:
        records = (*self.takes.values(), *self.gives.values())
        return sum(record.location.nbytes for record in records if record.location)


@dataclass(frozen=True, slots=True)
class CallCheck:
    """A call to check."""

    call: Call
    own: CallRecords
    other: CallRecords | None = None  # of golden's call that matches: what it chose, and gave
    operation: OwnOperation | None = None
    allow: frozenset[str] = frozenset()
    is_apart: bool = False  # the sides differ by much: does it cancel?

    @property
    def nbytes(self) -> int:
        return self.own.nbytes

    @property
    def device(self) -> str:
        record = next(iter((*self.own.gives.values(), *self.own.takes.values())), None)
        return record.device.partition(":")[0] if record else "cpu"


def check_calls(tasks: Sequence[CallCheck]) -> Iterator[dict[str, Replay]]:
    """Carry out checks, in order: what each call gave, by slot."""
    for start in range(0, len(tasks), _TOGETHER):
        begun = [_begun(task) for task in tasks[start : start + _TOGETHER]]
        held = iter(_held([one for one in begun if isinstance(one, _StartedCheck)]))
        for one in begun:
            yield next(held) if isinstance(one, _StartedCheck) else one


@dataclass(frozen=True, slots=True)
class _StartedCheck:
    task: CallCheck
    again: Rerun
    got: Mapping[str, Tensor]
    rows: Sample | None = None  # that are kept, where not all are


def _begun(task: CallCheck) -> _StartedCheck | dict[str, Replay]:
    try:
        if any(record.is_batch for record in (*task.own.takes.values(), *task.own.gives.values())):
            raise DumpcmpError(IN_VMAP)
        if task.operation is not None:
            return _own(task, task.operation)
        if (rows := common_rows(task.call, task.own.takes, task.own.gives)) is not None:
            return _on_rows(task, rows)
        chosen = _chosen(task)
        if chosen is not None:
            return chosen
        from dumpcmp.replay.running import rerun

        again = rerun(task.call, _loaded_for(task), device=task.device)
        got = {slot: load(task.own.path, record) for slot, record in task.own.gives.items()}
    except DumpcmpError as error:
        return dict.fromkeys(task.own.gives, Replay(unknown=error.message))
    one = _StartedCheck(task, again, got)
    if all(tensor.numel() <= _SMALL for tensor in got.values()):
        return one
    return _held([one])[0]


def _on_rows(task: CallCheck, rows: Sample) -> dict[str, Replay]:
    """What a call gave, held against what it gives for the rows that are kept."""
    from dumpcmp.replay.running import rerun

    given = {slot: _rows_or_whole(task.own.path, one, rows) for slot, one in task.own.takes.items()}
    again = rerun(task.call, given, device=task.device)
    got = {slot: load_rows(task.own.path, one, rows) for slot, one in task.own.gives.items()}
    return _held([_StartedCheck(task, again, got, rows)])[0]


def _rows_or_whole(path: Path, record: Record, rows: Sample) -> Tensor:
    return load_rows(path, record, rows) if sample_of(record) else load(path, record)


def _held(waiting: Sequence[_StartedCheck]) -> list[dict[str, Replay]]:
    from dumpcmp.replay.holding_together import ReplayedValue, hold_all

    asked = [
        ReplayedValue(one.again, slot, got) for one in waiting for slot, got in one.got.items()
    ]
    held = iter(hold_all(asked))
    return [{slot: _in_its_light(one, slot, next(held)) for slot in one.got} for one in waiting]


def _in_its_light(one: _StartedCheck, slot: str, replay: Replay) -> Replay:
    if not replay.is_known:
        return replay
    from dumpcmp.replay.holding_together import distance

    replay = replay._replace(shortcut=_shortcut(one.task))
    other = one.task.other
    if other is None or slot not in other.gives:
        return replay
    try:
        golden = (
            load(other.path, other.gives[slot])
            if one.rows is None
            else load_rows(other.path, other.gives[slot], one.rows)
        )
    except DumpcmpError:
        return replay
    return replay._replace(inherited=distance(one.again.outputs[slot], golden))


def _shortcut(task: CallCheck) -> float:
    """What declared shortcuts round, and kernels of a device."""
    calls = [task.call] if task.operation is None else task.operation.calls
    return max((_shortcut_of(call, task) for call in calls), default=0.0)


def _shortcut_of(call: Call, task: CallCheck) -> float:
    record = next(iter(task.own.gives.values()))
    words = shortcuts_of(call.op, record.dtype) & task.allow
    rounds = [SHORTCUTS[word] for word in words]
    if multiplies_in_parts(call.op, record.dtype, record.device):
        rounds.append(IN_PARTS)
    if activates_in_short(call.op, record.dtype, record.device):
        rounds.append(ACTIVATED)
    if adds_in_short(call.op, record.device):
        tree = argument_tree(call)
        args, kwargs = tree.get("args", []), tree.get("kwargs", {})
        is_fast = kwargs.get("use_fast_accum", args[7] if len(args) > 7 else False) is True
        first = task.own.takes.get("input.0")
        rounds.append(max(SHORT_SUMS, is_fast * FAST_SUMS * (first.shape[-1] if first else 1)))
    return max(rounds, default=0.0)


def _own(task: CallCheck, operation: OwnOperation) -> dict[str, Replay]:
    """What no single function does: a gradient, a collective."""
    ((slot, record),) = task.own.gives.items()
    given = {name: load(task.own.path, each) for name, each in task.own.takes.items()}
    replay = operation.held(given, load(task.own.path, record))
    if replay is None:
        return {slot: Replay()}
    if task.is_apart and replay.is_known and isinstance(operation, RatedOperation):
        condition = operation.rated(given).condition.get(slot, 1.0)
        replay = replay._replace(condition=max(replay.condition, condition))
    return {slot: replay._replace(shortcut=_shortcut(task))}


def _chosen(task: CallCheck) -> dict[str, Replay] | None:
    """What an op that chooses chose; None of any other."""
    from dumpcmp.replay.choosing import choice_of, chooses

    if not chooses(task.call, task.own.takes, task.own.gives):
        return None
    ends = [_tensors(task.own, task.own.takes), _tensors(task.own, task.own.gives)]
    others: list[dict[str, Tensor]] = [{}, {}]
    if task.other is not None:
        try:
            others = [
                _tensors(task.other, task.other.takes),
                _tensors(task.other, task.other.gives),
            ]
        except DumpcmpError:
            others = [{}, {}]
    choice = choice_of(task.call, *ends, *others)
    return None if choice is None else dict.fromkeys(task.own.gives, Replay(choice=choice))


def _tensors(records: CallRecords, some: Mapping[str, Record]) -> dict[str, Tensor]:
    return {slot: load(records.path, record) for slot, record in some.items()}


def _loaded_for(task: CallCheck) -> dict[str, Tensor]:
    """What a call took: as it lay in memory, where that decides how it rounds."""
    from dumpcmp.replay.lying import laid_as, rounds_by_layout

    given = _tensors(task.own, task.own.takes)
    if not rounds_by_layout(task.call):
        return given
    return {slot: laid_as(each, task.own.takes[slot].stride) for slot, each in given.items()}


def load(path: Path, record: Record) -> Tensor:
    """A value as it was recorded; DumpcmpError where it was not kept."""
    if record.problem == UNWRITTEN:
        import torch

        return torch.empty(record.shape, dtype=getattr(torch, record.dtype), device="meta")
    if record.kept is not Kept.FULL:
        rows = sample_of(record)
        left = f"only {rows} are kept" if rows else "only a summary of it was kept"
        raise DumpcmpError(record.problem or left)
    return to_torch(archive_at(path).load(record)).reshape(record.shape)
