"""Quantised layers ranked by what they cost: a graft on archives beside runs that leave one out."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import dumpcmp
from benchmarks.quantised import SCHEMES, Scheme, decoder, dumped, quantised, trained
from benchmarks.tables import Table
from dumpcmp.grafting import GraftReport, graft_all

NAMES = (
    "int8 weights, by rows", "int4 weights, by groups", "int8 weights and inputs",
    "int8 and back, weights and inputs", "fp8 inside of a function",
)  # fmt: skip


def linears(model: nn.Module) -> list[str]:
    return [name for name, one in model.named_modules() if isinstance(one, nn.Linear)]


def logits(model: nn.Module, given: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        result = model(**given)
    found: Tensor = result if isinstance(result, Tensor) else result[0]
    return found.double()


def apart(golden: Tensor, other: Tensor) -> float:
    return float((other - golden).norm() / golden.norm())


def left_out(model: nn.Module, scheme: Scheme, given: dict[str, Any]) -> dict[str, float]:
    """How much of the logits' error goes away, by run, if one layer is not quantised."""
    golden, whole = logits(model, given), quantised(model, scheme)
    total = apart(golden, logits(whole, given))
    found: dict[str, float] = {}
    for name in linears(model):
        other = copy.deepcopy(whole)
        parent, _, last = name.rpartition(".")
        setattr(other.get_submodule(parent), last, model.get_submodule(name))
        found[name] = 1 - apart(golden, logits(other, given)) / total
    return found


def by_layer(report: GraftReport, layers: list[str]) -> dict[str, float]:
    """What goes away with all roots of a layer put right."""
    found = dict.fromkeys(layers, 0.0)
    for root in report.roots:
        for name in layers:
            if root.op == name or root.op.startswith((f"{name}.", f"{name}/")):
                found[name] += root.gone
    return found


def spearman(one: dict[str, float], other: dict[str, float]) -> float:
    ranks = [pd.Series([each[name] for name in one]).rank() for each in (one, other)]
    return float(ranks[0].corr(ranks[1]))


def models() -> Iterator[tuple[str, nn.Module, dict[str, Any]]]:
    """Ours, and two of transformers."""
    import transformers as tf

    subject = decoder()
    yield "decoder, 9 layers", subject.build(), dict(subject.given)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 4}
    llama = tf.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2,
                           intermediate_size=128)  # fmt: skip
    ids = {"input_ids": torch.randint(0, 100, (2, 12)), "use_cache": False}
    yield "Llama, 29 layers", trained(tf.LlamaForCausalLM(llama)), ids
    vit = tf.ViTConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
                       intermediate_size=128, image_size=16, patch_size=4)  # fmt: skip
    given = {"pixel_values": torch.randn(2, 3, 16, 16)}
    yield "ViT, 25 layers", trained(tf.ViTForImageClassification(vit)), given


def table() -> Table:
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    schemes = [scheme for scheme in SCHEMES if scheme.name in NAMES]
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        for title, model, given in models():
            golden = dumped(model, given, room / "golden")
            for scheme in schemes:
                mine = dumped(quantised(model, scheme), given, room / "mine")
                outcome = dumpcmp.compare(golden, mine, allow=scheme.word)
                report = graft_all(mine, golden, outcome=outcome, by_layer=True)
                run = left_out(model, scheme, given)
                found = by_layer(report, linears(model))
                left = max((step.left for step in report.steps), default=float("nan"))
                rows.append([title, scheme.name, f"{spearman(run, found):.3f}", f"{left:.1e}"])
                print("| " + " | ".join(rows[-1]) + " |", flush=True)
    return Table(
        "grafted-layers",
        ("model", "scheme", "Spearman", "left with all put right"),
        rows,
        "Rank of the layers by graft, beside runs that leave each out.",
    )
