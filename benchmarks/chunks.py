"""Models that run in chunks against the same that run at once: sound ones, and ones with a fault.

None of them is in the tests, and they were looked at once when the tests passed; what was mended
then is told in docs/benchmarks.md.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dumpcmp
from benchmarks.tables import Table
from dumpcmp.nouns.outcome import Outcome

Input = tuple[int, ...]


class Blocks(nn.Module):
    """Attention by blocks of queries, each with its own mask."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.size, self.fault = (
            nn.Linear(12, 36),
            nn.Linear(12, 12),
            size,
            fault,
        )

    def block(self, q: Tensor, k: Tensor, v: Tensor, at: int) -> Tensor:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(6)
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        mask = mask.tril(at + (1 if self.fault and at else 0))
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = torch.split(self.qkv(x), 12, -1)
        q, k, v = (one.view(batch, length, 2, 6).transpose(1, 2) for one in split)
        if self.size:
            starts = range(0, length, self.size)
            y = torch.cat([self.block(q[:, :, n : n + self.size], k, v, n) for n in starts], 2)
        else:
            y = self.block(q, k, v, 0)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, 12))  # type: ignore[no-any-return]


class TokenLoss(nn.Module):
    """A loss that is added up over parts of the tokens."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.lm, self.size, self.fault = nn.Linear(16, 30, bias=False), size, fault

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.rnn(x)[0].reshape(-1, 16)
        labels = torch.arange(len(hidden)) % 30
        if not self.size:
            return F.cross_entropy(self.lm(hidden), labels, reduction="sum") / len(labels)
        total: Tensor | int = 0
        for n in range(0, len(labels), self.size):
            logits = self.lm(hidden[n : n + self.size])
            logits = logits * 1.001 if self.fault and n else logits
            loss = F.cross_entropy(logits, labels[n : n + self.size], reduction="sum")
            total = total + loss
        return torch.as_tensor(total / len(labels))


class Pictures(nn.Module):
    """Convolutions over parts of a batch."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)
        self.size, self.fault = size, fault

    def body(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        return F.relu(self.second(y) + y)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, self.size) if self.size else (x,)
        y = torch.cat([self.body(part) for part in parts]) if self.size else self.body(x)
        y = torch.roll(y, 1, 0) if self.fault else y
        return self.head(y.mean((2, 3)))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Rows in parts inside of each expert."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.router = nn.Linear(8, 3)
        experts = (nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(3))
        self.experts, self.size, self.fault = nn.ModuleList(experts), size, fault

    def forward(self, x: Tensor) -> Tensor:
        weights, out = self.router(x).softmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            parts = list(torch.split(x, self.size)) if self.size else [x]
            if self.fault and number == 1:
                parts[1] = parts[1].clamp(max=0.5)
            y = torch.cat([expert(part) for part in parts]) if self.size else expert(x)
            out = out + weights[:, number : number + 1] * y
        return out


class Stream(nn.Module):
    """A recurrent state that goes from part to part."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.into, self.rnn = nn.Linear(6, 10), nn.GRU(10, 10, batch_first=True)
        self.head, self.size, self.fault = nn.Linear(10, 2), size, fault

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.into(x))
        state, outs = None, []
        for part in torch.split(x, self.size or x.shape[1], 1):
            out, state = self.rnn(part, None if self.fault else state)
            outs.append(out)
        return self.head(torch.cat(outs, 1) if self.size else outs[0])  # type: ignore[no-any-return]


class Slices(nn.Module):
    """Rows that a loop takes off the front, until none is left."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU())
        self.size, self.fault = size, fault

    def forward(self, x: Tensor) -> Tensor:
        if not self.size:
            return self.net(x)  # type: ignore[no-any-return]
        outs = []
        while len(x):
            part, x = x[: self.size], x[self.size :]
            outs.append(self.net(part))
        if self.fault:
            outs[-1] = outs[0][: len(outs[-1])]
        return torch.vstack(outs)


