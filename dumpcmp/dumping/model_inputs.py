"""What exported models are called with: arrays of numpy by name, or the inputs of a golden run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import place
from dumpcmp.nouns.errors import CaptureError, SelectionError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.value import to_torch
from dumpcmp.taps.onnx.tensors import from_array


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What a model is called with once."""

    args: tuple[Tensor, ...] = ()
    kwargs: Mapping[str, Tensor] | None = None


def inputs_from(source: str | os.PathLike[str]) -> list[ModelInputs]:
    """The inputs of each step: of an .npz one step by name, of an archive those of its model."""
    at = place(source)
    if at.is_dir():
        return _of_archive(Archive(at))
    if at.suffix != ".npz":
        raise SelectionError(
            f"{source} is neither an archive nor an .npz", hint="give a golden dump, or numpy.savez"
        )
    try:
        with np.load(Path(at), allow_pickle=False) as arrays:
            return [ModelInputs((), {name: from_array(arrays[name]) for name in arrays.files})]
    except (OSError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise CaptureError(f"{source} cannot be read: {said}") from None


def _of_archive(archive: Archive) -> list[ModelInputs]:
    model = next(iter(archive.models), None)
    if model is None:
        raise CaptureError(f"{archive.path} has no model", hint="give the dump of a golden run")
    found = [_of_step(archive, model, step) for step in archive.steps(model)]
    if not any(each.args or each.kwargs for each in found):
        raise CaptureError(
            f"{archive.path} does not have what {model} was given",
            hint="dump golden with --io all",
        )
    return found


def _of_step(archive: Archive, model: str, step: int) -> ModelInputs:
    args: list[Tensor] = []
    kwargs: dict[str, Tensor] = {}
    for held in archive.rank_steps(model, step):
        for name in held.names(ROOT):
            key = Key(model, step, *name)
            if key.call or not key.slot.startswith("input."):
                continue
            record = held.record(key)
            if record.kept is not Kept.FULL:
                raise CaptureError(
                    f"{key}: of this input only a Summary was kept", hint="dump golden whole"
                )
            value = to_torch(archive.load(record)).reshape(record.shape)
            if key.slot.name.partition(".")[0].isdecimal():
                args.append(value)
            else:
                kwargs[key.slot.name] = value
        break
    return ModelInputs(tuple(args), kwargs)
