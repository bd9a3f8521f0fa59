"""Whether a capture changed what ran: its evidence against that of a run without dumpcmp."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from dumpcmp.dumping import witness
from dumpcmp.dumping.modes import Compiled, PlainMode
from dumpcmp.dumping.witness import WitnessNote, WitnessNotes
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.pytorch.randomness import Randomness
from dumpcmp.taps.inductor.compiled import CompiledCapture
from dumpcmp.taps.inductor.tables import own_code
from dumpcmp.taps.modes.callables import once_dynamo_is_there

# What findings are called where they are counted: one of them, and several.
_NOUNS = {
    witness.KERNEL: ("kernel", "kernels"),
    witness.BINARY: ("binary", "binaries"),
    witness.OUTPUT: ("output", "outputs"),
    witness.GRADIENT: ("gradient", "gradients"),
    witness.STATE: ("tensor of the final state", "tensors of the final state"),
    witness.STDOUT: ("stdout", "stdout"),
}
_RESULTS = (witness.OUTPUT, witness.GRADIENT, witness.STATE)

NotePlace = tuple[str, str]  # kind and label of a finding


_ASKS_FOR = {"script": (), "module": ("-m",), "factory": ("--model",)}  # by kinds of programs


@dataclass(frozen=True, slots=True)
class CertifiedProgram:
    """What the command line asks to run, and how the witness is told of it."""

    run: Callable[[], object]
    words: tuple[str, ...]  # of the witness

    def __call__(self) -> object:
        return self.run()

    @property
    def asked(self) -> str:
        """What asks for it on a command line."""
        at = self.words.index("--kind")
        kind, name, *arguments = self.words[at + 1 :]
        return shlex.join([*self.words[:at], *_ASKS_FOR[kind], name, *arguments])


@dataclass(frozen=True, slots=True)
class Testimony:
    """What is known of one run; or the `problem` why nothing is."""

    findings: tuple[WitnessNote, ...] = ()
    num_codes: int = 0
    is_repeated: bool = True  # False: CUDA graphs replayed what nobody could look at
    problem: str = ""

    @classmethod
    def of(cls, told: dict[str, Any]) -> Testimony:
        findings = tuple((kind, label, digest) for kind, label, digest in told.pop("findings"))
        return cls(findings, **told)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether all that was compared is what it is without a capture."""

    holds: bool
    text: str
    compared: dict[str, int] = field(default_factory=dict)


def certificate(alone: Testimony, captured: Testimony, again: Testimony | None) -> Certificate:
    """Hold the captured run against one `alone`.

    `again` is a second run alone, needed where the first differs: what differs between these two
    says nothing about the capture, and is left out.
    """
    for side in filter(None, (alone, captured, again)):
        if side.problem:
            return Certificate(False, f"not certified: {side.problem}")
    unseen = not (alone.is_repeated and captured.is_repeated)
    left_out = set(places_unseen(alone, captured)) if unseen else set[NotePlace]()
    left_out |= {(kind, label) for kind, label, digest in captured.findings
                 if digest == witness.UNWRITTEN}  # fmt: skip
    varies = set(differing(alone, again)) - left_out if again is not None else set[NotePlace]()
    changed = [place for place in differing(alone, captured) if place not in left_out | varies]
    known = {place for place in _digests(alone) if place not in left_out | varies}
    counts = Counter(kind for kind, _ in known)
    compared = {kind: counts[kind] for kind in _NOUNS if counts[kind]}
    if changed:
        return Certificate(
            False, f"not certified: {_difference(changed, alone, captured)}", compared
        )
    begins_anew = any(kind in (witness.START, witness.ENDING) for kind, _ in varies)
    has_code = counts[witness.KERNEL] or not any(kind == witness.KERNEL for kind, _ in varies)
    if begins_anew or not has_code or not (unseen or any(counts[kind] for kind in _RESULTS)):
        return Certificate(False, _NOTHING if not varies else _VARIES, compared)
    return Certificate(True, _text(compared, len(varies), unseen), compared)