class Rows(Slices):
    """One row at a time, without the dim of rows."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.size:
            return self.net(x)  # type: ignore[no-any-return]
        outs = [self.net(row) for row in x]
        return torch.stack(outs[::-1] if self.fault else outs)


class Encoder(nn.Module):
    """Layers that are checkpointed for each part of a batch."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        layers = (
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(8, 2)
        self.size, self.fault = size, fault

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if not self.size:
                x = checkpoint(layer, x, use_reentrant=False)
                continue
            outs = []
            for at, part in enumerate(torch.tensor_split(x, self.size)):
                out = checkpoint(layer, part, use_reentrant=False)
                if self.fault and number and at:
                    out = out.clone()
                    out[..., 0] += 1e-2
                outs.append(out)
            x = torch.concat(outs)
        return self.head(x)  # type: ignore[no-any-return]


class Heads(nn.Module):
    """Heads of attention in groups."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.size, self.fault = size, fault

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            one(x).view(batch, length, 4, 4).permute(0, 2, 1, 3) for one in (self.q, self.k, self.v)
        )
        attend = F.scaled_dot_product_attention
        if self.size:
            groups = zip(*(torch.split(one, self.size, 1) for one in (q, k, v)), strict=True)
            outs = [
                attend(a, b, c, is_causal=not (self.fault and n))
                for n, (a, b, c) in enumerate(groups)
            ]
            y = torch.cat(outs, 1)
        else:
            y = attend(q, k, v, is_causal=True)
        return self.out(y.permute(0, 2, 1, 3).flatten(2))  # type: ignore[no-any-return]


class Columns(nn.Module):
    """Features in groups, whose products are added up."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(12, 6) / 3)
        self.down, self.size, self.fault = nn.Parameter(torch.randn(6, 12) / 3), size, fault

    def forward(self, x: Tensor) -> Tensor:
        if not self.size:
            return x + F.linear(F.silu(F.linear(x, self.up)), self.down)
        y: Tensor | int = 0
        groups = zip(self.up.chunk(self.size), self.down.chunk(self.size, 1), strict=True)
        for n, (up, down) in enumerate(groups):
            down = down * 0.99 if self.fault and n == 1 else down
            y = y + F.linear(F.silu(F.linear(x, up)), down)
        return x + y


class Written(nn.Module):
    """What each part gives is written into its place."""

    def __init__(self, size: int, fault: bool) -> None:
        super().__init__()
        self.up, self.down, self.size, self.fault = nn.Linear(5, 7), nn.Linear(7, 5), size, fault

    def forward(self, x: Tensor) -> Tensor:
        if not self.size:
            return self.down(torch.sigmoid(self.up(x)))  # type: ignore[no-any-return]
        out = x.new_zeros(len(x), 5)
        for n in range(0, len(x), self.size):
            part = x[n : n + self.size]
            part = x[n - 1 : n - 1 + len(part)] if self.fault and n else part
            out[n : n + self.size] = self.down(torch.sigmoid(self.up(part)))
        return out


def _small(name: str, **more: Any) -> Callable[[int, bool], nn.Module]:
    """A model of Hugging Face whose feed-forward runs over some tokens at a time."""

    def make(size: int, fault: bool) -> nn.Module:
        config = getattr(transformers, f"{name}Config")(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, chunk_size_feed_forward=size, **more,
        )  # fmt: skip
        model: nn.Module = getattr(transformers, f"{name}Model")(config)
        if fault:
            _odd_calls(model)
        return model

    return make


def _odd_calls(model: nn.Module) -> None:
    """Let every other call of the last wide product be a little too large."""
    wide = [m for m in model.modules() if isinstance(m, nn.Linear) and m.in_features == 32][-1]
    seen: list[None] = []

    def hook(_module: nn.Module, _given: Any, out: Tensor) -> Tensor:
        seen.append(None)
        return out if len(seen) % 2 else out * 1.01

    wide.register_forward_hook(hook)


