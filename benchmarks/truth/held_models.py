"""Models that nobody tunes on: other families and another hand than those of the truth table."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from benchmarks.truth.models import (
    DECODER,
    VOCABULARY,
    WIDTH,
    Inputs,
    Model,
    hugging,
    image,
    pixels,
    tokens,
)


class TimeMix(nn.Module):
    """A linear recurrence with a decay for each channel, as RWKV has it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-3, 1, dim))
        self.boost = nn.Parameter(torch.randn(dim) * 0.3)
        self.mix = nn.Parameter(torch.rand(3, dim))
        self.key, self.value = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.output = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        last = fn.pad(x, (0, 0, 1, -1))
        k, v, r = (
            layer(torch.lerp(last, x, self.mix[i]))
            for i, layer in enumerate((self.key, self.value, self.gate))
        )
        above, below = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        kept, outs = self.decay.exp().neg().exp(), []
        for step in range(x.size(1)):
            raised = k[:, step].clamp(max=4).exp()
            now = (self.boost + k[:, step].clamp(max=4)).exp()
            outs += [(above + now * v[:, step]).div(below + now)]
            above, below = above * kept + raised * v[:, step], below * kept + raised
        out: Tensor = self.output(r.sigmoid().mul(torch.stack(outs, dim=1)))
        return out


class Recurrence(nn.Module):
    """Two blocks of `TimeMix` and a squared-relu feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.ln = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(4)])
        self.att = nn.ModuleList([TimeMix(WIDTH) for _ in range(2)])
        self.up = nn.ModuleList([nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) for _ in range(2)])

    def forward(self, input_ids: Tensor) -> Tensor:
        h = self.emb(input_ids)
        for i in range(2):
            h = h + self.att[i](self.ln[2 * i](h))
            h = h + self.down[i](torch.relu(self.up[i](self.ln[2 * i + 1](h))).pow(2))
        logits: Tensor = h @ self.emb.weight.t()
        return logits


class GruTagger(nn.Module):
    """A bidirectional GRU between two dense layers, pooled by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH // 2, 2, batch_first=True, bidirectional=True)
        self.query = nn.Parameter(torch.randn(WIDTH) / 8)
        self.cls = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 24))

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.rnn(self.emb(input_ids))[0]
        weight = states.matmul(self.query).softmax(dim=1)
        pooled = torch.einsum("bt,btd->bd", weight, states)
        out: Tensor = self.cls(pooled)
        return out


