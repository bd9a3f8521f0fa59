"""Models written by hand that no rule was tuned on: a Llama laid out as Megatron does, a GPT-2."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.hand_llama import GROUPS, HEAD, HEADS, INNER, LAYERS, VOCABULARY, WIDTH


class FusedNorm(nn.Module):
    """Adds the residual and normalises, and gives both."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        spread = total.pow(2).mean(-1, keepdim=True)
        return self.weight * (total * torch.rsqrt(spread + 1e-6)), total


class MegatronBlock(nn.Module):
    """The heads of a group, its key and its value lie side by side; tokens come first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_qkv = nn.Linear(WIDTH, WIDTH + 2 * GROUPS * HEAD, bias=False)
        self.linear_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.linear_fc1 = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.linear_fc2 = nn.Linear(INNER, WIDTH, bias=False)
        self.pre_mlp_norm, self.next_norm = FusedNorm(), FusedNorm()

    def forward(self, x: Tensor, residual: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        merged = self.linear_qkv(x).view(*x.shape[:2], GROUPS, HEADS // GROUPS + 2, HEAD)
        q, k, v = merged.split([HEADS // GROUPS, 1, 1], 3)
        q = q.reshape(*x.shape[:2], HEADS, HEAD)
        k, v = (one.squeeze(3).repeat_interleave(HEADS // GROUPS, 2) for one in (k, v))
        q, k = (self.turned(one, angles) for one in (q, k))
        scores = torch.einsum("sbhd,tbhd->bhst", q, k) / HEAD**0.5
        hidden = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = torch.einsum("bhst,tbhd->sbhd", weights, v).flatten(2)
        x, residual = self.pre_mlp_norm(self.linear_proj(mixed), residual)
        gate, up = self.linear_fc1(x).split(INNER, -1)
        inner = self.linear_fc2(gate * torch.sigmoid(gate) * up)
        out: tuple[Tensor, Tensor] = self.next_norm(inner, residual)
        return out

    @staticmethod
    def turned(x: Tensor, angles: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)


class MegatronLlama(nn.Module):
    block: type[MegatronBlock] = MegatronBlock

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.first_norm = FusedNorm()
        self.layers = nn.ModuleList(self.block() for _ in range(LAYERS))
        self.output_layer = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        steps = torch.arange(tokens.shape[1], dtype=torch.float32)
        angles = torch.outer(steps, 10000 ** (-torch.arange(0, HEAD, 2) / HEAD))
        x = self.word_embeddings(tokens).transpose(0, 1).contiguous()
        x, residual = self.first_norm(x, torch.zeros_like(x))
        for layer in self.layers:
            x, residual = layer(x, residual, angles)
        return self.output_layer(x).transpose(0, 1).contiguous()

    def take(self, theirs: nn.Module) -> None:
        """Take the weights of a LlamaForCausalLM."""
        w = theirs.state_dict()
        own = {"word_embeddings.weight": w["model.embed_tokens.weight"],
               "output_layer.weight": w["lm_head.weight"],
               "first_norm.weight": w["model.layers.0.input_layernorm.weight"]}  # fmt: skip
        norms = [w[f"model.layers.{n}.input_layernorm.weight"] for n in range(1, LAYERS)]
        for n, norm in enumerate([*norms, w["model.norm.weight"]]):
            at, to = f"model.layers.{n}", f"layers.{n}"
            q, k, v = (
                w[f"{at}.self_attn.{x}_proj.weight"].view(GROUPS, -1, HEAD, WIDTH) for x in "qkv"
            )
            own[f"{to}.linear_qkv.weight"] = torch.cat((q, k, v), 1).reshape(-1, WIDTH)
            own[f"{to}.linear_proj.weight"] = w[f"{at}.self_attn.o_proj.weight"]
            both = [w[f"{at}.mlp.{x}_proj.weight"] for x in ("gate", "up")]
            own[f"{to}.linear_fc1.weight"] = torch.cat(both)
            own[f"{to}.linear_fc2.weight"] = w[f"{at}.mlp.down_proj.weight"]
            own[f"{to}.pre_mlp_norm.weight"] = w[f"{at}.post_attention_layernorm.weight"]
            own[f"{to}.next_norm.weight"] = norm
        self.load_state_dict(own)


class HandGpt2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm_a(x)
        shape = (*x.shape[:2], HEADS, HEAD)
        q, k, v = (
            f(normed).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm_b(x)), approximate="tanh"))
        return out


class HandGpt2(nn.Module):
    """GPT-2 with projections apart, and Linear where Hugging Face has Conv1D."""

    block: type[HandGpt2Block] = HandGpt2Block

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(self.block() for _ in range(2))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))

    def take(self, theirs: nn.Module) -> None:
        """Take the weights of a GPT2LMHeadModel."""
        w = theirs.state_dict()
        own = {"tokens.weight": w["transformer.wte.weight"], "head.weight": w["lm_head.weight"],
               "places.weight": w["transformer.wpe.weight"]}  # fmt: skip
        names = {"norm_a": "ln_1", "norm_b": "ln_2", "out": "attn.c_proj", "up": "mlp.c_fc",
                 "down": "mlp.c_proj"}  # fmt: skip
        for kind in ("weight", "bias"):
            own[f"last.{kind}"] = w[f"transformer.ln_f.{kind}"]
            for n in range(2):
                at, to = f"transformer.h.{n}", f"blocks.{n}"
                for mine, name in names.items():
                    own[f"{to}.{mine}.{kind}"] = w[f"{at}.{name}.{kind}"].T.contiguous()
                merged = w[f"{at}.attn.c_attn.{kind}"].T.contiguous().chunk(3)
                for mine, part in zip(("query", "key", "value"), merged, strict=True):
                    own[f"{to}.{mine}.{kind}"] = part
        self.load_state_dict(own)
