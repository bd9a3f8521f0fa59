"""Faults of the model itself: a weight that is not the same tensor, a call with other arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.truth.models import Model
from benchmarks.truth.planting import Fault, edited
from benchmarks.truth.watching import Seen, listing

Change = Callable[[torch.Tensor], None]


def scaled(weight: torch.Tensor) -> None:
    """The whole weight is 1 + 2^-9 times as large, as its dtype rounds."""
    weight.copy_(weight.double() * (1 + 2**-7 if weight.dtype == torch.bfloat16 else 1 + 2**-9))


def rows_swapped(weight: torch.Tensor) -> None:
    """The first row and the one that is most unlike it."""
    rows = weight.double().reshape(len(weight), -1)
    other = int((rows - rows[0]).square().sum(1).argmax())
    weight[[0, other]] = weight[[other, 0]].clone()


def one_element(weight: torch.Tensor) -> None:
    weight.view(-1)[weight.numel() // 3] *= 1.05


CHANGES: dict[str, Change] = {
    "wrong weight: scaled": scaled,
    "wrong weight: two rows swapped": rows_swapped,
    "wrong weight: one element": one_element,
}
CONSTANTS = ("eps", "variance_epsilon", "layer_norm_eps", "scaling", "layer_norm_epsilon")


def wrong_weights(model: Model, dtype: str, seen: list[Seen], seed: str) -> Iterator[Fault]:
    """Each change of a weight, at a weight that `seed` chooses."""
    made = model.made(dtype)
    used = {name for one in seen for name in one.parameters}
    names = sorted(name for name, x in made.named_parameters() if x.ndim > 1 and name in used)
    for name, change in CHANGES.items():
        chosen = names[zlib.crc32(f"{seed} {name}".encode()) % len(names)]
        users = [one for one in seen if chosen in one.parameters]
        owner = chosen.rpartition(".")[0]
        fault = edited(f"{name} ({chosen})", "leaf", users, _changing(chosen, change))
        fault.modules = fault.modules | {owner}
        yield fault


def _changing(name: str, change: Change) -> Callable[[nn.Module], None]:
    def edit(model: nn.Module) -> None:
        change(model.get_parameter(name).data)

    return edit


def wrong_constants(model: Model, dtype: str, seen: list[Seen], seed: str) -> Iterator[Fault]:
    """A constant of one module is 1.5 times as large: what changes first is a call's argument."""
    made = model.made(dtype)
    places = sorted(
        (name, word)
        for name, module in made.named_modules()
        for word in CONSTANTS
        if isinstance(getattr(module, word, None), float)
    )
    for word in sorted({word for _, word in places}):
        paths = [path for path, one in places if one == word]
        path = paths[zlib.crc32(f"{seed} {word}".encode()) % len(paths)]
        edit = _raising(path, word)
        users = first_other_call(model, dtype, seen, edit)
        if users:
            yield edited(f"wrong call: {path}.{word} x 1.5", "call", users, edit)


def _raising(path: str, word: str) -> Callable[[nn.Module], None]:
    def edit(model: nn.Module) -> None:
        module = model.get_submodule(path)
        setattr(module, word, getattr(module, word) * 1.5)

    return edit


def first_other_call(
    model: Model, dtype: str, seen: list[Seen], edit: Callable[[nn.Module], None]
) -> list[Seen]:
    """The first call of an edited model whose arguments are not what they were."""
    made, inputs = model.made(dtype), model.given(dtype)
    edit(made)
    again = listing(made, lambda: model.step(made, inputs, backward=False))
    pairs = zip(seen, again, strict=True)
    return [ours for ours, theirs in pairs if ours.plain != theirs.plain][:1]