_NOTHING = "not certified: no module was called, and nothing was compiled"
_VARIES = (
    "not certified: the program itself is not deterministic: two runs without dumpcmp begin with "
    "different numbers, end differently, or have no kernel or no result in common; use --seed"
)


def differing(one: Testimony, other: Testimony) -> list[NotePlace]:
    """What differs, or is in one of them alone, in the order in which it came."""
    ours, theirs = _digests(one), _digests(other)
    return [place for place in ours | theirs if ours.get(place) != theirs.get(place)]


def _digests(side: Testimony) -> dict[NotePlace, str]:
    return {(kind, label): digest for kind, label, digest in side.findings}


def places_unseen(*sides: Testimony) -> Iterator[NotePlace]:
    """What is known of runs of code, if some of them could not be looked at."""
    for side in sides:
        for kind, label, _ in side.findings:
            if kind in (*_RESULTS, witness.START):
                yield kind, label


def _difference(changed: list[NotePlace], alone: Testimony, captured: Testimony) -> str:
    """The first difference, the code before what it computed."""
    ours, theirs = _digests(alone), _digests(captured)
    place = kind, label = min(changed, key=lambda each: _told_first(each, ours, theirs))
    if kind == witness.START and place in ours and place in theirs:
        return f"the runs began with different numbers ({label}); use --seed"
    if kind == witness.ENDING:
        return (
            f"the program ended with {theirs[place] or 'no error'}, and with "
            f"{ours[place] or 'no error'} without dumpcmp"
        )
    if place not in theirs:
        instead = [name for k, name in changed if k == kind and (k, name) not in ours]
        there = f", which has {instead[0]} instead" if instead else ""
        return f"{kind} {label} is not in the captured run{there}"
    if place not in ours:
        return f"{kind} {label} is not in the program's run without dumpcmp"
    return f"{kind} {label} is not what it is without dumpcmp"


def _told_first(
    place: NotePlace, ours: Mapping[NotePlace, str], theirs: Mapping[NotePlace, str]
) -> tuple[bool, int]:
    """Numbers that a run began with say nothing if the other did not come so far."""
    is_begun = place in ours and place in theirs
    return place[0] == witness.START and not is_begun, _ORDER.index(place[0])


_ORDER = (
    witness.START, witness.ENDING, witness.KERNEL, witness.CALLS, witness.BINARY, witness.OUTPUT,
    witness.GRADIENT, witness.STATE, witness.STDOUT,
)  # fmt: skip


def _text(compared: dict[str, int], num_varying: int, unseen: bool) -> str:
    said = [
        noun[n > 1] if kind == witness.STDOUT else f"{n} {noun[n > 1]}"
        for kind, n in compared.items()
        for noun in [_NOUNS[kind]]
    ]
    listed = " and ".join(filter(None, [", ".join(said[:-1]), said[-1]]))
    text = f"certified: {listed} as in a run without dumpcmp"
    if num_varying:
        text += f"; without {num_varying} that differ between two such runs: the program itself "
        text += "is not deterministic there"
    if unseen:
        text += "; what CUDA graphs replay was not compared"
    return text


# Runs without a capture