class PointSet(nn.Module):
    """Points, their nearest neighbours gathered, a shared network, a max over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.second = nn.Linear(64, WIDTH)
        self.out = nn.Linear(WIDTH, 12)

    def forward(self, points: Tensor, cells: Tensor) -> Tensor:
        count, near = points.shape[0], 4
        distance = (points.unsqueeze(1) - points.unsqueeze(0)).square().sum(-1)
        index = distance.topk(near, largest=False).indices
        around = torch.gather(
            points.unsqueeze(0).expand(count, -1, -1), 1, index.unsqueeze(-1).expand(-1, -1, 3)
        )
        edge = torch.cat((around - points.unsqueeze(1), points.unsqueeze(1).expand_as(around)), -1)
        local = self.first(edge.flatten(0, 1)).unflatten(0, (count, near)).max(dim=1).values
        pooled = torch.zeros(8, 32, dtype=local.dtype, device=local.device)
        pooled = pooled.scatter_reduce(
            0, cells.unsqueeze(1).expand(-1, 32), local, "mean", include_self=False
        )
        both = torch.cat((local, pooled.index_select(0, cells)), dim=1)
        out: Tensor = self.out(fn.gelu(self.second(both), approximate="tanh"))
        return out


class Denoiser(nn.Module):
    """A block of a diffusion model: time embedding, modulation, attention over pixels."""

    def __init__(self, ch: int = 32) -> None:
        super().__init__()
        self.inp, self.outp = nn.Conv2d(3, ch, 3, padding=1), nn.Conv2d(ch, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(ch, ch), nn.SiLU(), nn.Linear(ch, 2 * ch))
        self.n1, self.n2 = nn.GroupNorm(8, ch), nn.GroupNorm(8, ch)
        self.c1, self.c2 = nn.Conv2d(ch, ch, 3, padding=1), nn.Conv2d(ch, ch, 3, 1, 1)
        self.attn = nn.MultiheadAttention(ch, 4, batch_first=True)
        self.pool = nn.Conv2d(ch, ch, 2, stride=2)
        self.grow = nn.ConvTranspose2d(ch, ch, 2, stride=2)
        self.ch = ch

    def forward(self, image: Tensor) -> Tensor:
        half = self.ch // 2
        freq = torch.exp(-math.log(1e3) * torch.arange(half, device=image.device) / half)
        angle = torch.arange(1, image.shape[0] + 1, device=image.device)[:, None] * freq[None]
        shift, scale = self.time(torch.cat([angle.sin(), angle.cos()], -1).to(image.dtype)).chunk(
            2, dim=1
        )
        h = self.inp(image)
        mid = self.c1(fn.silu(self.n1(h))) * (1 + scale[:, :, None, None]) + shift[..., None, None]
        h = h + self.c2(fn.silu(self.n2(mid)))
        low = self.pool(h)
        seq = low.flatten(2).transpose(1, 2)
        mixed = self.attn(seq, seq, seq, need_weights=False)[0]
        low = (seq + mixed).transpose(1, 2).unflatten(2, low.shape[2:])
        out: Tensor = self.outp(h + self.grow(low))
        return out


def cloud() -> Inputs:
    return {"points": torch.randn(48, 3), "cells": torch.randint(0, 8, (48,))}


def sound() -> Inputs:
    return {"input_values": torch.randn(2, 1200)}


HELD_OUT = {
    model.name: model
    for model in (
        Model("Falcon", "attention",
              hugging("FalconForCausalLM", "FalconConfig", vocab_size=VOCABULARY, hidden_size=WIDTH,
                      num_hidden_layers=2, num_attention_heads=4, multi_query=True, bias=True,
                      hidden_dropout=0.0, attention_dropout=0.0, use_cache=False), tokens),
        Model("OPT", "attention",
              hugging("OPTForCausalLM", "OPTConfig", vocab_size=VOCABULARY, hidden_size=WIDTH,
                      ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, dropout=0.0,
                      max_position_embeddings=64, word_embed_proj_dim=WIDTH, use_cache=False),
              tokens),
        Model("Qwen2", "attention", hugging("Qwen2ForCausalLM", "Qwen2Config", **DECODER), tokens),
        Model("OLMoE", "mixture",
              hugging("OlmoeForCausalLM", "OlmoeConfig", **DECODER, num_experts=8,
                      num_experts_per_tok=2), tokens),
        Model("ConvNext", "conv",
              hugging("ConvNextModel", "ConvNextConfig", num_channels=3, patch_size=2,
                      hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1], image_size=32), pixels,
              squares=True),
        Model("wav2vec2", "conv",
              hugging("Wav2Vec2Model", "Wav2Vec2Config", hidden_size=WIDTH, num_hidden_layers=2,
                      num_attention_heads=4, intermediate_size=96, conv_dim=(32, 32),
                      conv_kernel=(10, 4), conv_stride=(5, 4), num_conv_pos_embeddings=8,
                      num_conv_pos_embedding_groups=4, hidden_dropout=0.0, layerdrop=0.0,
                      num_feat_extract_layers=2, mask_time_prob=0.0, feat_proj_dropout=0.0,
                      attention_dropout=0.0, activation_dropout=0.0), sound),
        Model("RWKV-like", "scan", Recurrence, tokens),
        Model("GRU tagger", "recurrent", GruTagger, tokens),
        Model("point set", "scatter", PointSet, cloud),
        Model("denoiser", "conv", Denoiser, image),
    )
}  # fmt: skip
