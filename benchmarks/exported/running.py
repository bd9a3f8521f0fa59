"""Exports a subject, dumps it in torch and in ONNX Runtime, and compares both."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import dumpcmp
from benchmarks.exported.subjects import Subject
from dumpcmp.nouns.outcome import Outcome

_PROVIDERS = ["CPUExecutionProvider"]
_TURNS = 7


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


def dumped(golden: Path, model: Path, path: Path, libraries: tuple[str, ...] = ()) -> Path:
    """The run of `model` in ONNX Runtime on what golden was given."""
    from dumpcmp.dumping.model_inputs import inputs_from

    (given,) = inputs_from(golden)
    settings = dumpcmp.OnnxSettings(libraries=libraries)
    with (
        dumpcmp.capture_onnx(model, path, settings=settings, overwrite=True) as run,
        torch.no_grad(),
    ):
        run.model(*given.args, **(given.kwargs or {}))
    return path


def compared(golden: Path, mine: Path, form: str) -> Outcome:
    """The answer, where int8 is declared for what is quantised."""
    return dumpcmp.compare(golden, mine, allow=["int8"] if form == "int8" else ())


@dataclass(frozen=True, slots=True)
class DumpCost:
    """How long it takes to load and dump a model, and to load and run it plainly."""

    dump_seconds: float
    plain_seconds: float

    @property
    def ratio(self) -> float:
        return self.dump_seconds / self.plain_seconds


def cost_of(exported: ExportedSubject, path: Path) -> DumpCost:
    """What a dump to a new path near `path` costs; both ways to run take turns."""
    import onnxruntime

    from dumpcmp.dumping.model_inputs import inputs_from

    (given,) = inputs_from(exported.golden)

    def plain() -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(exported.model), options, providers=_PROVIDERS)
        names = [each.name for each in session.get_inputs()]
        tensors = [*given.args, *(given.kwargs or {}).values()]
        session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=False)})

    tapped_seconds, plain_seconds = [], []
    for turn in range(_TURNS):
        plain_seconds.append(_seconds(plain))
        place = path.with_name(f"{path.name}-{turn}")
        tapped_seconds.append(_seconds(partial(dumped, exported.golden, exported.model, place)))
        shutil.rmtree(place)
    return DumpCost(median(tapped_seconds), median(plain_seconds))


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
