"""Records what the root module of a step returned or raised, and what its generator yields."""

from __future__ import annotations

import gc
from collections.abc import Generator
from types import FrameType, GeneratorType
from typing import Any

from torch import Tensor

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.effects import TARGET, Effect
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.pytorch.trees import Slots, slots_of
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording.calls import traceback_line
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.written_trees import (
    MOST_CHARACTERS,
    MOST_LISTED,
    Tree,
    TreeWriter,
    kind_of,
    without_addresses,
    written,
)

_LONE = written({"root": "output.0"})  # what most models return


def returned(step: Step, result: Any) -> Any:
    """Record what the root of `step` returned; gives what the program is to have of it.

    That is the result itself, but for a generator that nobody else holds: it is relayed by another
    one, which records what it yields.
    """
    if not records_effects(step) or not step.tap.outputs:
        return result
    with step.outlet.sparing(), DisableTorchFunction(), DisableTorchDispatch():
        may_relay = type(result) is GeneratorType and not step.is_function
        if may_relay and _is_held_by_none(result, step):
            _put(step, Effect.RESULT, 0, written({"generator": result.__qualname__}))
            return _relayed(result, step)
        slots = [] if step.is_function else slots_of("output", result)  # of the call of a root
        shown = distributed.of_model(ROOT, slots)  # of a pipeline's stage, what is the model's
        if isinstance(result, Tensor) and shown:
            _put(step, Effect.RESULT, 0, _LONE)
        else:
            writer = TreeWriter([slot for slot, _ in shown], keeps=len(shown) == len(slots))
            tree = writer.tree(result)
            _put(step, Effect.RESULT, 0, written(tree), writer.found)
    return result


def raised(step: Step, error: BaseException) -> None:
    """Record what the root of `step` raised."""
    if records_effects(step):
        with step.outlet.sparing(), DisableTorchFunction(), DisableTorchDispatch():
            _put_error(step, Effect.EXCEPTION, 0, error)


def records_effects(step: Step) -> bool:
    """Whether the effects of `step` are to be recorded: those of its root, where that is."""
    outlet = step.outlet
    return not (outlet.is_taped or outlet.is_inert or step.is_silent) and step.tap.selects_op(ROOT)


def _put_error(step: Step, effect: Effect, number: int, error: BaseException) -> None:
    try:
        message = without_addresses(str(error))
    except Exception as own:  # of the program's class
        message = f"{type(own).__name__} when it was asked for its message"
    place = traceback_line(error.__traceback__)
    tree = {"exception": kind_of(error), "message": message[:MOST_CHARACTERS], "place": place}
    _put(step, effect, number, written(tree), source=place)


def _put(
    step: Step,
    effect: Effect,
    number: int,
    arguments: str,
    found: Slots | None = None,
    source: str = "",
    late: bool = False,
) -> Call:
    """Tell the archive of an effect, and of the tensors that it has of its own."""
    call = step.call(effect.op, number, TARGET, arguments, source)
    step.put_effect(call, found or [], late)
    return call


def _is_held_by_none(generator: object, step: Step) -> bool:
    """Whether only what runs now refers to `generator`, so that another can take its place."""
    holders = gc.get_referrers(generator)
    ours = (each for each in holders if isinstance(each, tuple) and each and each[0] is step)
    known = {id(each) for each in ours}
    return all(isinstance(each, FrameType) or id(each) in known for each in holders)


class _Yields:
    """Hands on what a generator is sent and yields, and records that."""

    def __init__(self, generator: Generator[Any, Any, Any], step: Step) -> None:
        self._generator, self._step, self._number = generator, step, 0

    def __iter__(self) -> _Yields:
        return self

    def __next__(self) -> Any:
        return self._noted(self._generator.__next__)

    def send(self, value: Any) -> Any:
        return self._noted(self._generator.send, value)

    def throw(self, *raised: Any) -> Any:
        return self._noted(self._generator.throw, *raised)

    def close(self) -> None:
        self._generator.close()

    def _noted(self, run: Any, *args: Any) -> Any:
        try:
            value = run(*args)
        except StopIteration as stop:
            self._note(stop.value, is_end=True)
            raise
        except BaseException as error:
            self._note_error(error)
            raise
        self._note(value)
        return value

    def _note(self, value: Any, is_end: bool = False) -> None:
        sparing = self._step.outlet.sparing()
        with HOLD, sparing, DisableTorchFunction(), DisableTorchDispatch():
            if self._step.outlet.is_inert or self._number > MOST_LISTED:
                return
            writer = TreeWriter()
            tree: Tree = {"unrecorded": f"it yielded more than {MOST_LISTED:,} times"}
            if self._number < MOST_LISTED:
                tree = writer.tree(value)
            tree = {"object": "returned", "parts": {"value": tree}} if is_end else tree
            _put(self._step, Effect.YIELDED, self._number, written(tree), writer.found, late=True)
            self._number += 1

    def _note_error(self, error: BaseException) -> None:
        sparing = self._step.outlet.sparing()
        with HOLD, sparing, DisableTorchFunction(), DisableTorchDispatch():
            if not self._step.outlet.is_inert:
                _put_error(self._step, Effect.YIELDED, self._number, error)


def _relayed(generator: Any, step: Step) -> Any:
    """A generator that yields, takes and returns what `generator` does, under its name."""
    relay: Any = _relay(_Yields(generator, step))
    relay.__name__, relay.__qualname__ = generator.__name__, generator.__qualname__
    return relay


def _relay(inner: Any) -> Generator[Any, Any, Any]:
    return (yield from inner)
