"""Captures exported programs: ONNX models in ONNX Runtime, from files or around a live session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import place
from dumpcmp.dumping.capturing import capturing
from dumpcmp.dumping.modes import PlainMode
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.errors import CaptureError, SelectionError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.selection import Selection, make_tap
from dumpcmp.nouns.value import to_torch
from dumpcmp.taps.onnx.model import OnnxModel, onnx_model
from dumpcmp.taps.onnx.protobufs import check_installed
from dumpcmp.taps.onnx.sessions import OnnxSettings
from dumpcmp.taps.onnx.tensors import from_array

MODE = "onnx"
_SUFFIXES = (".onnx", ".ort")


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


def onnx_program(
    path: str | os.PathLike[str], inputs: Sequence[ModelInputs], settings: OnnxSettings
) -> Callable[[], None]:
    """A program that calls the model at `path` with each of `inputs`."""
    check_installed()
    at = Path(path)
    if at.suffix not in _SUFFIXES:
        raise SelectionError(f"{at} is no ONNX model", hint=f"valid: {', '.join(_SUFFIXES)}")

    opened = onnx_model(at, settings)  # before there is an archive

    def program() -> None:
        with opened as model, torch.no_grad():
            for each in inputs:
                model(*each.args, **(each.kwargs or {}))

    return program


class OnnxRun:
    """Runs an ONNX model and records it: called as `InferenceSession.run` is."""

    def __init__(self, model: OnnxModel, session: Any = None) -> None:
        self.model = model
        self._session = session

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names as numpy arrays; None: all of them."""
        given = {name: _tensor(value) for name, value in feeds.items()}
        with torch.no_grad():
            made = self.model(**given)
        made = made if isinstance(made, tuple) else (made,)
        found = dict(zip(self.model.tapping.outputs, made, strict=True))
        if self._session is not None:
            self._hold(found, feeds)
        return [_array(found[name]) for name in names or found]

    __call__ = run

    def _hold(self, found: Mapping[str, Tensor], feeds: Mapping[str, Any]) -> None:
        """See that the user's own session gives the same."""
        theirs = self._session.run(list(found), dict(feeds))
        for (name, made), own in zip(found.items(), theirs, strict=True):
            if not np.array_equal(_array(made), own, equal_nan=made.is_floating_point()):
                self.model.tapping.problems.append(
                    f"output {name} is not what the session that was given gives"
                )


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else from_array(np.asarray(value))


def _array(tensor: Tensor) -> Any:
    return (
        tensor.detach().cpu().float().numpy()
        if tensor.dtype == torch.bfloat16
        else (tensor.detach().cpu().numpy())
    )


@contextmanager
def capture_onnx(
    model: Any,
    path: str | os.PathLike[str],
    *,
    settings: OnnxSettings | None = None,
    keep: str | Retention = "full",
    overwrite: bool = False,
    **selection: Unpack[Selection],
) -> Iterator[OnnxRun]:
    """Record what ONNX Runtime computes of `model`, a path or a live session, in the block.

        with dumpcmp.capture_onnx("model.onnx", "d2") as onnx:
            onnx.run(None, {"ids": ids})

    What is given is called as `InferenceSession.run` is. A session is not touched: its model is
    opened again with its providers and its level of optimisation, and what it gives is compared.
    """
    check_installed()
    file, session = _file_of(model)
    own = settings or (OnnxSettings() if session is None else _settings_of(session))
    retention = keep if isinstance(keep, Retention) else Retention(keep)
    with (
        onnx_model(file, own) as opened,
        capturing(
            (opened,), path, make_tap(**selection), PlainMode(MODE), retention, overwrite=overwrite
        ),
    ):
        yield OnnxRun(opened, session)


def _file_of(model: Any) -> tuple[Path, Any]:
    if isinstance(model, (str, os.PathLike)):
        return Path(model), None
    file = getattr(model, "_model_path", None)
    if not file:
        raise CaptureError(
            f"a {type(model).__name__} does not tell which file it was made of",
            hint="give the path of the model",
        )
    return Path(file), model


def _settings_of(session: Any) -> OnnxSettings:
    options = session.get_session_options()
    levels = {"ORT_DISABLE_ALL": "off", "ORT_ENABLE_BASIC": "basic",
              "ORT_ENABLE_EXTENDED": "extended", "ORT_ENABLE_LAYOUT": "layout"}  # fmt: skip
    return OnnxSettings(
        tuple(session.get_providers()),
        levels.get(options.graph_optimization_level.name, "all"),
        threads=options.intra_op_num_threads,
    )
