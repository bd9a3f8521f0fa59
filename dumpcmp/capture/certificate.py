"""Whether tapping changed what ran: kernels and output bits of a tapped and an untapped run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash
from torch import Tensor

from dumpcmp.capture.sources import digest_of

NOT_CERTIFIED = "not certified: no untapped run was made to compare with (dump with --certify)"


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One run of generated code: which code it was, and what it took and gave."""

    code: str  # digest of the code without the tap's lines
    inputs: str
    outputs: str


@dataclass(slots=True)
class Evidence:
    """All runs of generated code in one run of a program, in order."""

    runs: list[GraphRun] = field(default_factory=list)

    def add(self, code: str, inputs: str, outputs: Sequence[Any]) -> None:
        """Note that the code with the digest `code` ran."""
        self.runs.append(GraphRun(code, inputs, digest_of_all(outputs)))


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a comparison of two Evidences says; None where that could not be known."""

    same_kernels: bool | None
    same_bits: bool | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """As run.json holds it."""
        return {
            "same_kernels": self.same_kernels,
            "same_bits": self.same_bits,
            "text": self.text,
        }


def certificate(untapped: Evidence, tapped: Evidence) -> Certificate:
    """Hold the run that was recorded against one that was not."""
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
    changed = sum(a.outputs != b.outputs for a, b in zip(ours, theirs, strict=True))
    return Certificate(kernels, not changed, _text(kernels, changed, tapped))


def _text(kernels: bool, changed: int, tapped: Evidence) -> str:
    num_graphs = len({run.code for run in tapped.runs})
    ran = f"{num_graphs} compiled graphs, run {len(tapped.runs)} times"
    same = "same kernels" if kernels else "other kernels"
    bits = "same bits" if not changed else f"other bits in {changed} runs"
    verdict = "certified" if kernels and not changed else "not certified"
    return f"{verdict}: {same}, {bits} as in an untapped run ({ran})"


def digest_of_all(values: Sequence[Any]) -> str:
    """Digest of the bytes of all tensors in `values`."""
    tensors = [value.detach().cpu() for value in values if isinstance(value, Tensor)]
    return xxhash.xxh3_128_hexdigest("".join(map(digest_of, tensors)).encode())
