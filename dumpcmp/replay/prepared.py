"""Calls that come again with tensors of the same forms: their arguments, laid ready to be filled.

The same call comes once in each step. What its text says, and what follows from dtypes and shapes,
is found out once; then only tensors are put in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.listed import ReplayFunction

GivenTensors = Mapping[str, Tensor]
Filler = Callable[[GivenTensors], Any]
CallForm = tuple[object, ...]

_MOST = 1 << 12  # forms that are kept in mind


def form_of(target: str, text: str, device: str, given: GivenTensors) -> CallForm | None:
    """All that decides how a call is run again, but for its numbers; None of odd tensors."""
    found: list[object] = [target, text, device]
    for slot, tensor in given.items():
        if tensor.__class__ is not Tensor or not tensor.is_cpu:
            return None
        found += slot, tensor.dtype, tensor.shape
    return tuple(found)


class Blank(Tensor):
    """Stands where a tensor of some slot goes; it has the dtype and shape of those that come."""

    slot: str

    @staticmethod
    def at(slot: str, like: Tensor) -> Blank:
        """A blank for tensors like this one."""
        made: Blank = torch.empty_like(like).as_subclass(Blank)
        made.slot = slot
        return made


class LaidReady:
    """Arguments with blanks, which are filled with tensors."""

    def __init__(self, arguments: CallArguments) -> None:
        self._args = [(value, _filler(value)) for value in arguments.args]
        self._kwargs = {word: (value, _filler(value)) for word, value in arguments.kwargs.items()}
        self._leaves = [(leaf, _filler(leaf)) for leaf in arguments.leaves()]
        self._autocast = arguments.autocast

    def filled(self, given: GivenTensors) -> CallArguments:
        """The arguments with the tensors that `given` has for their slots."""
        args = tuple([one if fill is None else fill(given) for one, fill in self._args])
        kwargs = {
            word: one if fill is None else fill(given) for word, (one, fill) in self._kwargs.items()
        }
        found = CallArguments(args, kwargs, self._autocast)
        leaves = [one if fill is None else fill(given) for one, fill in self._leaves]
        object.__setattr__(found, "_leaves", leaves)  # they are asked for again and again
        return found


def _filler(value: Any) -> Filler | None:
    """What makes of `given` what stands at this place; None where that is always the same."""
    if isinstance(value, Blank):
        slot = value.slot
        return lambda given: given[slot]
    if isinstance(value, (list, tuple)):
        parts = [(part, _filler(part)) for part in value]
        if all(fill is None for _, fill in parts):
            return None
        made = list if isinstance(value, list) else tuple
        return lambda given: made([one if fill is None else fill(given) for one, fill in parts])
    if isinstance(value, dict):
        named = [(word, part, _filler(part)) for word, part in value.items()]
        if all(fill is None for _, _, fill in named):
            return None
        return lambda given: {w: one if fill is None else fill(given) for w, one, fill in named}
    if isinstance(value, slice):
        ends = _filler([value.start, value.stop, value.step])
        return None if ends is None else lambda given: slice(*ends(given))
    return None


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """How a call is run again on tensors of known forms."""

    function: ReplayFunction
    is_exact: bool
    plain: LaidReady
    wide: LaidReady  # as it is run: in float64, or as it is where nothing is rounded


class Preparations:
    """What was prepared, by form. What comes for the first time is not: it may be the last."""

    def __init__(self) -> None:
        self._known: dict[CallForm, PreparedCall | None] = {}
        self._seen: set[CallForm] = set()

    def get(
        self, form: CallForm, prepare: Callable[[], PreparedCall | None]
    ) -> PreparedCall | None:
        """What is known of a form, prepared where it comes for the second time."""
        if form in self._known:
            return self._known[form]
        if form not in self._seen:
            if len(self._seen) >= _MOST:
                self._seen.clear()
                self._known.clear()
            self._seen.add(form)
            return None
        found = self._known[form] = prepare()
        return found
