"""Whether tapping changed what ran: kernels and output bits of a tapped and an untapped run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import xxhash
from torch import Tensor

from dumpcmp.nouns.spoken import counted
from dumpcmp.taps.recording.sources import digest_of

NOT_CERTIFIED = "not certified: no untapped run was made to compare with (dump with --certify)"


@dataclass(frozen=True, slots=True)
class CodeRun:
    """One run of generated code: which code it was, and what it took and gave."""

    code: str  # digest of the code without the tap's lines
    inputs: str  # digest of all, of the first run alone
    outputs: tuple[str, ...]  # digest of each


CodeRuns = list[CodeRun]  # all of them in one run of a program, in order


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a comparison of two runs says; None where that could not be known."""

    same_kernels: bool | None
    same_bits: bool | None
    text: str


def certificate(untapped: CodeRuns, tapped: CodeRuns, again: CodeRuns) -> Certificate:
    """Hold the run that was recorded against one that was not.

    `again` is a second untapped run: outputs in which the two of them differ, because of atomic
    sums or memory that is never written, say nothing about the tap and are left out.
    """
    if not tapped:
        return Certificate(None, None, "not certified: nothing was compiled")
    kernels = {run.code for run in untapped} == {run.code for run in tapped}
    if [run.inputs for run in untapped[:1]] != [run.inputs for run in tapped[:1]]:
        why = "the two runs began with different inputs; use --seed"
        return Certificate(kernels, None, f"not certified: {why}")
    if len(untapped) != len(tapped):
        counts = f"{len(untapped)} untapped, {len(tapped)} tapped"
        return Certificate(kernels, None, f"not certified: the runs of compiled code are {counts}")
    spared = _differing(untapped, again)
    changed = _differing(untapped, tapped) - spared
    return Certificate(kernels, not changed, _text(kernels, len(changed), len(spared), tapped))


def _differing(one: CodeRuns, other: CodeRuns) -> set[tuple[int, int]]:
    """Which outputs of which runs differ."""
    return {
        (i, j)
        for i, (a, b) in enumerate(zip(one, other, strict=False))
        for j, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=False))
        if x != y
    }


def _text(kernels: bool, num_changed: int, num_spared: int, tapped: CodeRuns) -> str:
    num_graphs = len({run.code for run in tapped})
    num_outputs = sum(len(run.outputs) for run in tapped)
    ran = f"{counted(num_graphs, 'compiled graph')}, {counted(num_outputs, 'output')}"
    if num_spared:
        spared = counted(num_spared, "that differs", "that differ")
        ran += f", without {spared} between untapped runs, too"
    same = "same kernels" if kernels else "other kernels"
    bits = "same bits" if not num_changed else f"other bits in {counted(num_changed, 'output')}"
    verdict = "certified" if kernels and not num_changed else "not certified"
    return f"{verdict}: {same}, {bits} as in an untapped run ({ran})"


def digests_of(values: Iterable[Any]) -> tuple[str, ...]:
    """Digest of the bytes of each tensor in `values`; other values as they are written."""
    return tuple(
        digest_of(value.detach().cpu()) if isinstance(value, Tensor) else repr(value)
        for value in values
    )


def digest_of_all(values: Iterable[Any]) -> str:
    """Digest of the bytes of all tensors in `values`."""
    tensors = digests_of(value for value in values if isinstance(value, Tensor))
    return xxhash.xxh3_128_hexdigest("".join(tensors).encode())
