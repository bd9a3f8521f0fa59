"""Dump a run: capture a program, a model, or whatever runs inside a block, into an archive."""

from __future__ import annotations

import os
import platform
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, fx, nn

from dumpcmp.archive.write.writer import ArchiveWriter, Progress
from dumpcmp.dumping.retention import Compactor, Keeping, compacting, within_budget
from dumpcmp.nouns.errors import CaptureWarning, SelectionError
from dumpcmp.nouns.selection import Tap, make_tap
from dumpcmp.nouns.version import __version__
from dumpcmp.pytorch.names import check_names
from dumpcmp.taps.distributed.ranks import world
from dumpcmp.taps.inductor.certificate import NOT_CERTIFIED, Evidence, certificate
from dumpcmp.taps.inductor.compiled import CompiledBackend, untapped_evidence, unwrapped
from dumpcmp.taps.modes.graph_backend import GraphBackend
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.precision import Precision
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.values import Counts

MODES = {  # where each is; it is imported once the names of torch that it needs are there
    "eager": "dumpcmp.taps.modes.modules:ModuleCapture",
    "fx": "dumpcmp.taps.modes.graph:GraphCapture",
    "aten": "dumpcmp.taps.modes.aten:AtenCapture",
    "compiled": "dumpcmp.taps.inductor.compiled:CompiledCapture",
    "boundary": "dumpcmp.taps.modes.boundary:BoundaryCapture",
}


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
        """What has been seen so far."""
        return self.mode.recorder.counts

    @property
    def progress(self) -> Progress:
        """How far the archive has come."""
        return self.writer.progress

    @property
    def seconds(self) -> float:
        """Since the capture began."""
        return time.monotonic() - self._began

    @property
    def path(self) -> Path:
        """The archive's directory."""
        return self.writer.path.parent

    def remarks(self) -> list[str]:
        """What the user must hear at the end: filters that matched nothing, an empty dump."""
        recorder = self.mode.recorder
        remarks = recorder.tap.unmatched(recorder.num_steps, recorder.ops)
        if not recorder.num_steps:
            remarks.append("no module was called, so there was nothing to record")
        elif not recorder.counts.values and not remarks:
            remarks.append("the filters together selected nothing of what ran")
        return [*remarks, *recorder.lacking, *self.mode.remarks()]


_active: Capture | None = None


def save(name: str, tensor: Tensor) -> None:
    """Record `tensor` under `name`, if a capture is active; otherwise do nothing."""
    if _active is not None:
        _active.save(name, tensor)


