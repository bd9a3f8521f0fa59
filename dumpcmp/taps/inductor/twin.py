"""Runs a graph a second time with every op's value stored, and keeps what its kernels vouch for.

A fused kernel never stores most of what it computes. Its twin is the same graph, lowered by the
same compiler, in which every op also stores a copy of its value; it runs on the same inputs,
after the graph itself. What only the twin stores counts as the kernel's own where the twin gives
all that the kernel does store, bit for bit; elsewhere it is dropped.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.taps.inductor.patches import load_code
from dumpcmp.taps.inductor.traced import Place
from dumpcmp.taps.inductor.views import replay
from dumpcmp.taps.recording.sources import digest_of

Put = Callable[[Sequence[Place], Tensor], None]
Call = Callable[[list[Any]], Any]


class Tally:
    """What came of the twins of a run."""

    def __init__(self) -> None:
        self.same = 0  # runs of kernels whose twin gave the same bits
        self.other = 0  # runs of kernels whose twin did not
        self.problems: Counter[str] = Counter()  # why graphs ran without one

    def to_json(self) -> dict[str, Any]:
        """As run.json holds it."""
        told = {"same": self.same, "other": self.other, "problems": dict(self.problems)}
        return {**told, "text": self.words()}

    def words(self) -> str:
        """What it came to, in one line; empty where no twin ran."""
        ran = self.same + self.other
        if not ran:
            return ""
        return f"twins: {self.same} of {ran} runs of fused kernels seen inside, with the same bits"

    def remarks(self) -> list[str]:
        """What the user must hear: which graphs ran without a twin, and why."""
        return [f"{n} runs of graphs had no twin: {why}" for why, n in self.problems.items()]


class TwinGraph:
    """The twin of one piece of generated code, and what is known of both."""

    def __init__(self, table: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
        twin = table["twin"]
        self.problem: str = twin["problem"]
        self.changed: Sequence[int] = twin.get("changed", ())
        self._code, self._constants = twin.get("code", ""), constants
        self.kernels: dict[int, set[str]] = {}  # op -> the kernels that it is computed in
        for kernel, ops in table["kernels"].items():
            for op in ops:
                self.kernels.setdefault(op, set()).add(kernel)
        self.proofs = [name for _, name, _ in table["taps"]]
        self.stored = {kernel: set(names) for kernel, names in table["proofs"].items()}
        self.taps = twin.get("taps", ())
        seen = {p for *_, readings in (*table["taps"], *table["inputs"]) for p in places(readings)}
        self.hidden: dict[Place, int] = {  # what only the twin stores, and the op that computes it
            place: op for op, _, read in self.taps for place in places(read) if place not in seen
        }

    @cached_property
    def call(self) -> Call:
        """The entry of the twin's code, which is compiled now."""
        module = load_code(self._code, self._constants)
        module._dumpcmp = _tap
        call: Call = module.call
        return call


def places(readings: Iterable[Any]) -> Iterator[Place]:
    """All places that the `readings` of a buffer are recorded at."""
    for _, those in readings:
        yield from ((op, slot) for op, slot in those)


