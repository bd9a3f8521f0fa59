"""Captures a model, or whatever runs inside a block or a compiled callable, into an archive."""

from __future__ import annotations

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor, fx, nn

from dumpcmp.archive.write.writer import ArchiveWriter, Progress
from dumpcmp.dumping.modes import Compiled, PlainMode, check_mode, parse_mode, watching
from dumpcmp.dumping.retention import Compactor, Retention, compactor_beside, within_budget
from dumpcmp.dumping.spooling import spooled
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.environment import settings
from dumpcmp.nouns.errors import CaptureWarning, SelectionError
from dumpcmp.nouns.selection import Level, Selection, Tap, make_tap
from dumpcmp.nouns.version import __version__
from dumpcmp.pytorch.backends import shortcuts
from dumpcmp.pytorch.names import check_names
from dumpcmp.taps.distributed.ranks import world
from dumpcmp.taps.modes.graph import GraphBackend
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.grafts import Grafts
from dumpcmp.taps.recording.precision import Precision
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.values import Counts, Weights


class Capture:
    """A capture that is running: what it sees, and where it goes."""

    def __init__(
        self, mode: ModuleCapture, writer: ArchiveWriter, compactor: Compactor | None = None
    ) -> None:
        self.mode = mode
        self.writer = writer
        self.compactor = compactor
        self._began = time.monotonic()
        self.save: Callable[[str, Tensor], None] = mode.save
        if "torch._dynamo" in sys.modules:  # which would trace it; importing it takes seconds
            self.save = torch.compiler.disable(mode.save)  # type: ignore[no-untyped-call]

    @property
    def counts(self) -> Counts:
        return self.mode.recorder.counts

    @property
    def progress(self) -> Progress:
        return self.writer.progress

    @property
    def seconds(self) -> float:
        """Since the capture began."""
        return time.monotonic() - self._began

    @property
    def path(self) -> Path:
        return self.writer.path.parent

    def record_if(self, condition: Callable[[], bool]) -> None:
        """From now on record, and count, a step only where `condition()` is true as it begins."""
        self.mode.recorder.is_open = condition

    def remarks(self) -> list[str]:
        """What the user must hear at the end: filters that matched nothing, an empty dump."""
        recorder = self.mode.recorder
        remarks = recorder.tap.unmatched(recorder.num_steps, recorder.ops)
        if not recorder.num_steps:
            remarks.append("no module was called, so there was nothing to record")
        elif not recorder.counts.values and not remarks:
            remarks.append("the filters together selected nothing of what ran")
        if problem := recorder.stagings.pages.problem:
            remarks.append(
                f"a GPU could not write into the buffer itself, and was slower: {problem}"
            )
        return [*remarks, *recorder.lacking, *self.mode.remarks()]


_active: Capture | None = None


def save(name: str, tensor: Tensor) -> None:
    """Record `tensor` under `name`, if a capture is active; otherwise do nothing."""
    if _active is not None:
        _active.save(name, tensor)


def capture(
    model: nn.Module | None,
    path: str | os.PathLike[str],
    *,
    mode: str | PlainMode = "eager",
    tokens: str | Iterable[int] | None = None,
    layers: str | Sequence[str] | None = None,
    io: str = "all",
    backward: bool = False,
    weights: bool = False,
    level: str = "functions",
    every: int = 1,
    dtype: str | None = None,
    keep: str | Retention = "full",
    sample_rows: int | None = None,
    overwrite: bool = False,
) -> AbstractContextManager[Capture]:
    """Record what `model` does while the block runs; with None, what every model does.

        with dumpcmp.capture(model, "d1", mode="eager", tokens=[0, 1], layers=["layers.*"]):
            model(x)

    `mode` is eager, fx, aten, compiled or boundary, the last two also with their options:
    ``Compiled(realize=True)``, ``Boundary("aot_eager")``. ``keep="summary"`` keeps Summaries
    instead of tensors, and `sample_rows` only so many rows of each; a `Retention` says more of
    that. Nothing of the capture outlives the block, and the archive is closed however it ends.
    """
    return capturing(
        () if model is None else (model,),
        path,
        make_tap(tokens, layers, io, backward, weights, level, every),
        parse_mode(mode),
        _retention(keep, sample_rows),
        dtype=dtype,
        overwrite=overwrite,
    )


