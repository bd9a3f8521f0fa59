"""What checking a program while it runs costs a step, and whether it is silent on sound models."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

import dumpcmp
from benchmarks.tables import Table
from benchmarks.truth.models import MODELS, Inputs, Model
from dumpcmp.nouns.row import Verdict

NAMES = ("Llama", "BERT", "ViT", "MoE decoder", "U-Net", "LSTM and gates", "state space")
ROUNDS = 3

Around = Callable[[nn.Module], AbstractContextManager[object]]
WAYS: dict[str, Around] = {
    "no check": lambda _: nullcontext(),
    "every op": lambda model: dumpcmp.check(model),
    "--every 10": lambda model: dumpcmp.check(model, every=10),
    "one --layer": lambda model: dumpcmp.check(model, layers=_one_layer(model)),
}


def _one_layer(model: nn.Module) -> str:
    """The first module in a list, and all in it."""
    numbered = (name for name, _ in model.named_modules() if name.rpartition(".")[2] == "0")
    return f"{next(numbered, next(name for name, _ in model.named_children()))}*"


def seconds(around: Around, step: Callable[[], None], model: nn.Module) -> float:
    """The median of the process's seconds in a step."""
    found = []
    for _ in range(ROUNDS + 1):  # the first is not counted
        with around(model):
            began = time.process_time()
            step()
            found.append(time.process_time() - began)
    return statistics.median(found[1:])


def rows() -> Iterator[list[str]]:
    for name in NAMES:
        for dtype in ("float32", "bfloat16"):
            yield row(MODELS[name], dtype)


def row(subject: Model, dtype: str) -> list[str]:
    model, inputs = subject.made(dtype), subject.given(dtype)

    def step() -> None:
        subject.step(model, inputs, backward=True)
        model.zero_grad()

    times = {way: seconds(around, step, model) for way, around in WAYS.items()}
    plain = times["no check"]
    cells = [f"{1e3 * plain:.0f} ms", *(f"{t / plain:.1f} x" for t in list(times.values())[1:])]
    found = [subject.name, dtype, *cells, *_said(subject, model, inputs)]
    print("| " + " | ".join(found) + " |", file=sys.stderr, flush=True)
    return found


def _said(subject: Model, model: nn.Module, inputs: Inputs) -> tuple[str, str, str]:
    with dumpcmp.check(model) as checkup:
        subject.step(model, inputs, backward=True)
    tally = checkup.tally
    return str(tally[Verdict.PASS]), str(tally[Verdict.FAIL]), str(tally[Verdict.INCONCLUSIVE])


def table() -> Table:
    torch.set_num_threads(1)
    how = (
        "Seconds of the process in one forward and backward pass, one thread, median of "
        f"{ROUNDS}; values that were found right, wrong, and that could not be checked. The models "
        "are small, so that most of a step is overhead: larger ones pay for float64 instead. "
        f"torch {torch.__version__}."
    )
    headings = ["model", "dtype", *WAYS, "right", "wrong", "not checked"]
    return Table("check", headings, list(rows()), how)
