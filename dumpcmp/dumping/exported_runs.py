"""Captures programs of ``torch.export``, from ``.pt2`` files or from Python."""

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
from dumpcmp.taps.exported.exported_model import ExportedModel, exported_model

MODE = "exported"
SUFFIX = ".pt2"


def exported_program(
    path: str | os.PathLike[str], inputs: Sequence[ModelInputs]
) -> Callable[[], None]:
    """A program that calls the model in the ``.pt2`` at `path` with each of `inputs`."""
    if Path(path).suffix != SUFFIX:
        raise SelectionError(
            f"{path} is no program of torch.export",
            hint="give the file that torch.export.save wrote: model.pt2",
        )
    model = exported_model(path)  # before there is an archive

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
    keep: str | Retention = "full",
    overwrite: bool = False,
    **selection: Unpack[Selection],
) -> Iterator[ExportedModel]:
    """Record what a program of ``torch.export`` computes, op by op, while the block runs.

        with dumpcmp.capture_exported("model.pt2", "d2") as model:
            model(x)

    `program` is an ``ExportedProgram``, decomposed or not, or the path of a ``.pt2``, of which
    nothing is unpickled. What the block gets is called with the inputs of the model that was
    exported.
    """
    model = exported_model(program)
    retention = keep if isinstance(keep, Retention) else Retention(keep)
    with capturing(
        (model,), path, make_tap(**selection), PlainMode(MODE), retention, overwrite=overwrite
    ):
        yield model