def _retention(keep: str | Retention, sample_rows: int | None) -> Retention:
    kept = keep if isinstance(keep, Retention) else Retention(keep)
    return kept if sample_rows is None else replace(kept, sample_rows=sample_rows)


_TOLD_AT_THE_END = (Effect.STATE, Effect.OPTIMIZER, Effect.DATA)  # which not every run records


@contextmanager
def capturing(
    roots: Sequence[nn.Module],
    path: str | os.PathLike[str],
    tap: Tap,
    mode: PlainMode,
    retention: Retention,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    facts: Mapping[str, Any] | None = None,
    grafts: Grafts | None = None,
) -> Iterator[Capture]:
    """Capture `roots`, or all models, while the block runs; run.json says `facts` too.

    Of `grafts` calls give other values than their own.
    """
    precision = Precision(dtype) if dtype else None
    lacking = check_mode(mode, tap, dtype)
    here = world()
    run = {**facts_of(tap, mode, dtype), **(facts or {}), "keep": retention.words()}
    run["effects"] = [one for one in Effect if one not in _TOLD_AT_THE_END]
    spool = spooled(path, here.rank, here.size, overwrite=overwrite, limit=retention.spool_limit)
    if spool.url is not None and retention.compacts:
        raise SelectionError(
            "--compact and --disk-budget are of dumps that stay on this machine",
            hint="give --keep summary, or compact the dump before it is uploaded",
        )
    with (
        ExitStack() as after,  # the compactor and the upload end when the archive is closed
        ArchiveWriter(
            spool.path, rank=here.rank, world_size=here.size, run=run, overwrite=overwrite,
            part_nbytes=retention.part_nbytes, buffer=retention.buffer,
            shares=not retention.compacts,
        ) as out,
    ):  # fmt: skip
        after.enter_context(spool.uploading())
        beside = after.enter_context(compactor_beside(out.path.parent, retention, here.rank))
        recorder = Recorder(within_budget(out, retention, beside), tap, here.rank)
        out.lend_to(recorder.stagings.pages)
        recorder.graph_budget = retention.graph_budget
        recorder.condense, recorder.condense_taped = retention.condensers(beside)
        recorder.lacking = lacking
        recorder.weights, recorder.weigh = weights_kept(tap, mode, retention), retention.weigher()
        taken = watching(mode, recorder, roots)
        taken.precision, taken.grafts = precision, grafts
        with _activated(Capture(taken, out, beside)) as now:
            try:
                yield now
            finally:
                out.run["device"] = device_name()  # the program may begin to use one as it runs


@contextmanager
def _activated(now: Capture) -> Iterator[Capture]:
    global _active
    began = shortcuts()  # the program may set others while it runs
    with now.mode.running():
        _active = now
        try:
            yield now
        finally:
            _active = None
            now.mode.finish()
            remarks = now.remarks()
            now.writer.run |= {
                "seen": asdict(now.counts),
                "remarks": remarks,
                "shortcuts": sorted({*began, *shortcuts()}),
                "effects": [*now.writer.run.get("effects", ()), *now.mode.more_effects()],
                **now.mode.facts(),
            }
    for remark in remarks:
        warnings.warn(remark, CaptureWarning, stacklevel=4)