class Check:
    """One run of a graph, and of its twin after it."""

    def __init__(self, twin: TwinGraph, wanted: Iterable[Place], put: Put, tally: Tally) -> None:
        self._twin, self._put, self._tally = twin, put, tally
        self._wanted = set(wanted)
        around = (twin.kernels.get(twin.hidden[place], set()) for place in self._wanted)
        kernels = set[str]().union(*around)
        self._open = {k: set(twin.stored[k]) for k in kernels if k in twin.stored}
        self._sound = {k: k in self._open for k in kernels}  # without a proof there is no trust
        self._proofs = set[str]().union(*self._open.values())
        self._prints: dict[str, object] = {}
        self._held: list[tuple[set[str], list[Place], Tensor]] = []
        self._args: list[Any] = []

    def begin(self, args: Sequence[Any]) -> None:
        """Keep the arguments for the twin: of those that the graph writes to, copies."""
        with self._sparing():
            changed = self._twin.changed
            self._args = [_copy(a) if i in changed else a for i, a in enumerate(args)]

    def note(self, number: int, tensor: Tensor) -> None:
        """Remember what the graph itself stores, to hold the twin against."""
        proof = self._twin.proofs[number]
        if proof in self._proofs:
            self._prints[proof] = fingerprint(tensor)

    def end(self) -> None:
        """Run the twin, now that the graph itself has run."""
        outer, _here.check = _here.check, self
        try:
            with self._sparing():
                if not self._twin.problem:
                    self._twin.call(self._args)
        finally:
            _here.check = outer
        self._sound.update(dict.fromkeys(self._open, False))
        self._tally.same += sum(self._sound.values())
        self._tally.other += len(self._sound) - sum(self._sound.values())

    @contextmanager
    def _sparing(self) -> Iterator[None]:
        """Whatever the twin raises is told, and is none of the program's business.

        What the archive raises is: a full disk ends the dump.
        """
        try:
            yield
        except DumpcmpError:
            raise
        except Exception as error:  # of any kind
            first = str(error).partition("\n")[0]
            self._twin.problem = f"it stopped with {type(error).__name__}: {first}"
            self._tally.problems[self._twin.problem] += 1

    def read(self, number: int, tensor: Tensor, sizes: Sequence[int]) -> None:
        """The twin has just stored `tensor`."""
        op, proof, readings = self._twin.taps[number]
        if proof in self._prints:
            self._compare(proof, tensor)
        for steps, those in readings:
            wanted = [p for p in places([(steps, those)]) if p in self._wanted]
            if wanted:
                self._wanted.difference_update(wanted)
                self._hold(self._twin.kernels.get(op, set()), wanted, tensor, steps, sizes)

    def _compare(self, proof: str, tensor: Tensor) -> None:
        agrees = fingerprint(tensor) == self._prints.pop(proof)
        for kernel in [k for k, proofs in self._open.items() if proof in proofs]:
            self._sound[kernel] &= agrees
            self._open[kernel].discard(proof)
            if not self._open[kernel]:
                del self._open[kernel]
        self._release()

    def _hold(
        self, kernels: set[str], wanted: list[Place], tensor: Tensor, steps: Any, sizes: Any
    ) -> None:
        if kernels and all(self._sound.get(k, False) for k in kernels):
            self._held.append((kernels, wanted, replay(tensor, steps, sizes).clone()))
            self._release()

    def _release(self) -> None:
        """Record what is held of kernels that have proved to agree; drop that of others."""
        held, self._held = self._held, []
        for kernels, wanted, value in held:
            if not all(self._sound[k] for k in kernels):
                continue
            if kernels.isdisjoint(self._open):
                self._put(wanted, value)
            else:
                self._held.append((kernels, wanted, value))


class _Here(threading.local):
    check: Check | None = None  # whose twin runs now


_here = _Here()


def _tap(number: int, tensor: Tensor, *sizes: int) -> None:
    if _here.check is not None:
        _here.check.read(number, tensor, sizes)


def _copy(tensor: Tensor) -> Tensor:
    """A copy that lies in memory as `tensor` does, gaps and overlaps included."""
    if not tensor.numel():
        return tensor
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((reach,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.shape, tensor.stride(), 0)


def fingerprint(tensor: Tensor) -> object:
    """What two tensors share only if their elements have the same bits, wherever they lie."""
    facts = tensor.dtype, tuple(tensor.shape)
    if tensor.device.type == "cpu":
        return facts, digest_of(tensor)
    words = tensor.contiguous().view(-1).view(_WORDS[tensor.element_size()]).long()
    weights = torch.arange(words.numel(), device=words.device) * _STEP + 1
    return facts, int((words * (weights ^ (weights >> 29))).sum())


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_STEP = 0x1E3779B97F4A7C15


@contextmanager
def same_randomness() -> Iterator[Callable[[], None]]:
    """Hands out a function that sets the generators back to where they are now.

    At the end they are where they were before it was called.
    """
    states, after = _states(), list[_States]()

    def back() -> None:
        after.append(_states())
        _set_states(states)

    try:
        yield back
    finally:
        if after:
            _set_states(after[0])


_States = tuple[Tensor, list[Tensor]]


def _states() -> _States:
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if used else []


def _set_states(states: _States) -> None:
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])
