"""Models written by hand as functions of tensors, and mixtures with experts of two kinds."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.hand_llama import GROUPS, HEAD, INNER, LAYERS, WIDTH, OwnLlama

EXPERTS, CHOSEN = 4, 2


def rotated(x: Tensor) -> Tensor:
    return torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1)


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], -1, HEAD).transpose(1, 2)


class FunctionalLlama(nn.Module):
    """Llama as functions of plain tensors: the root is its only module, and has no parameter."""

    rotated = staticmethod(rotated)
    swapped = False  # the norms of a block

    def forward(self, tokens: Tensor) -> Any:
        w = self.w
        rates = 1 / 10000 ** (torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.arange(tokens.shape[1])[:, None] * rates[None]
        cos, sin = (f(torch.cat((angles, angles), -1)) for f in (torch.cos, torch.sin))
        x = w["emb"][tokens]
        for n in range(LAYERS):
            at = [f"{n}.input", f"{n}.post"][:: -1 if self.swapped else 1]
            x = x + self.attended(F.rms_norm(x, (WIDTH,), w[at[0]], 1e-6), cos, sin, n)
            x = x + self.fed(F.rms_norm(x, (WIDTH,), w[at[1]], 1e-6), n)
        return F.rms_norm(x, (WIDTH,), w["norm"], 1e-6) @ w["head"].T

    def projected(self, x: Tensor, n: int) -> list[Tensor]:
        return [F.linear(x, self.w[f"{n}.{one}"]) for one in "qkv"]

    def attended(self, x: Tensor, cos: Tensor, sin: Tensor, n: int) -> Tensor:
        q, k, v = map(heads, self.projected(x, n))
        q, k = q * cos + self.rotated(q) * sin, k * cos + self.rotated(k) * sin
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.w[f"{n}.o"])

    def fed(self, x: Tensor, n: int) -> Tensor:
        gate, up = (F.linear(x, self.w[f"{n}.{one}"]) for one in ("gate", "up"))
        return F.linear(F.silu(gate) * up, self.w[f"{n}.down"])

    def take(self, theirs: nn.Module) -> None:
        """Take the weights of a LlamaForCausalLM."""
        w = theirs.state_dict()
        own = {"emb": w["model.embed_tokens.weight"], "head": w["lm_head.weight"],
               "norm": w["model.norm.weight"]}  # fmt: skip
        for n in range(LAYERS):
            at = f"model.layers.{n}"
            own |= {f"{n}.{one}": w[f"{at}.self_attn.{one}_proj.weight"] for one in "qkvo"}
            own |= {
                f"{n}.{one}": w[f"{at}.mlp.{one}_proj.weight"] for one in ("gate", "up", "down")
            }
            own[f"{n}.input"] = w[f"{at}.input_layernorm.weight"]
            own[f"{n}.post"] = w[f"{at}.post_attention_layernorm.weight"]
        self.hold({name: tensor.clone() for name, tensor in own.items()})

    def hold(self, weights: dict[str, Tensor]) -> None:
        self.w: Any = weights


class MergedFunctionalLlama(FunctionalLlama):
    """The same, with q, k, v in one parameter of the root, and gate and up taking turns."""

    sizes = (WIDTH, GROUPS * HEAD, GROUPS * HEAD)

    def projected(self, x: Tensor, n: int) -> list[Tensor]:
        return list(torch.split(F.linear(x, self.w[f"{n}_qkv"]), list(self.sizes), -1))

    def fed(self, x: Tensor, n: int) -> Tensor:
        both = F.linear(x, self.w[f"{n}_gate_up"])
        return F.linear(F.silu(both[..., ::2]) * both[..., 1::2], self.w[f"{n}.down"])

    def hold(self, weights: dict[str, Tensor]) -> None:
        for n in range(LAYERS):
            weights[f"{n}_qkv"] = torch.cat([weights.pop(f"{n}.{one}") for one in "qkv"])
            both = [weights.pop(f"{n}.{one}") for one in ("gate", "up")]
            weights[f"{n}_gate_up"] = torch.stack(both, 1).flatten(0, 1)
        names = {name: name.replace(".", "_") for name in weights}
        held = nn.ParameterDict({names[name]: tensor for name, tensor in weights.items()})
        self.own, self.names = held, names

    @property
    def w(self) -> Any:
        return {name: self.own[held] for name, held in self.names.items()}


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, INNER, False), nn.Linear(WIDTH, INNER, False)
        self.w2 = nn.Linear(INNER, WIDTH, False)

    def forward(self, x: Tensor) -> Any:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """Experts that are modules, each of which is given the tokens that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        shares, chosen = self.chosen(rows)
        out = torch.zeros_like(rows)
        for n, expert in enumerate(self.experts):
            token, place = torch.where(chosen == n)
            out.index_add_(0, token, expert(rows[token]) * shares[token, place, None])
        return out.view_as(x)

    def chosen(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        shares, chosen = self.gate(rows).softmax(-1).topk(CHOSEN, -1)
        return shares / shares.sum(-1, keepdim=True), chosen

    def take(self, gate: Tensor, both: Tensor, down: Tensor) -> None:
        """Take stacked weights: gate and up in one, and down."""
        self.gate.weight.data = gate
        for n, expert in enumerate(self.experts):
            w1, w3 = both[n].chunk(2)
            own = {"w1.weight": w1, "w3.weight": w3, "w2.weight": down[n]}
            expert.load_state_dict(own)


class BatchedMixture(Mixture):
    """Experts in three stacked parameters: every token goes through all of them at once."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.w1, self.w3 = (nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER)) for _ in range(2))
        self.w2 = nn.Parameter(torch.zeros(EXPERTS, INNER, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        shares, chosen = self.chosen(rows)
        every = rows.expand(EXPERTS, -1, -1)
        out = torch.bmm(F.silu(torch.bmm(every, self.w1)) * torch.bmm(every, self.w3), self.w2)
        weight = torch.zeros(len(rows), EXPERTS).scatter(1, chosen, shares)
        return torch.einsum("ne,eno->no", weight, out).view_as(x)

    def take(self, gate: Tensor, both: Tensor, down: Tensor) -> None:
        self.gate.weight.data = gate
        w1, w3 = both.transpose(1, 2).chunk(2, -1)
        self.w1.data, self.w3.data = w1.contiguous(), w3.contiguous()
        self.w2.data = down.transpose(1, 2).contiguous()


class OwnMixtral(OwnLlama):
    """Mixtral as OwnLlama, with experts for its feed-forward layers."""

    mixture: type[Mixture] = Mixture

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.ffn = self.mixture()

    def take(self, theirs: nn.Module) -> None:
        """Take the weights of a MixtralForCausalLM."""
        w = theirs.state_dict()
        own = {"emb.weight": w["model.embed_tokens.weight"], "head.weight": w["lm_head.weight"],
               "final.gain": w["model.norm.weight"]}  # fmt: skip
        for n, block in enumerate(self.blocks):
            at, to = f"model.layers.{n}", f"blocks.{n}"
            qkv = [w[f"{at}.self_attn.{x}_proj.weight"] for x in "qkv"]
            own[f"{to}.mix.wqkv.weight"] = torch.cat(qkv)
            own[f"{to}.mix.wo.weight"] = w[f"{at}.self_attn.o_proj.weight"]
            own[f"{to}.norm1.gain"] = w[f"{at}.input_layernorm.weight"]
            own[f"{to}.norm2.gain"] = w[f"{at}.post_attention_layernorm.weight"]
            experts: Any = block.ffn
            names = ("gate.weight", "experts.gate_up_proj", "experts.down_proj")
            experts.take(*(w[f"{at}.mlp.{name}"].clone() for name in names))
        self.load_state_dict(own, strict=False)


class BatchedMixtral(OwnMixtral):
    """The same with stacked experts."""

    mixture = BatchedMixture
