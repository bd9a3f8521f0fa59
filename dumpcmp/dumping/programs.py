"""Dumps a program: a script or a module with its arguments, or the model of a factory."""

from __future__ import annotations

import importlib.util
import os
import random
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.capturing import Capture, capturing
from dumpcmp.dumping.modes import Compiled, PlainMode, check_mode, parse_mode
from dumpcmp.dumping.retention import Compactor, Retention
from dumpcmp.nouns.errors import CaptureError, CaptureWarning, SelectionError
from dumpcmp.nouns.options import load, readable
from dumpcmp.nouns.selection import Selection, make_tap
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.taps.inductor.certificate import CodeRuns, certificate
from dumpcmp.taps.inductor.compiled import CompiledCapture, untapped_evidence, unwrapped
from dumpcmp.taps.recording.values import Counts


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
    problem: str = ""  # why the archive is not what was asked for
    cost: str = ""  # what the capture took of the program's time, and of the memory
    num_lost: int = 0  # values that were seen and are not in the archive
    nbytes_shared: int = 0  # of those that were counted: stored once, for several tokens

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was recorded."""
        return not self.counts.values


def dump(
    program: Callable[[], object],
    path: str | os.PathLike[str],
    *,
    mode: str | PlainMode = "eager",
    keep: str | Retention = "full",
    dtype: str | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    certify: bool = False,
    watch: Callable[[Capture], None] = lambda _: None,
    **selection: Unpack[Selection],
) -> Dumped:
    """Run `program` under a capture of every model in it.

    `selection` are the filters of `capture`. `watch` is told of the capture when it begins. An
    exception of the program does not come out of here: it is part of what is returned. With
    `certify` the program runs twice before, compiled but not tapped, and the certificate says
    whether the tap changed kernels or bits.
    """
    tap, mode = make_tap(**selection), parse_mode(mode)
    retention = keep if isinstance(keep, Retention) else Retention(keep)
    if certify and not isinstance(mode, Compiled):
        raise SelectionError("--certify is for --mode compiled", hint="leave it out")
    if seed is not None:
        seed_everything(seed)
    check_mode(mode, tap, dtype)
    untapped = untapped_evidence(program) if certify else None
    tapped: CodeRuns = []
    owner = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        with capturing(
            (), path, tap, mode, retention, dtype=dtype, overwrite=overwrite, facts={"seed": seed}
        ) as now:
            watch(now)
            if certify and isinstance(now.mode, CompiledCapture):
                now.mode.tapping.evidence = tapped
            error = error_of(program)
            if os.getpid() != owner:  # a child that the program forked ends as it would
                raise error or SystemExit(0)
            if error is not None:
                now.writer.run["error"] = f"{type(error).__name__}: {error}"
            ended = time.monotonic()
            if untapped is not None:
                first, again = untapped
                now.writer.run["certificate"] = asdict(certificate(first, tapped, again))
    told, beside = now.writer.run, now.compactor or Compactor()
    stopped = now.writer.problem
    return Dumped(
        now.path,
        now.counts,
        tuple(now.remarks()),
        error,
        certificate=told.get("certificate", {}).get("text", ""),
        compacted=beside.said,
        twins=told.get("twins", {}).get("text", ""),
        problem=stopped or beside.trouble,
        cost=cost_of(now, time.monotonic() - ended),
        num_lost=max(0, now.counts.values - len(Archive(now.path))) if stopped else 0,
        nbytes_shared=now.progress.nbytes_shared,
    )


def cost_of(now: Capture, closing: float) -> str:
    """What a capture that has ended cost: bytes, and time that the program waited for them."""
    progress, spent = now.progress, now.counts.seconds
    waited = progress.seconds_waited
    share = f", {waited / spent:.0%} of the {spent:.2f} s that the tokens took" if spent else ""
    again = progress.nbytes_shared
    shared = f" ({readable(again)} of earlier tokens not written again)" if again else ""
    written = f"{readable(progress.nbytes - again)} written{shared}"
    return (
        f"cost: {written}, {waited:.2f} s waited for the disk{share}; "
        f"{closing:.2f} s at the end; buffer {readable(progress.buffer)}"
    )


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, and ask torch for determinism."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


def error_of(program: Callable[[], object]) -> BaseException | None:
    """Run `program`; what it raised, an exit without trouble aside."""
    try:
        program()
    except SystemExit as end:
        return end if end.code else None
    except BaseException as raised:
        return unwrapped(raised)
    return None


def run_script(script: str, arguments: tuple[str, ...]) -> None:
    """Run a file as Python itself would, with `arguments` in sys.argv."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def has_module(module: str) -> bool:
    """Whether ``python -m`` would find the package of `module`; nothing is imported."""
    package, here = module.partition(".")[0], [str(Path.cwd())]
    if not package or package in sys.modules:
        return bool(package)
    found = importlib.util.find_spec(package) or PathFinder.find_spec(package, here)
    return found is not None


def run_module(module: str, arguments: tuple[str, ...]) -> None:
    """Run a module as ``python -m`` would."""
    sys.argv = [module, *arguments]
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def factory_program(name: str, backward: bool = False) -> Callable[[], object]:
    """A program that calls the model which ``pkg.mod:build`` makes on its example inputs."""
    factory = load("--model", name)
    return lambda: _call(*_model_and_inputs(name, factory()), backward)


def built(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model which ``pkg.mod:build`` makes, and what to call it with."""
    return _model_and_inputs(name, load("--model", name)())


def _model_and_inputs(name: str, made: Any) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if isinstance(made, nn.Module):
        made = (made, getattr(made, "example_inputs", None))
    match made:
        case (nn.Module() as model, dict() as kwargs):
            return model, (), kwargs
        case (nn.Module() as model, (*args,)):
            return model, tuple(args), {}
        case (nn.Module() as model, Tensor() as tensor):
            return model, (tensor,), {}
    raise CaptureError(
        f"--model {name} gave {type(made).__name__}, not a model and its inputs",
        hint="return (model, inputs): inputs are a tensor, a tuple, or a dict of keywords",
    )


def _call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], backward: bool) -> None:
    result = model(*args, **kwargs)
    if backward:
        floating = [t for _, t in slots_of("output", result) if t.requires_grad]
        sum(tensor.sum() for tensor in floating).backward()  # type: ignore[union-attr]
