"""Captures exported programs: ONNX models in ONNX Runtime, from files or around a live session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from dumpcmp.dumping.capturing import capturing
from dumpcmp.dumping.model_inputs import ModelInputs
from dumpcmp.dumping.modes import PlainMode
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.errors import CaptureError, SelectionError
from dumpcmp.nouns.selection import Selection, make_tap
from dumpcmp.taps.onnx.model import OnnxModel, onnx_model
from dumpcmp.taps.onnx.protobufs import check_installed
from dumpcmp.taps.onnx.sessions import OnnxSettings
from dumpcmp.taps.onnx.tensors import from_array

MODE = "onnx"
_SUFFIXES = (".onnx", ".ort")


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
