"""Captures exported programs that torch, ExecuTorch or OpenVINO runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import torch

from dumpcmp.dumping.capturing import capturing
from dumpcmp.dumping.model_inputs import ModelInputs
from dumpcmp.dumping.modes import PlainMode
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.selection import Selection, make_tap
from dumpcmp.taps.executorch.pte_model import PteModel
from dumpcmp.taps.executorch.pte_program import check_executorch
from dumpcmp.taps.exported.exported_model import exported_model
from dumpcmp.taps.openvino.openvino_model import OpenVinoSettings, openvino_model
from dumpcmp.taps.openvino.openvino_runtime import check_openvino

_FORMS = {
    "openvino": (".onnx", "an ONNX model", "that torch.onnx.export wrote: model.onnx"),
    "exported": (".pt2", "a program of torch.export", "that torch.export.save wrote: model.pt2"),
    "executorch": (".pte", "a program of ExecuTorch", "that to_executorch() made: model.pte"),
}


def program_model(
    source: Any, mode: str = "", settings: OpenVinoSettings | None = None
) -> tuple[torch.nn.Module, str]:
    """The model of a program or of the path of one, and the mode that captures it."""
    is_path = isinstance(source, (str, os.PathLike))
    suffix = Path(source).suffix if is_path else ""
    found = mode or next((word for word, form in _FORMS.items() if form[0] == suffix), "exported")
    if found not in _FORMS:
        raise SelectionError(
            f"--mode {found} runs no exported program", hint=f"valid: {', '.join(_FORMS)}"
        )
    wanted, what, hint = _FORMS[found]
    if is_path and suffix != wanted:
        raise SelectionError(f"{source} is not {what}", hint=f"give the file {hint}")
    if found == "openvino":
        check_openvino()
        return openvino_model(source, settings), found
    if found == "executorch":
        check_executorch()
        return PteModel(source), found
    return exported_model(source), found


def file_program(
    path: str | os.PathLike[str],
    inputs: Sequence[ModelInputs],
    mode: str,
    settings: OpenVinoSettings | None = None,
) -> Callable[[], None]:
    """A program that calls the model in a file with each of `inputs`."""
    model, _ = program_model(path, mode, settings)  # before there is an archive

    def program() -> None:
        with torch.no_grad():
            for each in inputs:
                model(*each.args, **(each.kwargs or {}))

    return program


@contextmanager
def capture_exported(
    program: Any,
    path: str | os.PathLike[str],
    *,
    mode: str = "",
    keep: str | Retention = "full",
    overwrite: bool = False,
    **selection: Unpack[Selection],
) -> Iterator[torch.nn.Module]:
    """Record what an exported program computes, op by op, while the block runs.

        with dumpcmp.capture_exported("model.pt2", "d2") as model:
            model(x)

    `program` is an ``ExportedProgram``, decomposed or not, the path of a ``.pt2``, of which nothing
    is unpickled, that of a ``.pte``, which ExecuTorch runs, or that of an ``.onnx``, which OpenVINO
    runs; see `capture_onnx` for ONNX Runtime. What the block gets is called with the inputs of the
    model that was exported.
    """
    model, mode = program_model(program, mode)
    retention = keep if isinstance(keep, Retention) else Retention(keep)
    with capturing(
        (model,), path, make_tap(**selection), PlainMode(mode), retention, overwrite=overwrite
    ):
        yield model
