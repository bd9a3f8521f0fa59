"""Dumps a program: a script or a module with its arguments, or the model of a factory."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping import witness
from dumpcmp.dumping.capturing import Capture, capturing
from dumpcmp.dumping.certifying import (
    Certificate,
    CertifiedProgram,
    Testimony,
    certificate,
    check_certifiable,
    differing,
    gathering,
    witness_of,
)
from dumpcmp.dumping.modes import Compiled, PlainMode, check_mode, parse_mode
from dumpcmp.dumping.retention import Compactor, Retention
from dumpcmp.nouns.errors import CaptureError, CaptureWarning
from dumpcmp.nouns.options import load, readable
from dumpcmp.nouns.selection import Selection, make_tap
from dumpcmp.taps.inductor.compiled import unwrapped
from dumpcmp.taps.recording.grafts import Grafts
from dumpcmp.taps.recording.values import Counts


@dataclass(frozen=True, slots=True)
class Dumped:
    """What a dump of a program came to."""

    path: Path
    counts: Counts
    remarks: tuple[str, ...] = ()
    error: BaseException | None = None  # the program's own
    certificate: str = ""  # whether the capture changed what ran
    certified: bool | None = None  # None: nobody asked for a certificate
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
    grafts: Grafts | None = None,
    **selection: Unpack[Selection],
) -> Dumped:
    """Run `program` under a capture of every model in it.

    `selection` are the filters of `capture`. `watch` is told of the capture when it begins. An
    exception of the program does not come out of here: it is part of what is returned. With
    `certify` the program also runs without the capture, and the certificate says whether kernels,
    outputs, gradients, state and stdout are the same.
    """
    tap, mode = make_tap(**selection), parse_mode(mode)
    certify = certify and not mode.certifies_itself
    retention = keep if isinstance(keep, Retention) else Retention(keep)
    if certify:
        check_certifiable(mode, dtype)
    if seed is not None:
        witness.seed_everything(seed)
    check_mode(mode, tap, dtype)
    certifying = _Certifying(program, mode, seed) if certify else None
    owner = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        with capturing(
            (),
            path,
            tap,
            mode,
            retention,
            dtype=dtype,
            overwrite=overwrite,
            facts={"seed": seed, "program": _asked(program)},
            grafts=grafts,
        ) as now:
            watch(now)
            error = certifying.run(now) if certifying else error_of(program)
            if os.getpid() != owner:  # a child that the program forked ends as it would
                raise error or SystemExit(0)
            if error is not None:
                now.writer.run["error"] = f"{type(error).__name__}: {error}"
            if grafts is not None:
                now.writer.run["grafts"] = list(grafts.done.values())
            ended = time.monotonic()
            if certifying is not None:
                now.writer.run["certificate"] = asdict(certifying.conclude())
    told, beside = now.writer.run, now.compactor or Compactor()
    stopped = now.writer.problem
    return Dumped(
        now.path,
        now.counts,
        tuple(now.remarks()),
        error,
        certificate=told.get("certificate", {}).get("text", ""),
        certified=told["certificate"]["holds"] if certify or mode.certifies_itself else None,
        compacted=beside.said,
        twins=told.get("twins", {}).get("text", ""),
        problem=stopped or beside.trouble,
        cost=cost_of(now, time.monotonic() - ended),
        num_lost=max(0, now.counts.values - len(Archive(now.path))) if stopped else 0,
        nbytes_shared=now.progress.nbytes_shared,
    )


def _asked(program: Callable[[], object]) -> str | None:
    return program.asked if isinstance(program, CertifiedProgram) else None


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


class _Certifying:
    """Runs a program without a capture, then with one, and holds the two against each other."""

    def __init__(self, program: Callable[[], object], mode: PlainMode, seed: int | None) -> None:
        self._program = program
        self._witness = witness_of(program, mode, seed)
        self._alone = self._witness()
        self._evidence = witness.WitnessNotes(compiled=isinstance(mode, Compiled))

    def run(self, now: Capture) -> BaseException | None:
        """Run the program, which `now` captures; what it raised."""
        with gathering(self._evidence, now.mode) as tee:
            error = error_of(self._program)
            self._evidence.end(error, tee.written.getvalue())
        return error

    def conclude(self) -> Certificate:
        """The certificate; where the runs differ, the program runs alone once more."""
        captured = Testimony.of(self._evidence.to_json())
        again = self._witness() if differing(self._alone, captured) else None
        return certificate(self._alone, captured, again)


def error_of(program: Callable[[], object]) -> BaseException | None:
    """Run `program`; what it raised, an exit without trouble aside."""
    raised = witness.error_of(program)
    return None if raised is None else unwrapped(raised)


def script_program(script: str, arguments: tuple[str, ...]) -> CertifiedProgram:
    """A file, run as Python itself would."""
    words = ("--kind", "script", script, *arguments)
    return CertifiedProgram(_kept_alive(partial(witness.run_script, script, arguments)), words)


def module_program(module: str, arguments: tuple[str, ...]) -> CertifiedProgram:
    """A module, run as ``python -m`` would."""
    words = ("--kind", "module", module, *arguments)
    return CertifiedProgram(_kept_alive(partial(witness.run_module, module, arguments)), words)


def _kept_alive(run: Callable[[], object]) -> Callable[[], object]:
    """`run`, whose globals live until nobody asks for it any more, as Python's own do.

    So what the program has made is still there when the capture looks at it in the end.
    """
    kept: list[object] = []

    def program() -> None:
        try:
            kept.append(run())
        except BaseException as error:
            kept.append(error.__traceback__)
            raise

    return program


def has_module(module: str) -> bool:
    """Whether ``python -m`` would find the package of `module`; nothing is imported."""
    package, here = module.partition(".")[0], [str(Path.cwd())]
    if not package or package in sys.modules:
        return bool(package)
    found = importlib.util.find_spec(package) or PathFinder.find_spec(package, here)
    return found is not None


def factory_program(name: str, backward: bool = False) -> CertifiedProgram:
    """A program that calls the model which ``pkg.mod:build`` makes on its example inputs."""
    factory = load("--model", name)
    words = (*["--backward"] * backward, "--kind", "factory", name)
    return CertifiedProgram(
        lambda: witness.run_model(*_model_and_inputs(name, factory()), backward), words
    )


def built(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model which ``pkg.mod:build`` makes, and what to call it with."""
    return _model_and_inputs(name, load("--model", name)())


def _model_and_inputs(name: str, made: Any) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    found = witness.model_and_inputs(made)
    if found is None:
        raise CaptureError(
            f"--model {name} gave {type(made).__name__}, not a model and its inputs",
            hint="return (model, inputs): inputs are a tensor, a tuple, or a dict of keywords",
        )
    return found
