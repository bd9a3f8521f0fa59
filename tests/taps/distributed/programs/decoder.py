"""A decoder small enough for four processes on two cores, and the samples it is run on."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WIDTH, HEADS, HIDDEN, LAYERS = 65, 32, 8, 48, 2  # 65 does not divide by 2 or 4
BATCH, LENGTH = 4, 8
HEAD_WIDTH = WIDTH // HEADS


class Attention(nn.Module):
    """Causal attention whose heads may be a rank's share of all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)  # softmax is blind to it: no gradient
        self.v = nn.Linear(WIDTH, WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(attend(self.q(x), self.k(x), self.v(x)))
        return out


class FusedAttention(nn.Module):
    """The same with one merged projection for q, k and v."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)  # or a rank's share of it, as below
        self.o: nn.Module = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(attend(*self.qkv(x).chunk(3, dim=-1)))
        return out


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, length, _ = q.shape
    q, k, v = (t.view(batch, length, -1, HEAD_WIDTH).transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(batch, length, -1)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class GatedMlp(nn.Module):
    """A gated MLP with one merged projection for gate and up."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up: nn.Module = nn.Linear(WIDTH, 2 * HIDDEN)
        self.down: nn.Module = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Experts(nn.Module):
    """Four experts, of which a router gives one to each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(GatedMlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = out + (chosen == number) * expert(x)
        return out


class Block(nn.Module):
    def __init__(self, *, fused: bool, dropout: float, experts: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = FusedAttention() if fused else Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = Experts() if experts else GatedMlp() if fused else Mlp()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.norm1(x)))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class Decoder(nn.Module):
    """`first` and `last` leave out what another pipeline stage holds."""

    def __init__(
        self,
        *,
        fused: bool = False,
        dropout: float = 0.0,
        experts: bool = False,
        layers: range = range(LAYERS),
        first: bool = True,
        last: bool = True,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        whole = nn.ModuleDict(
            {
                "embed": nn.Embedding(VOCAB, WIDTH),
                "position": nn.Embedding(LENGTH, WIDTH),
                "norm": nn.LayerNorm(WIDTH),
                "head": nn.Linear(WIDTH, VOCAB, bias=False),
                **{
                    str(n): Block(fused=fused, dropout=dropout, experts=experts)
                    for n in range(LAYERS)
                },
            }
        )
        for parameter in whole.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, mean=0.5, std=0.3)  # biases and scales that matter
        self.embed = whole["embed"] if first else None
        self.position = whole["position"] if first else None
        self.layers = nn.ModuleDict({str(n): whole[str(n)] for n in layers})
        self.norm = whole["norm"] if last else None
        self.head = whole["head"] if last else None

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        if self.embed is not None and self.position is not None:
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device)
            x = self.embed(x) + self.position(positions)
        for block in self.layers.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


_Kind = TypeVar("_Kind", bound=nn.Module)


def seeded(kind: type[_Kind], std: float) -> _Kind:
    """A model whose weights are the same wherever it is made, and spread by `std`."""
    torch.manual_seed(0)
    model = kind()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)
    return model


def samples(batch: int = BATCH) -> tuple[Tensor, Tensor]:
    """Token ids and labels, the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (batch, LENGTH + 1), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def plant(model: nn.Module, fault: str) -> None:
    """Plant a fault in the second layer, where the model has it: it is wrong on every rank."""
    block = dict(model.named_modules()).get("layers.1")
    if block is None:
        return
    if fault == "activation":
        block.mlp.forward = lambda x: block.mlp.down(torch.relu(block.mlp.up(x)))
    elif fault == "eps":
        block.norm2.eps = 0.1
    elif fault == "weight":
        with torch.no_grad():
            block.attn.o.weight.mul_(1.05)