@contextmanager
def capture(
    model: nn.Module | None,
    path: str | os.PathLike[str],
    *,
    mode: str = "eager",
    tokens: str | Iterable[int] | None = None,
    layers: str | Sequence[str] | None = None,
    io: str = "all",
    backward: bool = False,
    weights: bool = False,
    level: str = "functions",
    dtype: str | None = None,
    overwrite: bool = False,
    fusion: bool = True,
    realize: bool = False,
    twin: bool = True,
    backend: str | Callable[..., Any] | None = None,
    evidence: Evidence | None = None,
    keep: str = "full",
    compact: bool = False,
    keep_full: Sequence[str] = (),
    sketch: int = 512,
    hashes: int = 1,
    segments: int = 0,
    reduce: str | None = None,
    disk_budget: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[Capture]:
    """Record what `model` does while the block runs; with None, what every model does.

        with dumpcmp.capture(model, "d1", mode="eager", tokens=[0, 1], layers=["layers.*"]):
            model(x)

    Nothing of the capture outlives the block, and the archive is closed however it ends.
    ``keep="summary"`` keeps Summaries instead of tensors; `compact` has a process beside the run
    replace finished tensors by them, all, or the oldest ones that exceed `disk_budget` bytes.
    `fusion`, `realize` and `twin` are of ``mode="compiled"``, `backend` of ``mode="boundary"``.
    """
    tap = make_tap(tokens, layers, io, backward, weights, level)
    precision = Precision(dtype) if dtype else None
    running_mode, lacking = mode_named(mode, tap, dtype)
    way = mode_options(mode, fusion, realize, twin, backend)
    here = world()
    run = {**facts_of(tap, mode, dtype), **facts_of_mode(mode, way), **(facts or {})}
    if evidence is not None:
        way["evidence"] = evidence
    whole = tuple(keep_full)
    keeping = Keeping(keep, compact, whole, sketch, reduce, disk_budget, hashes, segments)
    run["keep"] = keeping.words()
    with (
        ExitStack() as after,  # the compactor ends when the archive is closed
        ArchiveWriter(
            path, rank=here.rank, world_size=here.size, run=run, overwrite=overwrite,
            part_nbytes=keeping.part_nbytes,
        ) as out,
    ):  # fmt: skip
        beside = after.enter_context(compacting(out.path.parent, keeping, here.rank))
        recorder = Recorder(within_budget(out, keeping, beside), tap, here.rank)
        recorder.condense, recorder.lacking = keeping.condenser(), lacking
        taken = running_mode(recorder, () if model is None else (model,), **way)
        taken.precision = precision
        with _activated(Capture(taken, out, beside)) as now:
            yield now


class FxBackend:
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
        self._writer.run |= {"seen": seen(self._backend.recorder.counts), **self._backend.facts()}
        self._writer.close()


def fx_backend(
    path: str | os.PathLike[str], *, overwrite: bool = False, **selection: Any
) -> FxBackend:
    """The FX dump as a torch.compile backend; `selection` are the filters of `capture`.

        model = torch.compile(model, backend=dumpcmp.fx_backend("d1"))

    A step is one outermost call of what was compiled. The archive is complete when the backend
    is closed or the program ends.
    """
    tap, here = make_tap(**selection), world()
    check_names("every mode", "--mode fx", "a torch.compile backend")
    run = facts_of(tap, "fx", None)
    writer = ArchiveWriter(path, rank=here.rank, world_size=here.size, run=run, overwrite=overwrite)
    return FxBackend(writer, GraphBackend(Recorder(writer, tap, here.rank)))


def compiled_backend(
    path: str | os.PathLike[str],
    *,
    fusion: bool = True,
    realize: bool = False,
    twin: bool = True,
    overwrite: bool = False,
    **selection: Any,
) -> FxBackend:
    """Inductor with its kernels tapped, as a torch.compile backend; otherwise as `fx_backend`.

    model = torch.compile(model, backend=dumpcmp.compiled_backend("d2"))
    """
    tap, here = make_tap(**selection), world()
    check_names("every mode", "--mode compiled", "a torch.compile backend")
    way = mode_options("compiled", fusion, realize, twin, None)
    run = {**facts_of(tap, "compiled", None), **facts_of_mode("compiled", way)}
    writer = ArchiveWriter(path, rank=here.rank, world_size=here.size, run=run, overwrite=overwrite)
    return FxBackend(writer, CompiledBackend(Recorder(writer, tap, here.rank), **way))


@contextmanager
def _activated(now: Capture) -> Iterator[Capture]:
    global _active
    with now.mode.running():
        _active = now
        try:
            yield now
        finally:
            _active = None
            remarks = now.remarks()
            now.writer.run |= {"seen": seen(now.counts), "remarks": remarks, **now.mode.facts()}
    for remark in remarks:
        warnings.warn(remark, CaptureWarning, stacklevel=4)


def seen(counts: Counts) -> dict[str, int]:
    """The counts as run.json holds them."""
    return {
        "steps": counts.steps,
        "calls": counts.calls,
        "values": counts.values,
        "links": counts.links,
        "nbytes": counts.nbytes,
    }


def mode_named(
    name: str, tap: Tap, dtype: str | None
) -> tuple[Callable[..., ModuleCapture], list[str]]:
    """The way of capturing that is called `name`, and what it lacks in this torch."""
    if name not in MODES:
        raise SelectionError(f"--mode {name!r} is not known", hint=f"valid are: {', '.join(MODES)}")
    asked = {"--backward": tap.backward, "--dtype": dtype is not None}
    users = [user for user, is_asked in asked.items() if is_asked]
    lacking = check_names("every mode", f"--mode {name}", *users)
    module, _, kind = MODES[name].partition(":")
    return getattr(import_module(module), kind), lacking


def mode_options(
    mode: str, fusion: bool, realize: bool, twin: bool, backend: str | Callable[..., Any] | None
) -> dict[str, Any]:
    """The options that belong to `mode`; the others must have been left alone."""
    if mode != "compiled" and (realize or not fusion or not twin):
        option = "--realize" if realize else "--no-twin" if fusion else "--fusion off"
        raise SelectionError(f"{option} says nothing to --mode {mode}", hint="use --mode compiled")
    if mode == "boundary" and backend is None:
        raise SelectionError("--mode boundary needs a backend", hint="add --backend aot_eager")
    if mode != "boundary" and backend is not None:
        raise SelectionError("--backend is for --mode boundary", hint="use --mode boundary")
    if mode == "compiled":
        return {"fusion": fusion, "realize": realize, "twin": twin and fusion and not realize}
    return {"backend": backend} if mode == "boundary" else {}


def facts_of_mode(mode: str, way: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says of how a compiled run was compiled."""
    facts: dict[str, Any] = {word: value for word, value in way.items() if word != "evidence"}
    if mode == "compiled":
        facts["certificate"] = {"text": NOT_CERTIFIED}
    return facts


def facts_of(tap: Tap, mode: str, dtype: str | None) -> dict[str, Any]:
    """What run.json says of a run before it begins."""
    cuda = torch.cuda.is_available()
    return {
        "mode": mode,
        "command": list(sys.argv),
        "versions": {
            "dumpcmp": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "num_threads": torch.get_num_threads(),
        "seed": None,
        "initial_seed": torch.initial_seed(),
        "dtype": dtype,
        "filters": {
            "tokens": [[span.start, span.stop - 1] for span in tap.steps] or None,
            "layers": list(tap.layers) or None,
            "io": str(tap.io),
            "backward": tap.backward,
            "weights": tap.weights,
            "level": str(tap.level),
        },
    }


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, and ask torch for determinism."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


@dataclass(frozen=True, slots=True)
class Dumped:
    """What a dump of a program came to."""

    path: Path
    counts: Counts
    remarks: tuple[str, ...] = ()
    error: BaseException | None = None  # the program's own
    certificate: str = ""  # of a compiled run: whether the tap changed it
    compacted: str = ""  # what the compactor beside the run came to
    twins: str = ""  # of a compiled run: how much of its kernels was seen inside

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was recorded."""
        return not self.counts.values


def dump(
    program: Callable[[], object],
    path: str | os.PathLike[str],
    *,
    seed: int | None = None,
    watch: Callable[[Capture], None] = lambda _: None,
    certify: bool = False,
    **selection: Any,
) -> Dumped:
    """Run `program` under a capture of every model in it.

    `selection` are the filters of `capture`. `watch` is told of the capture when it begins. An
    exception of the program does not come out of here: it is part of what is returned. With
    `certify` the program runs twice before, compiled but not tapped, and the certificate says
    whether the tap changed kernels or bits.
    """
    if certify and selection.get("mode") != "compiled":
        raise SelectionError("--certify is for --mode compiled", hint="leave it out")
    if seed is not None:
        seed_everything(seed)
    untapped = untapped_evidence(program) if certify else None
    evidence = Evidence() if certify else None
    error: BaseException | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        facts = {"seed": seed}
        with capture(None, path, facts=facts, evidence=evidence, **selection) as now:
            watch(now)
            try:
                program()
            except SystemExit as end:
                error = end if end.code else None
            except BaseException as raised:
                error = unwrapped(raised)
            if error is not None:
                now.writer.run["error"] = f"{type(error).__name__}: {error}"
            if untapped is not None and evidence is not None:
                stated = certificate(untapped[0], evidence, again=untapped[1])
                now.writer.run["certificate"] = stated.to_json()
    certified = now.writer.run.get("certificate", {}).get("text", "")
    compacted = now.compactor.said if now.compactor else ""
    twins = now.writer.run.get("twins", {}).get("text", "")
    return Dumped(now.path, now.counts, tuple(now.remarks()), error, certified, compacted, twins)
