"""Table "invariance": ops that depend on the schedule, each by its name, and models as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.tables import Table
from dumpcmp import demo
from dumpcmp.invariance import InvarianceReport, check_invariance
from dumpcmp.invariance.schedules import threads
from tests.invariance.exact_models import IDS, SENSITIVE, Exact


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    found: nn.Module = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=3, **sizes))
    return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a decoder of whole numbers": Exact,
    "the demo's decoder": lambda: demo.build()[0],
    "Llama, 2 layers of 48, float32": llama,
}


def told(report: InvarianceReport, vary: str = "") -> str:
    """What is said of one kind of schedule, or of all."""
    first = [row for kind, row in report.first.items() if vary in ("", kind)]
    said = (f"{row.vary}: {row.op} from {row.schedule} on, {row.reason}" for row in first)
    return "; ".join(said) or report.headline


def table() -> Table:
    rows = []
    with threads(2):
        for sensitive in SENSITIVE:
            model = Exact()
            model.fault = sensitive.fault
            report = check_invariance(model, (IDS,), vary=sensitive.vary)
            what = (sensitive.fault.__doc__ or "").rstrip(".")
            rows.append([f"{sensitive.vary}: {what}", told(report, sensitive.vary)])
        for name, build in MODELS.items():
            report = check_invariance(build(), (torch.arange(60).reshape(5, 12) % 32,))
            num_rows = sum(row.num_rows for row in report.rows)
            unpaired = sum(row.num_unpaired for row in report.rows)
            rows.append([name, f"{told(report)} ({num_rows} pairs of rows, {unpaired} unpaired)"])
    return Table("invariance", ["what runs", "what is said"], rows, HOW)


HOW = (
    "Each fault is planted in an addition behind a linear layer of a small decoder in which all "
    "numbers are whole, so that no order of sums changes a bit. Below, models as they are, by all "
    "schedules, on two threads of a CPU."
)
