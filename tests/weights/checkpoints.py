"""A small checkpoint as Hugging Face has it, what an engine makes of it, and faults in that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

WIDTH, HIDDEN, VOCABULARY, NUM_LAYERS, NUM_EXPERTS = 64, 96, 200, 3, 4
HEADS, KV_HEADS, HEAD = 4, 2, 16
Weights = dict[str, Tensor]


def checkpoint(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Weights:
    """Attention, a mixture of experts, norms, an embedding and a tied head."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).mul(shape[-1] ** -0.5).to(dtype)

    found = {"model.embed_tokens.weight": drawn(VOCABULARY, WIDTH)}
    for i in range(NUM_LAYERS):
        layer = f"model.layers.{i}."
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            found[f"{layer}self_attn.{name}_proj.weight"] = drawn(rows * HEAD, WIDTH)
            found[f"{layer}self_attn.{name}_proj.bias"] = drawn(rows * HEAD)
        found[f"{layer}self_attn.o_proj.weight"] = drawn(WIDTH, WIDTH)
        found[f"{layer}input_layernorm.weight"] = drawn(WIDTH) + 1
        found[f"{layer}mlp.gate.weight"] = drawn(NUM_EXPERTS, WIDTH)
        for expert in range(NUM_EXPERTS):
            for name in ("gate", "up"):
                found[f"{layer}mlp.experts.{expert}.{name}_proj.weight"] = drawn(HIDDEN, WIDTH)
            found[f"{layer}mlp.experts.{expert}.down_proj.weight"] = drawn(WIDTH, HIDDEN)
    return found | {
        "model.norm.weight": drawn(WIDTH) + 1,
        "lm_head.weight": drawn(VOCABULARY, WIDTH),
    }


def as_engine(found: Weights) -> Weights:
    """The same as engines for serving hold it: projections merged, experts stacked."""
    mine = {n: t.clone() for n, t in found.items() if "_proj" not in n or "o_proj" in n}
    for i in range(NUM_LAYERS):
        layer = f"model.layers.{i}."
        for kind in ("weight", "bias"):
            parts = [found[f"{layer}self_attn.{name}_proj.{kind}"] for name in "qkv"]
            mine[f"{layer}self_attn.qkv_proj.{kind}"] = torch.cat(parts)
        experts = [
            {n: found[f"{layer}mlp.experts.{e}.{n}_proj.weight"] for n in ("gate", "up", "down")}
            for e in range(NUM_EXPERTS)
        ]
        merged = [torch.cat([one["gate"], one["up"]]) for one in experts]
        mine[f"{layer}mlp.experts.w13_weight"] = torch.stack(merged)
        mine[f"{layer}mlp.experts.w2_weight"] = torch.stack([one["down"] for one in experts])
    return mine


