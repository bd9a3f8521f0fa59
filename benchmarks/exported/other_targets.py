"""The same models as programs of torch.export, in ExecuTorch, and in OpenVINO: all are sound."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import dumpcmp
from benchmarks.exported.running import ExportedSubject, export
from benchmarks.exported.subjects import SUBJECTS
from benchmarks.exported.table import share_of
from benchmarks.tables import Table
from dumpcmp.dumping.model_inputs import inputs_from

Lower = Callable[[ExportedSubject, Path], Path]


def _program(exported: ExportedSubject) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    model, inputs = exported.subject.build()
    with torch.no_grad():
        return torch.export.export(model, inputs)


def _plain(exported: ExportedSubject, room: Path) -> Path:
    torch.export.save(_program(exported), room / "plain.pt2")
    return room / "plain.pt2"


def _decomposed(exported: ExportedSubject, room: Path) -> Path:
    torch.export.save(_program(exported).run_decompositions(), room / "decomposed.pt2")
    return room / "decomposed.pt2"


def _executorch(exported: ExportedSubject, room: Path, *partitioners: Any) -> Path:
    from executorch.exir import to_edge_transform_and_lower

    made = to_edge_transform_and_lower(_program(exported), partitioner=list(partitioners))
    (room / "program.pte").write_bytes(made.to_executorch().buffer)
    return room / "program.pte"


def _xnnpack(exported: ExportedSubject, room: Path) -> Path:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return _executorch(exported, room, XnnpackPartitioner())


def _onnx(exported: ExportedSubject, room: Path) -> Path:  # noqa: ARG001
    return exported.model


def _targets() -> Iterator[tuple[str, Lower]]:
    """The targets that are installed here."""
    yield "torch.export", _plain
    yield "torch.export, decomposed", _decomposed
    if importlib.util.find_spec("executorch") is not None:
        yield "ExecuTorch", _executorch
        yield "ExecuTorch, XNNPACK", _xnnpack
    if importlib.util.find_spec("openvino") is not None:
        yield "OpenVINO", _onnx


def table() -> Table:
    """What became of each model in each target."""
    rows, seen = [], set[str]()
    for subject in SUBJECTS:
        if subject.form != "float32" or subject.name in seen:
            continue
        seen.add(subject.name)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = export(subject, Path(folder))
            for target, lower in _targets():
                room = Path(folder, target)
                room.mkdir()
                rows.append([subject.name, target, *_row(exported, lower, room)])
    headings = ["model", "target", "answer", "certified", "golden's values matched or covered"]
    how = "Small models with random weights, compared with the eager run; all are sound."
    return Table("exported-targets", headings, rows, how)


def _row(exported: ExportedSubject, lower: Lower, room: Path) -> list[str]:
    try:
        file = lower(exported, room)
    except Exception as error:  # of the exporter
        return [f"not exported: {type(error).__name__}", "", ""]
    (given,) = inputs_from(exported.golden)
    with dumpcmp.capture_exported(file, room / "mine") as model, torch.no_grad():
        model(*given.args, **(given.kwargs or {}))
    (facts,) = dumpcmp.Archive(room / "mine").run.values()
    outcome = dumpcmp.compare(exported.golden, room / "mine")
    answer = outcome.headline.partition(":")[0].partition(" (")[0]
    certified = "yes" if facts["run"]["certificate"]["holds"] else "no"
    return [answer, certified, f"{share_of(outcome):.1%}"]
