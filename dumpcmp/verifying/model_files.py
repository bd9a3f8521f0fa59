"""Models in files as sides of verify(): what ONNX Runtime gives for an exported model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import torch

from dumpcmp.taps.onnx.model import OnnxModel, onnx_model
from dumpcmp.taps.onnx.protobufs import check_installed

SUFFIXES = (".onnx", ".ort")


class ModelFile:
    """A model in a file, which is called as the model that was exported."""

    def __init__(self, path: Path) -> None:
        check_installed("verify of an ONNX model")
        self.__name__ = path.name
        self._model: OnnxModel = onnx_model(path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self._model(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it has no state that a run changes


def callable_of(side: Any) -> Any:
    """A side of verify(): itself, or the model of a file if it is a path to one."""
    if isinstance(side, (str, os.PathLike)) and Path(side).suffix in SUFFIXES:
        return ModelFile(Path(side))
    return side
