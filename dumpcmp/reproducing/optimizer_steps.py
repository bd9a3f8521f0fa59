"""Steps of an optimizer as code: a weight, its gradients, and the settings that were recorded."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Key, Slot
from dumpcmp.replay.unreplayable import Unreplayable

_EFFECT = "<effects>/training"
_KNOWN = {
    name: made
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, torch.optim.Optimizer)
}
_FRESH = ("nothing", "", None)  # what an optimizer has kept before its first step


@dataclass(frozen=True, slots=True)
class OptimizerSteps:
    """One weight under an optimizer of torch, a gradient for each step: `x0`, then `x1` and so on.

    The settings of each step are those that were recorded then, so that a schedule is followed.
    """

    name: str  # "AdamW"
    settings: Sequence[Mapping[str, Any]]

    @property
    def lines(self) -> list[str]:
        """The body of a function."""
        first = ", ".join(f"{word}={value!r}" for word, value in self.settings[0].items())
        rates = [one["lr"] for one in self.settings]
        grads = ", ".join(f"x{i + 1}" for i in range(len(rates)))
        return [
            "w = torch.nn.Parameter(x0.clone())",
            f"optimizer = torch.optim.{self.name}([w], {first})",
            f"for rate, grad in zip({rates!r}, [{grads}]):",
            '    optimizer.param_groups[0]["lr"] = rate',
            "    w.grad = grad.clone()",
            "    optimizer.step()",
            "return w.detach()",
        ]

    def run(self, values: Mapping[str, Tensor]) -> Tensor:
        """The weight after all steps, in float64."""
        weight = torch.nn.Parameter(values["x0"].double())
        optimizer = _KNOWN[self.name]([weight], **dict(self.settings[0]))
        for number, settings in enumerate(self.settings, 1):
            optimizer.param_groups[0]["lr"] = settings["lr"]
            weight.grad = values[f"x{number}"].double()
            optimizer.step()
        return weight.detach()

    def with_number(self, old: int, new: int) -> OptimizerSteps:
        """The same: no number of it is the size of a dim."""
        del old, new
        return self


def steps_before(archive: Archive, key: Key) -> OptimizerSteps:
    """The steps that made the weight `key` of what it was in the first recorded step."""
    found = [_recorded(archive, key, step) for step in _steps(archive, key)]
    names = {name for name, _, _ in found}
    changed = {tuple((w, v) for w, v in told.items() if w != "lr") for _, told, _ in found}
    if len(names) != 1 or len(changed) != 1:
        raise Unreplayable(f"{key}: its optimizer, or a setting besides the rate, changed")
    if found[0][2] not in _FRESH:
        raise Unreplayable(f"{key}: its optimizer had taken steps before the first recorded one")
    return OptimizerSteps(names.pop(), [told for _, told, _ in found])


def values_before(archive: Archive, key: Key) -> dict[str, Tensor]:
    """The weight in the first recorded step, and its gradient in each step since."""
    slots = {"x0": _weight_before(archive, key)}
    for number, step in enumerate(_steps(archive, key), 1):
        slots[f"x{number}"] = Key(key.model, step, key.op, key.call, Slot(f"grad.{key.slot.name}"))
    return {name: archive.tensor(each) for name, each in slots.items()}


def _weight_before(archive: Archive, key: Key) -> Key:
    return Key(key.model, archive.steps(key.model)[0], key.op, key.call, key.slot)


def _steps(archive: Archive, key: Key) -> list[int]:
    found = [step for step in archive.steps(key.model) if step < key.step]
    if not found:
        raise Unreplayable(f"{key}: no step of an optimizer was recorded before it")
    return found


def _recorded(archive: Archive, key: Key, step: int) -> tuple[str, dict[str, Any], Any]:
    """The optimizer of a step by its name, its settings, and what it had kept before."""
    calls = (call for each in archive.effects_at(key.model, step).values() for call in each)
    told = [part for call in calls if call.op == _EFFECT for part in _optimizers(call.arguments)]
    if len(told) != 1 or len(told[0]["parts"].get("groups", ())) != 1:
        raise Unreplayable(f"{key}: step {step} has not one optimizer with one group of weights")
    name = str(told[0]["object"]).rpartition(".")[2]
    if name not in _KNOWN or not str(told[0]["object"]).startswith("torch.optim."):
        raise Unreplayable(f"{key}: {told[0]['object']} is no optimizer of torch")
    parts = told[0]["parts"]
    words = set(inspect.signature(_KNOWN[name]).parameters)
    group = {word: _plain(value) for word, value in parts["groups"][0]["dict"].items()}
    settings = {word: value for word, value in group.items() if word in words}
    return name, settings, parts.get("state_before")


def _optimizers(arguments: str) -> Iterator[dict[str, Any]]:
    """Those that stepped, of whatever class."""
    for part in json.loads(arguments).get("args", ()):
        if isinstance(part, dict) and "groups" in part.get("parts", ()):
            yield part


def _plain(value: Any) -> Any:
    """A number, a word, or a tuple of them; anything else is refused."""
    if isinstance(value, dict) and set(value) == {"tuple"}:
        return tuple(_plain(part) for part in value["tuple"])
    if isinstance(value, bool | int | float | str | None):
        return value
    raise Unreplayable(f"a setting of the optimizer is no plain number: {str(value)[:80]}")
