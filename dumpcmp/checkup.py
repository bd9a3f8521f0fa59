"""Checks a program while it runs: every op is run again in float64 on what it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.judge.replaying import bound, wrong
from dumpcmp.nouns.errors import DumpcmpError, SelectionError
from dumpcmp.nouns.key import Op, Site
from dumpcmp.nouns.outcome import Answer, Tally
from dumpcmp.nouns.record import Call, Record, Source
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.selection import make_tap
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction, check_names
from dumpcmp.pytorch.trees import Slots, slots_of
from dumpcmp.replay.holding import hold
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.running import rerun
from dumpcmp.taps.modes.modules import FunctionMode, ModuleCapture
from dumpcmp.taps.recording.calls import current_line, function_arguments
from dumpcmp.taps.recording.functions import Function, function_of, in_order
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step

MOST_ROWS = 1000  # that are kept of each verdict; all are counted


@dataclass(frozen=True, slots=True)
class CheckedOp:
    """What an op gave out, held against itself in float64."""

    site: Site
    slot: str
    verdict: Verdict
    reason: str = ""
    source: str = ""  # the user's line
    replay: Replay = field(default_factory=Replay)


class Checkup(Answer):
    """What a check found so far: the ops that do not compute what they should.

    It fills while the program runs. Ops that are right are counted and not listed.
    """

    COLUMNS = ("token", "op", "slot", "verdict", "error", "bound", "reason")

    def __init__(self, every: int = 1) -> None:
        if every < 1:
            raise SelectionError(
                f"every {every} is no share of the calls", hint="1 checks them all"
            )
        self.rows: list[CheckedOp] = []
        self._every = every
        self._num_calls = 0
        self._counts: Counter[Verdict] = Counter()
        self._skipped: set[tuple[Op, str]] = set()

    @property
    def tally(self) -> Tally:
        """How many values got which verdict."""
        return Tally(dict(self._counts))

    @property
    def failures(self) -> tuple[CheckedOp, ...]:
        """What the ops gave out that they should not."""
        return tuple(row for row in self.rows if row.verdict.fails)

    @property
    def headline(self) -> str:
        """The first op that is wrong, or that none is."""
        if not self.compared:
            return f"UNKNOWN: no op could be checked ({self.tally})"
        if not self.failures:
            return f"SAME: every op that was checked computes what it should ({self.tally})"
        first = self.failures[0]
        return f"WRONG at {first.site.place}: {first.reason} ({self.tally})"

    def cells(self, row: CheckedOp) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        error, limit = f"{row.replay.introduced:.3g}", f"{bound(row.replay):.3g}"
        known = (error, limit) if row.verdict is not Verdict.SKIPPED else ("", "")
        op = f"{row.site.op}#{row.site.call}"
        return str(row.site.step), op, row.slot, row.verdict, *known, row.reason

    def sentence(self, row: CheckedOp) -> str:
        """One row as a line of an error."""
        where = f" at {row.source}" if row.source else ""
        return f"{row.site} {row.slot}{where}: {row.verdict}; {row.reason}"

    def wants_next(self) -> bool:
        """Whether the next call is one that is to be checked."""
        self._num_calls += 1
        return self._num_calls % self._every == 0 or self._every == 1

    def check(self, call: Call, given: Mapping[str, Tensor], gave: Slots) -> None:
        """Run `call` again on what it was given, and hold what it gave against that."""
        try:
            again = rerun(call, given)
            found = [(slot, hold(again, slot, tensor)) for slot, tensor in gave]
        except DumpcmpError as error:
            self._add(CheckedOp(call.site, "", Verdict.SKIPPED, error.message, call.source))
            return
        for slot, replay in found:
            reason = replay.unknown or wrong(replay)
            verdict = Verdict.FAIL if reason else Verdict.PASS
            verdict = verdict if replay.is_known else Verdict.SKIPPED
            self._add(CheckedOp(call.site, slot, verdict, reason, call.source, replay))

    def _add(self, row: CheckedOp) -> None:
        self._counts[row.verdict] += 1
        if row.verdict is Verdict.FAIL and self._counts[row.verdict] <= MOST_ROWS:
            self.rows.append(row)
        elif row.verdict is Verdict.SKIPPED and (row.site.op, row.reason) not in self._skipped:
            self._skipped.add((row.site.op, row.reason))
            self.rows.append(row)


@contextmanager
def check(
    model: nn.Module | None = None,
    *,
    every: int = 1,
    layers: str | Sequence[str] | None = None,
    tokens: str | Iterable[int] | None = None,
) -> Iterator[Checkup]:
    """Check every op that `model` runs in the block, or every model; there is no golden run.

        with dumpcmp.check(model) as checkup:
            model(x)
        print(checkup)

    Each op is run again in float64, on its own device, on what it was given, and what it gave out
    is held against that. `every` checks only each nth call. Nothing is written.
    """
    recorder = Recorder(_Unkept(), make_tap(tokens, layers))
    recorder.lacking = check_names("every mode", "--mode eager")
    checkup = Checkup(every)
    roots = () if model is None else (model,)
    watching = ModuleCapture(recorder, roots, partial(_CheckingMode, checkup))
    watching.enter = _open_scope
    with watching.running():
        yield checkup
    checkup.remarks = (*recorder.tap.unmatched(recorder.num_steps, recorder.ops), *recorder.lacking)


class _Unkept:
    """A Sink for what nobody keeps."""

    def call(self, call: Call) -> None: ...

    def put(self, record: Record, source: Source | None) -> None: ...

    def text(self, model: str, name: str, text: str) -> None: ...


def _open_scope(step: Step, module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ARG001
    """Know which module runs; what it takes and gives are values of the functions in it."""
    step.scopes.open(step.model.path_of(module, step.scopes.here.path))


class _CheckingMode(FunctionMode):
    """Checks each torch function, in place of recording it."""

    def __init__(self, checkup: Checkup, step: Step | None) -> None:
        super().__init__(step)
        self._checkup = checkup

    def recorded(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        function = function_of(func)
        counted = self.step.count(function) if self.step and function.name else None
        if self.step is None or counted is None or not self._checkup.wants_next():
            return func(*args, **kwargs)
        with _unseen():
            call, given = _given(self.step, *counted, function, args, kwargs)
        result = func(*args, **kwargs)
        with _unseen():
            gave = slots_of("output", args[0] if function.returns_nothing else result)
            self._checkup.check(call, given, [(slot, t.detach()) for slot, t in gave])
        return result


@contextmanager
def _unseen() -> Iterator[None]:
    """Compute without modes, gradients or autocast of the program."""
    with DisableTorchFunction(), DisableTorchDispatch(), torch.no_grad():
        yield


def _given(
    step: Step, op: str, number: int, function: Function, args: Any, kwargs: Any
) -> tuple[Call, dict[str, Tensor]]:
    """The call that is about to run, and what it is given, as it is before it runs."""
    found, arguments = function_arguments(in_order(function, args), kwargs, function.positions)
    call = Call(
        step.model.name, step.number, Op(op), number, 0, function.target, current_line(),
        arguments=arguments,
    )  # fmt: skip
    keeps = not _may_write(function, kwargs)
    return call, {slot: t.detach() if keeps else t.detach().clone() for slot, t in found}


def _may_write(function: Function, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may change what it is given."""
    if "out" in kwargs:
        return True
    try:
        return function_named(function.target).changes_first
    except DumpcmpError:
        return True