def _llama(size: int, fault: bool) -> nn.Module:
    """A llama whose MLP runs over some tokens at a time."""
    model: nn.Module = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        )
    )  # fmt: skip
    layers: Any = model.get_submodule("model.layers")
    last = layers[1].mlp

    def forward(self: Any, x: Tensor) -> Tensor:
        outs = []
        for n in range(0, x.shape[1], size or x.shape[1]):
            part = x[:, n : n + size] if size else x
            gate = self.gate_proj(part)
            gate = gate.clamp(max=0.05) if fault and n and self is last else gate
            outs.append(self.down_proj(self.act_fn(gate) * self.up_proj(part)))
        return torch.cat(outs, 1) if size else outs[0]

    for layer in layers:
        layer.mlp.forward = MethodType(forward, layer.mlp)
    return model


@dataclass(frozen=True)
class Case:
    """A model, how it is cut, what it is given, and the op that its fault is at."""

    name: str
    make: Callable[[int, bool], nn.Module]
    size: int
    shape: Input
    at: tuple[str, ...]  # ops, of the fault or right after it
    is_text: bool = False

    def compared(
        self, *, backward: bool = False, swap: bool = False, fault: bool = False
    ) -> Outcome:
        sizes = (self.size, 0) if swap else (0, self.size)
        with tempfile.TemporaryDirectory() as room:
            paths = Path(room) / "golden", Path(room) / "target"
            for path, size in zip(paths, sizes, strict=True):
                torch.manual_seed(0)
                model = self.make(size, fault and bool(size)).eval()
                with dumpcmp.capture(model, path, backward=backward):
                    self._run(model, backward)
            return dumpcmp.compare(*paths)

    def _run(self, model: nn.Module, backward: bool) -> None:
        draw = torch.Generator().manual_seed(3)
        for _ in range(2):
            x = torch.randint(0, 50, self.shape, generator=draw)
            x = x if self.is_text else torch.randn(self.shape, generator=draw)
            out = model(x)
            out = out if isinstance(out, Tensor) else out[0]
            if backward:
                model.zero_grad()
                out.square().mean().backward()


CASES = (
    Case("BERT", _small("Bert"), 4, (2, 8), ("output.dense",), True),
    Case("ALBERT", _small("Albert", embedding_size=8), 4, (2, 8), ("ffn_output",), True),
    Case("Electra", _small("Electra", embedding_size=8), 4, (2, 8), ("output.dense",), True),
    Case("Roberta", _small("Roberta"), 4, (2, 8), ("output.dense",), True),
    Case("Llama, tokens of the MLP", _llama, 3, (2, 7), ("mlp/clamp",), True),
    Case("attention, blocks of queries", Blocks, 3, (2, 9, 12), ("/tril", "/masked_fill")),
    Case("loss, parts of the tokens", TokenLoss, 5, (2, 8, 16), ("/mul",)),
    Case("pictures, parts of a batch", Pictures, 2, (5, 2, 6, 6), ("/roll", "/cat")),
    Case("experts, parts of the rows", Experts, 4, (8, 8), ("/clamp", "/split")),
    Case("a state from part to part", Stream, 4, (3, 8, 6), ("rnn/gru",)),
    Case("slices off the front", Slices, 3, (8, 8), ("/getitem", "/vstack")),
    Case("checkpointed layers", Encoder, 2, (5, 4, 8), ("/clone", "/add", "/setitem")),
    Case("heads in groups", Heads, 2, (2, 5, 16), ("/scaled_dot_product_attention",)),
    Case("features in groups", Columns, 3, (4, 6), ("/mul", "/chunk")),
    Case("written into place", Written, 2, (7, 5), ("/getitem",)),
    Case("one row at a time", Rows, 1, (3, 8), ("/stack",)),
)


def rows() -> Iterator[tuple[str, ...]]:
    for case in CASES:
        sound = (case.compared(), case.compared(swap=True), case.compared(backward=True))
        fault = case.compared(fault=True)
        first = fault.first_divergence
        at = str(first.key.op) if first else "nowhere"
        hit = "yes" if first and at.endswith(case.at) else "no"
        yield (case.name, *(str(one).split(":")[0].split(" at ")[0] for one in sound), at, hit)


def table() -> Table:
    """Sound runs in chunks, and where a fault in a chunk is found."""
    columns = (
        "what",
        "in chunks",
        "golden in chunks",
        "with gradients",
        "a fault is at",
        "its op or the next",
    )
    return Table("chunks", columns, tuple(rows()))
