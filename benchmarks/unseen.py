"""Models of transformers that no rule was tuned on: sound runs of them must come out the same."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dumpcmp
from benchmarks.tables import Table
from benchmarks.truth.corpus import ANSWERS
from benchmarks.truth.models import first_tensor
from benchmarks.truth.watching import below
from dumpcmp.nouns.row import Verdict

Inputs = dict[str, Tensor]
Options = dict[str, Any]

_SPECIAL: Options = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL: Options = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, **_SPECIAL,
}  # fmt: skip
_FEW = {"num_key_value_heads": 2}
_WINDOW = {"sliding_window": 4, "head_dim": 8}
_LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "qk_nope_head_dim": 8,
}  # fmt: skip


def words() -> Inputs:
    return {"input_ids": (torch.arange(24) * 7 % 60 + 3).reshape(2, 12)}


def pixels(size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(1, 3, size, size)}


# The class, that of its config without the word, what it is given, and the config.
MODELS: dict[str, tuple[str, Callable[[], Inputs], Options]] = {
    "DeepseekV3ForCausalLM": ("DeepseekV3", words, {
        **_SMALL, **_LATENT, "moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 2,
        "num_experts_per_tok": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "num_key_value_heads": 4}),
    "Phi3ForCausalLM": ("Phi3", words, {**_SMALL, **_FEW}),
    "MistralForCausalLM": ("Mistral", words, {**_SMALL, **_FEW, "sliding_window": 4}),
    "GPTNeoXForCausalLM": ("GPTNeoX", words, _SMALL),
    "BloomForCausalLM": ("Bloom", words, {
        "vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "DebertaV2Model": ("DebertaV2", words, {
        **_SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": 16}),
    "Gemma3ForCausalLM": ("Gemma3Text", words, {**_SMALL, **_FEW, **_WINDOW}),
    "GptOssForCausalLM": ("GptOss", words, {
        **_SMALL, **_FEW, **_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Llama4ForCausalLM": ("Llama4Text", words, {
        **_SMALL, **_FEW, "head_dim": 8, "num_local_experts": 4, "intermediate_size_mlp": 64,
        "moe_layers": [1], "attention_chunk_size": 8}),
    "JambaForCausalLM": ("Jamba", words, {
        **_SMALL, **_FEW, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2,
        "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "use_mamba_kernels": False, "mamba_d_state": 8, "mamba_dt_rank": 4}),
    "Mamba2ForCausalLM": ("Mamba2", words, {
        **_SPECIAL, "vocab_size": 64, "hidden_size": 32, "num_heads": 4, "head_dim": 16,
        "state_size": 8, "num_hidden_layers": 2, "n_groups": 1, "chunk_size": 4}),
    "RecurrentGemmaForCausalLM": ("RecurrentGemma", words, {
        **_SPECIAL, "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
        "lru_width": 32, "attention_window_size": 8}),
    "BartForConditionalGeneration": ("Bart", words, {
        **_SPECIAL, "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64, "max_position_embeddings": 64}),
    "SwinModel": ("Swin", pixels, {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4}),
    "SegformerForSemanticSegmentation": ("Segformer", partial(pixels, 64), {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
        "num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2],
        "mlp_ratios": [2, 2], "decoder_hidden_size": 16}),
    "CLIPVisionModel": ("CLIPVision", pixels, {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 32, "patch_size": 8}),
    "ConvNextV2Model": ("ConvNextV2", pixels, {
        "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": 32}),
}  # fmt: skip


def dumped(name: str, path: Path, dtype: torch.dtype, how: str) -> Path:
    """One step of a model into an archive: with a backward pass, unless it is a mode."""
    import transformers

    config, given, options = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, f"{config}Config")(**options))
    model = cast(model, dtype).eval()
    inputs = {k: x.to(dtype) if x.is_floating_point() else x for k, x in given().items()}
    mode = next((mode for mode in ("fx", "aten", "compiled") if mode in how), "eager")
    trains = "training" in how
    run = torch.compile(model) if mode == "compiled" else model
    with (
        torch.set_grad_enabled(trains),
        _around(model, how),
        dumpcmp.capture(model, path, mode=mode, backward=trains),
    ):
        out = first_tensor(run(**inputs))
        if trains:
            generator = torch.Generator().manual_seed(3)
            (out.float() * torch.randn(out.shape, generator=generator)).sum().backward()  # type: ignore[no-untyped-call]
    return path


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """`model` in `dtype`, but for the frequencies of positions, which stay as they are."""
    kept = [(name, x) for name, x in model.named_buffers() if name.endswith("inv_freq")]
    model = model.to(dtype)
    for name, frequencies in kept:
        path, _, word = name.rpartition(".")
        setattr(model.get_submodule(path), word, frequencies.to(torch.float32))
    return model


def _around(model: nn.Module, how: str) -> AbstractContextManager[None]:
    if "oneDNN" in how:  # what stands below a capture would be seen by one of the dispatcher
        return torch.backends.mkldnn.flags(enabled=False)
    return below(model, answer=ANSWERS["other BLAS"]) if "BLAS" in how else nullcontext()


Run = tuple[str, torch.dtype]
# What is told of them, how golden runs, and how the target does.
WAYS: list[tuple[str, Run, Run]] = [
    *((f"training, other BLAS, {str(dtype)[6:]}", ("training", dtype),
       ("training, other BLAS", dtype)) for dtype in (torch.float32, torch.bfloat16)),
    ("fx, float32", ("inference", torch.float32), ("fx", torch.float32)),
    ("aten, float32", ("inference", torch.float32), ("aten", torch.float32)),
    ("training, bfloat16 against float32", ("training", torch.float32),
     ("training, short", torch.bfloat16)),
    ("training in aten, without oneDNN", ("training, aten", torch.float32),
     ("training, aten, without oneDNN", torch.float32)),
]  # fmt: skip


def said(name: str, way: str, *runs: Run) -> str:
    """The conclusion of comparing a sound run with golden, and how much was not paired."""
    with tempfile.TemporaryDirectory() as room:
        outcome = dumpcmp.compare(
            *(dumped(name, Path(room, how), dtype, how) for how, dtype in runs)
        )
    tally = outcome.tally
    away = tally[Verdict.COVERED] + tally[Verdict.DEAD]
    print(name, way, outcome.headline, file=sys.stderr, flush=True)
    words = f"{outcome.conclusion}, {len(outcome.failures)} fail" if outcome.exit_code else "same"
    return f"{words} ({len(outcome.rows)} values{f', {away} covered' if away else ''})"


def table() -> Table:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [[name, *(said(name, *way) for way in WAYS)] for name in MODELS]
    how = (
        "Sound runs of models that no rule was tuned on, against an eager golden run; those of "
        f"training with gradients. torch {torch.__version__}."
    )
    headings = ["model", *(way for way, _, _ in WAYS)]
    return Table("unseen", headings, rows, how)
