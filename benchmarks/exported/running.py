"""Exports a subject, dumps it in torch and in ONNX Runtime, and compares both."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import dumpcmp
from benchmarks.exported.subjects import Subject
from dumpcmp.nouns.outcome import Outcome

_PROVIDERS = ["CPUExecutionProvider"]


@dataclass(frozen=True, slots=True)
class ExportedSubject:
    """A subject on disk: golden's dump, and the file."""

    subject: Subject
    golden: Path
    model: Path


def export(subject: Subject, room: Path) -> ExportedSubject:
    """Write `subject` into `room`: a golden dump, and the model."""
    torch.manual_seed(0)
    model, inputs = subject.build()
    if subject.form == "float16":
        model = model.half()
        inputs = tuple(x.half() if x.is_floating_point() else x for x in inputs)
    with torch.no_grad(), dumpcmp.capture(model, room / "golden"):
        model(*inputs)
    file = room / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if subject.exporter == "dynamo":
            program: Any = torch.onnx.export(
                model, inputs, dynamo=True, verbose=False, opset_version=subject.opset
            )
            program.save(file)
        else:
            torch.onnx.export(model, inputs, str(file), dynamo=False, opset_version=subject.opset)
    if subject.form == "int8":
        from onnxruntime.quantization import quantize_dynamic

        quantised = room / "int8.onnx"
        quantize_dynamic(file, quantised)
        file = quantised
    return ExportedSubject(subject, room / "golden", file)


def dumped(golden: Path, model: Path, path: Path) -> Path:
    """The run of `model` in ONNX Runtime on what golden was given."""
    from dumpcmp.dumping.onnx_runs import inputs_from

    (given,) = inputs_from(golden)
    with dumpcmp.capture_onnx(model, path, overwrite=True) as run, torch.no_grad():
        run.model(*given.args, **(given.kwargs or {}))
    return path


def compared(golden: Path, mine: Path, form: str) -> Outcome:
    """The answer, where int8 is declared for what is quantised."""
    return dumpcmp.compare(golden, mine, allow=["int8"] if form == "int8" else ())


def cost_ratio(exported: ExportedSubject, path: Path) -> float:
    """How much longer a process takes that dumps the model than one that runs it plainly."""
    import onnxruntime

    from dumpcmp.dumping.onnx_runs import inputs_from

    (given,) = inputs_from(exported.golden)

    def plain() -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(exported.model), options, providers=_PROVIDERS)
        names = [each.name for each in session.get_inputs()]
        tensors = [*given.args, *(given.kwargs or {}).values()]
        session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=False)})

    def tapped() -> None:
        dumped(exported.golden, exported.model, path)

    return _seconds(tapped) / _seconds(plain)


def _seconds(run: Any) -> float:
    found = []
    for _ in range(5):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return median(found)
