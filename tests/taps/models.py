"""Small models, each awkward in one way, with inputs and the ops that a capture must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class SharedModule(nn.Module):
    """One activation object stands at two places."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.GELU()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.again = act, act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.again(self.second(self.act(self.first(x))))
        return out


class InplaceRelu(nn.Module):
    """Overwrites the output of the layer before, and its own with +=."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.conv(x)) * 2
        y += 1
        return y


class KeywordOnly(nn.Module):
    """Takes nothing by position."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, *, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.proj(hidden).masked_fill(mask, 0.0)
        return out


class DictOutput(nn.Module):
    """Gives a dict with a nested tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.proj(x)
        return {"logits": y, "aux": (y.mean(), [y + 1, None])}


@dataclass
class Heads:
    """An output with two parts."""

    score: Tensor
    value: Tensor | None = None


class DataclassOutput(nn.Module):
    """Gives a dataclass, from an inner module that gives one too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = DataclassInner()

    def forward(self, x: Tensor) -> Heads:
        heads = self.inner(x)
        return Heads(heads.score * 2, heads.value)


class DataclassInner(nn.Module):
    """The inner module of DataclassOutput."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Heads:
        y = self.proj(x)
        return Heads(score=y.softmax(-1), value=y.sum())


class TiedWeights(nn.Module):
    """Embedding and head are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(tokens))
        return out


class Checkpointed(nn.Module):
    """Runs its blocks again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x * 2


class ListInLoop(nn.Module):
    """A residual stream over a list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


class CalledTwice(nn.Module):
    """One layer runs twice, and its functions with it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(1 - self.layer(x))
        return out


class Tagged(Tensor):
    """A tensor subclass that passes through every function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Subclassed(nn.Module):
    """Computes on a tensor subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(x.as_subclass(Tagged) + 1).as_subclass(Tensor)
        return out


class Broken(nn.Module):
    """Breaks dynamo's graph inside each of its blocks, which share a compiled graph."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BrokenBlock() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        for block in self.blocks:
            x = block(x)
        return x + 1


class BrokenBlock(nn.Module):
    """A block of Broken."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(x).sigmoid()
        torch._dynamo.graph_break()
        return y * x


class DynamicBatch(nn.Module):
    """Is called with another batch size each time."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(x).view(x.shape[0], 2, 3)
        return y.transpose(1, 2).reshape(x.shape[0] * 3, 2)


class Dropped(nn.Module):
    """Draws from the random number generator."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.proj(x)) + torch.rand_like(x)
        return out


class Strided(nn.Module):
    """Hands views and non-contiguous tensors around, and writes into one."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(x.T[1:, :])
        y = y.clone()
        y[:, 0] = 0.0
        return y.mT @ y


class BufferWriter(nn.Module):
    """Counts its calls in a buffer and normalises with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(x))


@dataclass(frozen=True)
class Case:
    """A model, the arguments of each call, and the ops that one call has."""

    name: str
    build: Callable[[], nn.Module]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ops: list[str]
    fx_differs: frozenset[str] = field(default_factory=frozenset)  # functions dynamo folds away


def _floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _once(*args: Any, **kwargs: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [(args, kwargs)]


_SEQUENTIAL = "blocks.{0} blocks.{0}.0 blocks.{0}.0/linear blocks.{0}.1 blocks.{0}.1/tanh"
_CHECKPOINTED = [
    "<root>", *_SEQUENTIAL.format(0).split(), *_SEQUENTIAL.format(1).split(), "<root>/mul"
]  # fmt: skip
_BLOCK = "blocks.{0} blocks.{0}.proj blocks.{0}.proj/linear blocks.{0}/sigmoid blocks.{0}/mul"

CASES = [
    Case("shared module", SharedModule, _once(_floats(2, 4)),
         ["<root>", "first", "first/linear", "act", "act/gelu", "second", "second/linear", "act#1",
          "act@1/gelu"]),
    Case("in-place relu", InplaceRelu, _once(_floats(2, 2, 8)),
         ["<root>", "conv", "conv/conv1d", "relu", "relu/relu", "<root>/mul", "<root>/add"]),
    Case("keyword-only inputs", KeywordOnly,
         _once(hidden=_floats(2, 4), mask=torch.tensor([True, False, False, True])),
         ["<root>", "proj", "proj/linear", "<root>/masked_fill"]),
    Case("dict outputs", DictOutput, _once(_floats(2, 4)),
         ["<root>", "proj", "proj/linear", "<root>/mean", "<root>/add"]),
    Case("dataclass outputs", DataclassOutput, _once(_floats(2, 4)),
         ["<root>", "inner", "inner.proj", "inner.proj/linear", "inner/softmax", "inner/sum",
          "<root>/mul"]),
    Case("tied weights", TiedWeights, _once(torch.tensor([[1, 5, 10]])),
         ["<root>", "embed", "embed/embedding", "head", "head/linear"]),
    Case("checkpointing", lambda: Checkpointed(False), _once(_floats(2, 4).requires_grad_()),
         _CHECKPOINTED),
    Case("reentrant checkpointing", lambda: Checkpointed(True),
         _once(_floats(2, 4).requires_grad_()), _CHECKPOINTED),
    Case("list in a loop", ListInLoop, _once(_floats(2, 4)),
         ["<root>", "layers.0", "layers.0/linear", "<root>/relu", "<root>/add", "layers.1",
          "layers.1/linear", "<root>/relu#1", "<root>/add#1", "layers.2", "layers.2/linear",
          "<root>/relu#2", "<root>/add#2"]),
    Case("module called twice", CalledTwice, _once(_floats(2, 4)),
         ["<root>", "layer", "layer/linear", "<root>/sub", "layer#1", "layer@1/linear"]),
    Case("tensor subclass", Subclassed, _once(_floats(2, 4)),
         ["<root>", "<root>/add", "proj", "proj/linear"]),
    Case("graph break", Broken, _once(_floats(2, 4)),
         ["<root>", "<root>/mul", *_BLOCK.format(0).split(), *_BLOCK.format(1).split(),
          "<root>/add"]),
    Case("dynamic batch", DynamicBatch,
         [((_floats(n, 4),), {}) for n in (2, 5, 7)],
         ["<root>", "proj", "proj/linear", "<root>/view", "<root>/transpose", "<root>/reshape"]),
    Case("random", Dropped, _once(_floats(3, 4)),
         ["<root>", "proj", "proj/linear", "drop", "drop/dropout", "<root>/rand_like",
          "<root>/add"]),
    Case("strided views", Strided, _once(_floats(3, 5)),
         ["<root>", "<root>/T", "<root>/getitem", "proj", "proj/linear", "<root>/clone",
          "<root>/setitem", "<root>/mT", "<root>/matmul"]),
    Case("buffers written", BufferWriter, _once(_floats(6, 4)),
         ["<root>", "norm", "norm/add", "norm/batch_norm", "<root>/relu"]),
]  # fmt: skip
