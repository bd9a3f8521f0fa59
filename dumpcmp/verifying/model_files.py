"""Models in files as sides of verify(): what a runtime gives for an exported model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import torch

from dumpcmp.taps.executorch.pte_model import PteModel
from dumpcmp.taps.executorch.pte_program import check_executorch
from dumpcmp.taps.exported.exported_model import exported_model
from dumpcmp.taps.onnx.model import onnx_model
from dumpcmp.taps.onnx.protobufs import check_installed

SUFFIXES = (".onnx", ".ort", ".pt2", ".pte")


class ModelFile:
    """A model in a file, which is called as the model that was exported."""

    def __init__(self, path: Path) -> None:
        self.__name__ = path.name
        self._model: torch.nn.Module
        if path.suffix == ".pt2":
            self._model = exported_model(path)
        elif path.suffix == ".pte":
            check_executorch()
            self._model = PteModel(path)
        else:
            check_installed("verify of an ONNX model")
            self._model = onnx_model(path)

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
