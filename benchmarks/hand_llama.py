"""A Llama written anew in a few lines, with merged projections, and how it takes HF's weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, GROUPS, INNER, VOCABULARY, LAYERS = 32, 4, 2, 48, 96, 2
HEAD = WIDTH // HEADS


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.gain, 1e-6)


class Mixer(nn.Module):
    rotated = staticmethod(lambda x: torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1))
    sizes = (WIDTH, GROUPS * HEAD, GROUPS * HEAD)

    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Linear(WIDTH, sum(self.sizes), bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, -1, HEAD).transpose(1, 2)
            for part in self.wqkv(x).split(self.sizes, -1)
        )
        q, k = q * cos + self.rotated(q) * sin, k * cos + self.rotated(k) * sin
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Ffn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w13, self.w2 = nn.Linear(WIDTH, 2 * INNER, False), nn.Linear(INNER, WIDTH, False)

    def forward(self, x: Tensor) -> Any:
        gate, up = self.w13(x).chunk(2, -1)
        return self.w2(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.mix, self.norm2, self.ffn = Norm(), Mixer(), Norm(), Ffn()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        x = x + self.mix(self.norm1(x), cos, sin)
        return x + self.ffn(self.norm2(x))


class OwnLlama(nn.Module):
    """Llama, written without a look at Hugging Face's."""

    block: type[Block] = Block

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(self.block() for _ in range(LAYERS))
        self.final, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        rates = 1 / 10000 ** (torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.arange(tokens.shape[1])[:, None] * rates[None]
        cos, sin = (f(torch.cat((angles, angles), -1)) for f in (torch.cos, torch.sin))
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.final(x))

    def take(self, theirs: nn.Module) -> None:
        """Take the weights of a LlamaForCausalLM."""
        w = theirs.state_dict()
        own = {"emb.weight": w["model.embed_tokens.weight"], "head.weight": w["lm_head.weight"],
               "final.gain": w["model.norm.weight"]}  # fmt: skip
        for n in range(LAYERS):
            at, to = f"model.layers.{n}", f"blocks.{n}"
            qkv = [w[f"{at}.self_attn.{x}_proj.weight"] for x in "qkv"]
            own[f"{to}.mix.wqkv.weight"] = torch.cat(qkv)
            own[f"{to}.mix.wo.weight"] = w[f"{at}.self_attn.o_proj.weight"]
            both = [w[f"{at}.mlp.{x}_proj.weight"] for x in ("gate", "up")]
            own[f"{to}.ffn.w13.weight"] = torch.cat(both)
            own[f"{to}.ffn.w2.weight"] = w[f"{at}.mlp.down_proj.weight"]
            own[f"{to}.norm1.gain"] = w[f"{at}.input_layernorm.weight"]
            own[f"{to}.norm2.gain"] = w[f"{at}.post_attention_layernorm.weight"]
        self.load_state_dict(own)