class DumpingBackend:
    """A torch.compile backend that dumps; it ends with `close`, a with block, or the program."""

    def __init__(self, writer: ArchiveWriter, backend: GraphBackend) -> None:
        self._writer = writer
        self._backend = backend

    def __call__(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return self._backend(graph, example_inputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the archive; graphs that are compiled already run on, unrecorded."""
        self._backend.close()
        self._writer.run |= {
            "seen": asdict(self._backend.recorder.counts),
            "shortcuts": shortcuts(),
            "remarks": self._backend.recorder.lacking,
            **self._backend.facts(),
        }
        self._writer.close()


def fx_backend(
    path: str | os.PathLike[str], *, overwrite: bool = False, **selection: Unpack[Selection]
) -> DumpingBackend:
    """The FX dump as a torch.compile backend; `selection` are the filters of `capture`.

        model = torch.compile(model, backend=dumpcmp.fx_backend("d1"))

    A step is one outermost call of what was compiled. The archive is complete when the backend
    is closed or the program ends.
    """
    return _backend(path, parse_mode("fx"), make_tap(**selection), overwrite)


def compiled_backend(
    path: str | os.PathLike[str],
    *,
    mode: Compiled | None = None,
    overwrite: bool = False,
    **selection: Unpack[Selection],
) -> DumpingBackend:
    """Inductor with its kernels tapped, as a torch.compile backend; otherwise as `fx_backend`.

    model = torch.compile(model, backend=dumpcmp.compiled_backend("d2"))
    """
    return _backend(path, mode or Compiled(), make_tap(**selection), overwrite)


def _backend(
    path: str | os.PathLike[str], mode: PlainMode, tap: Tap, overwrite: bool
) -> DumpingBackend:
    lacking = [*check_mode(mode, tap, None), *check_names("a torch.compile backend")]
    here, run = world(), facts_of(tap, mode, None)
    writer = ArchiveWriter(path, rank=here.rank, world_size=here.size, run=run, overwrite=overwrite)
    recorder = Recorder(writer, tap, here.rank)
    recorder.lacking = lacking
    retention = Retention()
    recorder.weights, recorder.weigh = weights_kept(tap, mode, retention), retention.weigher()
    for said in lacking:
        warnings.warn(said, CaptureWarning, stacklevel=3)
    if not isinstance(mode, Compiled):
        return DumpingBackend(writer, GraphBackend(recorder))
    from dumpcmp.taps.inductor.compiled import CompiledBackend

    return DumpingBackend(writer, CompiledBackend(recorder, **mode.options))


def weights_kept(tap: Tap, mode: PlainMode, retention: Retention) -> Weights:
    """How much is kept of parameters and buffers: all, if functions that take them keep it anyway.

    Of what is given to generated code nobody knows what it was before.
    """
    if tap.weights:
        return Weights.WHOLE
    functions = tap.level is Level.FUNCTIONS and tap.inputs and not isinstance(mode, Compiled)
    return Weights.LIKE_OTHERS if functions or retention.keep == "summary" else Weights.SUMMARY


def device_name() -> str:
    """What the program computes on.

    CUDA is not started for the asking: it has threads, and a child that is forked cannot use it.
    """
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_device_name() if is_used else platform.machine()


def facts_of(tap: Tap, mode: PlainMode, dtype: str | None) -> dict[str, Any]:
    """What run.json says of a run before it begins."""
    return {
        "mode": mode.name,
        "command": list(sys.argv),
        "versions": {
            "dumpcmp": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "environment": settings(),
        "platform": platform.platform(),
        "device": device_name(),
        "num_threads": torch.get_num_threads(),
        "seed": None,
        "initial_seed": torch.initial_seed(),
        "dtype": dtype,
        "follows_weights": True,  # those that change are recorded with the next step
        "filters": {
            "tokens": [[span.start, span.stop - 1] for span in tap.steps] or None,
            "every": tap.every if tap.every > 1 else None,
            "layers": list(tap.layers) or None,
            "io": str(tap.io),
            "backward": tap.backward,
            "weights": tap.weights,
            "level": str(tap.level),
        },
        **mode.facts(),
    }