def cut(tensor: Tensor, sizes: list[int]) -> list[Tensor]:
    """The rows of a tensor in pieces of these sizes."""
    return [tensor.narrow(0, sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def in_blocks(weight: Tensor, size: int = 32) -> tuple[Tensor, Tensor]:
    """Quantised to fp8 with a scale for each block, as DeepSeek's checkpoints are."""
    rows, columns = (-(-n // size) for n in weight.shape)
    scale = torch.empty(rows, columns)
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(rows):
        for j in range(columns):
            at = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
            block = weight[at].float()
            scale[i, j] = block.abs().amax().clamp_min(1e-6) / 448
            codes[at] = (block / scale[i, j]).to(torch.float8_e4m3fn)
    return codes, scale


def by_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantised to int8 with a scale for each row."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return (weight.float() / scale).round().to(torch.int8), scale


def quantised(found: Weights, how: Callable[[Tensor], tuple[Tensor, Tensor]], end: str) -> Weights:
    """A checkpoint whose o_proj weights are quantised."""
    mine = dict(found)
    for name in found:
        if "o_proj" in name:
            mine[name], mine[name + end] = how(found[name])
    return mine


def on_ranks(mine: Weights, num: int = 2) -> list[Weights]:
    """An engine's weights in tensor parallel: by rows, o_proj and w2 by columns, norms on each."""
    return [{name: _shard(name, t, rank, num) for name, t in mine.items()} for rank in range(num)]


def _shard(name: str, tensor: Tensor, rank: int, num: int) -> Tensor:
    if "qkv_proj" in name:
        sizes = [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD]
        return torch.cat([part.chunk(num)[rank] for part in cut(tensor, sizes)])
    if "w13" in name:
        return torch.cat([part.chunk(num, 1)[rank] for part in tensor.chunk(2, 1)], 1)
    if "o_proj" in name or "w2" in name:
        return tensor.chunk(num, -1)[rank].contiguous()
    return tensor.chunk(num)[rank] if name.startswith(("lm_head", "model.embed")) else tensor


def save(weights: Weights, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
    return path


def save_ranks(ranks: list[Weights], room: Path) -> Path:
    for rank, weights in enumerate(ranks):
        save(weights, room / f"rank_{rank}" / "model.safetensors")
    return room


def dequantised(found: Weights) -> Weights:
    """What an engine makes of block-scaled fp8 when it computes in bfloat16."""
    mine = {name: tensor for name, tensor in found.items() if not name.endswith("_scale_inv")}
    for name, scale in found.items():
        if name.endswith("_scale_inv"):
            codes = found[name.removesuffix("_scale_inv")].float()
            factors = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
            mine[name.removesuffix("_scale_inv")] = (codes * factors).bfloat16()
    return mine


QKV, W13, O_PROJ = (  # of the layer in the middle, in which faults are planted
    "model.layers.1.self_attn.qkv_proj.weight", "model.layers.1.mlp.experts.w13_weight",
    "model.layers.1.self_attn.o_proj.weight",
)  # fmt: skip


@dataclass(frozen=True)
class Planted:
    """A fault: what it does to an engine's weights, and what must be said of which weight."""

    name: str
    plant: Callable[[Weights], None]
    weight: str
    verdict: str
    evidence: str


def _exchange_k_and_v(mine: Weights) -> None:
    q, k, v = cut(mine[QKV], [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD])
    mine[QKV] = torch.cat([q, v, k])


def _interleave_rotary(mine: Weights) -> None:
    heads = mine[O_PROJ].reshape(HEADS, 2, HEAD // 2, WIDTH)
    mine[O_PROJ] = heads.transpose(1, 2).reshape(WIDTH, WIDTH)


def _exchange_experts(mine: Weights) -> None:
    mine[W13] = mine[W13][[0, 2, 1, 3]]


def _exchange_layers(mine: Weights) -> None:
    other = O_PROJ.replace("layers.1", "layers.2")
    mine[O_PROJ], mine[other] = mine[other], mine[O_PROJ]


def _change(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Weights], None]:
    def plant(mine: Weights) -> None:
        mine[name] = change(mine[name].clone())

    return plant


def _zero_expert(stack: Tensor) -> Tensor:
    stack[2] = 0
    return stack


def _one_element(weight: Tensor) -> Tensor:
    weight[17, 5] += 1
    return weight


def _keep_older(mine: Weights) -> None:
    mine[QKV][: HEADS * HEAD] = as_engine(checkpoint(seed=1))[QKV][: HEADS * HEAD]


def _drop(name: str, mine: Weights) -> None:
    del mine[name]


def _add(mine: Weights) -> None:
    mine["model.layers.1.self_attn.sinks"] = torch.ones(HEADS)


def _by_row(weight: Tensor) -> Tensor:
    return weight * torch.linspace(0.5, 2, WIDTH)[:, None].bfloat16()


_BIAS = "model.layers.1.self_attn.q_proj.bias"
_SINKS = "model.layers.1.self_attn.sinks"
_OLDER = "older checkpoint's values in 64 of 128"
PLANTED = tuple(
    Planted(*one)
    for one in (
        ("a bias was never loaded", partial(_drop, QKV.replace("weight", "bias")), _BIAS,
         "missing", "nothing of it"),
        ("a weight that golden has not", _add, _SINKS, "unexpected", "no weight of this name"),
        ("k and v in each other's place", _exchange_k_and_v, QKV, "permuted", "another order"),
        ("rotary halves as pairs", _interleave_rotary, O_PROJ, "permuted", "16 (rotary)"),
        ("two experts exchanged", _exchange_experts, W13, "permuted", "1 has golden's 2"),
        ("two layers exchanged", _exchange_layers, O_PROJ, "permuted", "golden's model.layers.2"),
        ("a square weight transposed", _change(O_PROJ, lambda t: t.t().contiguous()), O_PROJ,
         "transposed", "rows and columns exchanged"),
        ("a scale applied twice", _change(O_PROJ, lambda t: t * 1.7), O_PROJ, "scaled",
         "times 1.69"),
        ("each row times its scale", _change(O_PROJ, _by_row), O_PROJ, "scaled", "each row"),
        ("an expert of zeros", _change(W13, _zero_expert), W13, "zero", "expert 2 of 4"),
        ("q of the checkpoint before", _keep_older, QKV, "stale", _OLDER),
        ("one element off", _change(O_PROJ, _one_element), O_PROJ, "other", "1 of 4096 elements"),
    )
)  # fmt: skip
