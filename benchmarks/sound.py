"""Sound compilations of Hugging Face models: none of them may fail by the default rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.tables import Table
from dumpcmp.verifying import VerifyConfig, report_on

IDS = (torch.arange(32) * 37 % 128).reshape(2, 16)
SIZES = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def _llama() -> Any:
    config = transformers.LlamaConfig(**SIZES, intermediate_size=128, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _bert() -> Any:
    config = transformers.BertConfig(**SIZES, intermediate_size=128, max_position_embeddings=64)
    return transformers.BertForMaskedLM(config)


def _qwen2() -> Any:
    config = transformers.Qwen2Config(**SIZES, intermediate_size=128, num_key_value_heads=2)
    return transformers.Qwen2ForCausalLM(config)


def _opt() -> Any:
    config = transformers.OPTConfig(
        **SIZES, ffn_dim=128, max_position_embeddings=64, word_embed_proj_dim=64
    )
    return transformers.OPTForCausalLM(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama": _llama, "GPT-2": _gpt2, "BERT": _bert, "Qwen2": _qwen2, "OPT": _opt,
}  # fmt: skip


def table() -> Table:
    """Verify each model in each dtype, forward and backward."""
    headings = ("model", "dtype", "pass", "values", "differ", "worst rel_l2")
    how = "Two layers with random weights, width 64, 2 x 16 tokens, Inductor on the CPU."
    return Table("sound", headings, list(measured()), how)


def measured() -> Iterator[list[str]]:
    for name, build in MODELS.items():
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            model = build().to(dtype).eval()
            for backward in (False, True):
                torch._dynamo.reset()
                config = VerifyConfig(backward=backward)
                inputs = {"input_ids": IDS, "labels": IDS}
                report = report_on(inputs, model, torch.compile(model), config)
                worst = max(row.metrics.rel_l2 for row in report.rows if row.metrics)
                yield [name, str(dtype).removeprefix("torch."),
                       "forward and backward" if backward else "forward", str(len(report.rows)),
                       str(len(report.failures)), f"{worst:.1e}"]  # fmt: skip
                print(name, dtype, backward, len(report.failures), flush=True)
