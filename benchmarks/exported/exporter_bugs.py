"""Bugs of torch's own ONNX exporters, which export without a word, and what dumpcmp says of them.

Each was found with torch 2.13 and onnxscript 0.7 by running the exported file beside eager.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from benchmarks.exported.running import dumped, export
from benchmarks.exported.subjects import Built, Subject
from benchmarks.tables import Table

_IMAGE = (1, 2, 8, 8)


class WithOp(nn.Module):
    """An op with layers around it."""

    def __init__(self, op: nn.Module, size: int, made: int) -> None:
        super().__init__()
        self.before, self.op, self.after = nn.Linear(size, size), op, nn.Linear(made, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.after(self.op(self.before(x)))
        return found


class Op(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _divided_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2, divisor_override=3)


def _mean_scattered(x: Tensor) -> Tensor:
    at = torch.tensor([0, 0, 2, 1, 1, 1, 2, 3]).expand_as(x)
    return torch.zeros_like(x).scatter_reduce(-1, at, x, "mean", include_self=False)


def _fully_masked(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool)
    mask[2] = False
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def _normed_by_batch(x: Tensor) -> Tensor:
    return F.batch_norm(x, torch.zeros(8), torch.ones(8), training=True)


def _floor_divided(x: Tensor) -> Tensor:
    return (x * 5) // 2


def _shifted(x: Tensor) -> Tensor:
    return ((x * 50).long() >> 1).float()


def _accumulated(x: Tensor) -> Tensor:
    return torch.zeros_like(x).index_put((torch.tensor([0, 0, 1]),), x[:3], accumulate=True)


def _padded_round(x: Tensor) -> Tensor:
    return F.pad(x[None], (2, -2), mode="circular")[0]


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, beta=2.0, threshold=0.5)


@dataclass(frozen=True, slots=True)
class ExporterBug:
    """One bug: what is exported, by which exporter, and what becomes of it."""

    name: str
    exporter: str
    function: Callable[[Tensor], Tensor]
    shape: tuple[int, ...] = (4, 8)
    made: int = 8  # the last size that the op gives

    def build(self) -> Built:
        model = WithOp(Op(self.function), self.shape[-1], self.made)
        return model.eval(), (torch.randn(self.shape),)


BUGS = [
    ExporterBug("avg_pool2d ignores divisor_override", "dynamo", _divided_pool, _IMAGE, 4),
    ExporterBug("avg_pool2d ignores divisor_override", "script", _divided_pool, _IMAGE, 4),
    ExporterBug("scatter_reduce(mean) without self divides otherwise", "dynamo", _mean_scattered),
    ExporterBug("attention of a row that is masked whole", "dynamo", _fully_masked, (1, 2, 5, 8)),
    ExporterBug("batch_norm(training) takes the running moments", "dynamo", _normed_by_batch),
    ExporterBug("floor division rounds to zero", "script", _floor_divided),
    ExporterBug(">> of negative integers rounds to zero", "script", _shifted),
    ExporterBug("index_put(accumulate) keeps one of several", "script", _accumulated),
    ExporterBug("circular padding by negative sizes", "script", _padded_round),
    ExporterBug("softplus has another threshold", "script", _softplus),
]


def table() -> Table:
    """What dumpcmp says of each bug."""
    rows = []
    for bug in BUGS:
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            opset = 20 if bug.exporter == "dynamo" else 17
            subject = Subject(bug.name, "bug", bug.build, bug.exporter, opset=opset)
            exported = export(subject, room)
            mine = dumped(exported.golden, exported.model, room / "mine")
            outcome = dumpcmp.compare(exported.golden, mine)
        rows.append([bug.name, bug.exporter, outcome.headline.partition(" (")[0],
                     "yes" if "op" in _places(outcome) else "no"])  # fmt: skip
    how = "The op stands in a module `op` between two linear layers, with random weights."
    return Table("onnx-exporter-bugs", ["bug", "exporter", "answer", "at the op"], rows, how)


def _places(outcome: dumpcmp.Outcome) -> set[str]:
    row = outcome.first_divergence
    keys = (row.golden_key, row.target_key) if row is not None else ()
    return {key.op.module for key in keys if key is not None}
