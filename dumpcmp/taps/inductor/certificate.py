"""Whether tapping changed what ran: kernels and output bits of a tapped and an untapped run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash
from torch import Tensor

from dumpcmp.taps.recording.sources import digest_of

NOT_CERTIFIED = "not certified: no untapped run was made to compare with (dump with --certify)"


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One run of generated code: which code it was, and what it took and gave."""

    code: str  # digest of the code without the tap's lines
    inputs: str
    outputs: tuple[str, ...]  # digest of each


@dataclass(slots=True)
class GraphRuns:
    """All runs of generated code in one run of a program, in order."""

    runs: list[GraphRun] = field(default_factory=list)

    def add(self, code: str, inputs: str, outputs: Sequence[Any]) -> None:
        """Note that the code with the digest `code` ran."""
        self.runs.append(GraphRun(code, inputs, tuple(_digest(value) for value in outputs)))


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a comparison of two GraphRuns says; None where that could not be known."""

    same_kernels: bool | None
    same_bits: bool | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """As run.json holds it."""
        return asdict(self)


def certificate(
    untapped: GraphRuns, tapped: GraphRuns, again: GraphRuns | None = None
) -> Certificate:
    """Hold the run that was recorded against one that was not.

    `again` is a second untapped run: outputs in which the two of them differ, because of atomic
    sums or memory that is never written, say nothing about the tap and are left out.
    """
    ours, theirs = untapped.runs, tapped.runs
    if not theirs:
        return Certificate(None, None, "not certified: nothing was compiled")
    kernels = {run.code for run in ours} == {run.code for run in theirs}
    if [run.inputs for run in ours][:1] != [run.inputs for run in theirs][:1]:
        return Certificate(
            kernels, None, "not certified: the two runs began with different inputs; use --seed"
        )
    if len(ours) != len(theirs):
        counts = f"{len(ours)} untapped, {len(theirs)} tapped"
        return Certificate(kernels, None, f"not certified: the runs of compiled code are {counts}")
    spared = _differing(untapped, again) if again else set()
    changed = _differing(untapped, tapped) - spared
    return Certificate(kernels, not changed, _text(kernels, len(changed), len(spared), tapped))


def _differing(one: GraphRuns, other: GraphRuns) -> set[tuple[int, int]]:
    """Which outputs of which runs differ."""
    return {
        (i, j)
        for i, (a, b) in enumerate(zip(one.runs, other.runs, strict=False))
        for j, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=False))
        if x != y
    }


def _text(kernels: bool, num_changed: int, num_spared: int, tapped: GraphRuns) -> str:
    num_graphs = len({run.code for run in tapped.runs})
    num_outputs = sum(len(run.outputs) for run in tapped.runs)
    ran = f"{num_graphs} compiled graphs, {num_outputs} outputs"
    if num_spared:
        ran += f", without {num_spared} that differ between untapped runs, too"
    same = "same kernels" if kernels else "other kernels"
    bits = "same bits" if not num_changed else f"other bits in {num_changed} outputs"
    verdict = "certified" if kernels and not num_changed else "not certified"
    return f"{verdict}: {same}, {bits} as in an untapped run ({ran})"


def _digest(value: object) -> str:
    return digest_of(value.detach().cpu()) if isinstance(value, Tensor) else repr(value)


def digest_of_all(values: Sequence[Any]) -> str:
    """Digest of the bytes of all tensors in `values`."""
    tensors = [value.detach().cpu() for value in values if isinstance(value, Tensor)]
    return xxhash.xxh3_128_hexdigest("".join(map(digest_of, tensors)).encode())