def check_certifiable(mode: PlainMode, dtype: str | None) -> None:
    """Refuse what no run without dumpcmp can be compared with."""
    if mode.name == "boundary":
        raise SelectionError("--certify is not for --mode boundary", hint="leave it out")
    if dtype is not None:
        raise SelectionError(
            "--dtype runs the program in another precision: there is nothing to certify",
            hint="leave --certify or --dtype out",
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SelectionError(
            "--certify runs the program again, which the ranks of one launch cannot do",
            hint="certify the program on a single rank",
        )


def witness_of(
    program: Callable[[], object], mode: PlainMode, seed: int | None
) -> Callable[[], Testimony]:
    """What runs `program` without a capture each time that it is called.

    What the command line names runs in a process of its own. A function runs in this one, before
    the capture begins: twice at once, since nothing may run then.
    """
    compiled = isinstance(mode, Compiled)
    if not isinstance(program, CertifiedProgram):
        runs = iter(_in_this_process(program, compiled))
        return lambda: next(runs)
    alone = _OtherProcess(program, compiled, seed)
    return alone.run


class _OtherProcess:
    """The same command in processes of their own."""

    def __init__(self, program: CertifiedProgram, compiled: bool, seed: int | None) -> None:
        self._program, self._compiled, self._seed = program, compiled, seed
        self._compiles_roots = False  # the program compiles nothing: so the capture does

    def run(self) -> Testimony:
        """What came of it."""
        found = self._run_once()
        if (
            self._compiled
            and not found.problem
            and not found.num_codes
            and not self._compiles_roots
        ):
            self._compiles_roots = True
            found = self._run_once()
        return found

    def _run_once(self) -> Testimony:
        with TemporaryDirectory(prefix="dumpcmp-") as room:
            report = Path(room, "report.json")
            ran = subprocess.run(
                self._command(report), env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
            if not report.exists():
                last = ran.stderr.strip().rpartition("\n")[2] or "no message"
                said = f"the run without dumpcmp stopped with exit code {ran.returncode}: {last}"
                return Testimony(problem=said)
            return Testimony.of(json.loads(report.read_text()))

    def _command(self, report: Path) -> list[str]:
        flags = {
            "--compiled": self._compiled,
            "--compile-roots": self._compiles_roots,
            "--terminal": sys.stdout.isatty(),
        }
        words = [sys.executable, str(Path(witness.__file__)), "--report", str(report)]
        words += [flag for flag, is_on in flags.items() if is_on]
        words += [] if self._seed is None else ["--seed", str(self._seed)]
        return [*words, *self._program.words]

    def _environment(self) -> dict[str, str]:
        eager = {} if self._compiled else {"TORCHDYNAMO_DISABLE": "1"}  # as in the capture
        return {**os.environ, **eager}


def _in_this_process(program: Callable[[], object], compiled: bool) -> list[Testimony]:
    """Run `program` twice, from the same random state."""
    found = [_run_here(program, compiled, False)]
    compiles_roots = compiled and not found[0].num_codes
    if compiles_roots:
        found = []
    while len(found) < 2:
        found.append(_run_here(program, compiled, compiles_roots))
    return found


def _run_here(program: Callable[[], object], compiled: bool, compiles_roots: bool) -> Testimony:
    evidence = WitnessNotes(compiled=compiled, compiles_roots=compiles_roots)
    start = Randomness.now()
    with ExitStack() as ends:
        ends.callback(start.restore)
        if compiled:
            torch._dynamo.reset()
            ends.callback(torch._dynamo.reset)
        else:
            ends.enter_context(_eagerly())
        tee = ends.enter_context(witness.stdout_kept())
        ends.enter_context(witness.alone(evidence))
        error = witness.error_of(program)
        evidence.end(error, tee.written.getvalue())
    return Testimony.of(evidence.to_json())


@contextmanager
def _eagerly() -> Iterator[None]:
    """Compiled callables run eagerly, as they do in the capture."""
    with ExitStack() as ends:
        eager: Any = torch.compiler.set_stance
        ends.enter_context(once_dynamo_is_there(lambda: ends.enter_context(eager("force_eager"))))
        yield


# The captured run


@contextmanager
def gathering(evidence: WitnessNotes, taken: object) -> Iterator[witness.Tee]:
    """Have `evidence` gathered of a run that is being captured by `taken`."""
    with ExitStack() as ends:
        if isinstance(taken, CompiledCapture):
            taken.tapping.evidence = evidence
            ends.enter_context(witness.code_loads(evidence, own_code, watches_runs=False))
        else:
            ends.enter_context(witness.module_calls(evidence))
        yield ends.enter_context(witness.stdout_kept())
