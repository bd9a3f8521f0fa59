"""Held out: a GPT with tensor and sequence parallelism by hand, and the same over two meshes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.taps.distributed.programs.scenarios import Capture

N_EMBD, N_HEAD, N_CTX, N_VOCAB, BATCH = 24, 6, 12, 50, 2


class CausalSelfAttention(nn.Module):
    """Attention with its mask and softmax spelled out."""

    def __init__(self, heads: int = N_HEAD) -> None:
        super().__init__()
        width = heads * (N_EMBD // N_HEAD)
        self.heads = heads
        self.query = nn.Linear(N_EMBD, width)
        self.key = nn.Linear(N_EMBD, width)
        self.value = nn.Linear(N_EMBD, width)
        self.c_proj = nn.Linear(width, N_EMBD)

    def attend(self, x: Tensor) -> Tensor:
        """All heads of this module, next to each other."""
        b, t, _ = x.size()
        q, k, v = (
            f(x).reshape(b, t, self.heads, -1).permute(0, 2, 1, 3)
            for f in (self.query, self.key, self.value)
        )
        att = torch.matmul(q, k.mT) / math.sqrt(q.size(-1))
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        att = att.masked_fill(~mask, float("-inf")).softmax(-1)
        out: Tensor = (att @ v).permute(0, 2, 1, 3).flatten(2)
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.attend(x))
        return out


class FeedForward(nn.Module):
    """Two layers with a squared relu between them."""

    def __init__(self, hidden: int = 4 * N_EMBD) -> None:
        super().__init__()
        self.c_fc = nn.Linear(N_EMBD, hidden)
        self.c_proj = nn.Linear(hidden, N_EMBD)

    def inner(self, x: Tensor) -> Tensor:
        """What the second layer takes."""
        return torch.relu(self.c_fc(x)).square()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.inner(x))
        return out


class GPTBlock(nn.Module):
    """Norms before attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(N_EMBD), nn.LayerNorm(N_EMBD)
        self.attn: nn.Module = CausalSelfAttention()
        self.mlp: nn.Module = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a head that shares no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(N_VOCAB, N_EMBD), nn.Embedding(N_CTX, N_EMBD)
        self.h = nn.ModuleList(GPTBlock() for _ in range(3))
        self.ln_f, self.lm_head = nn.LayerNorm(N_EMBD), nn.Linear(N_EMBD, N_VOCAB, bias=False)
        self.shares = 1

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        if self.shares > 1:
            x = x.tensor_split(self.shares, 1)[dist.get_rank()]
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        if self.shares > 1:
            x = _Whole.apply(x)  # type: ignore[no-untyped-call]
        out: Tensor = self.lm_head(x)
        return out


class _Gather(torch.autograd.Function):
    """The sequence gathered forward, its gradients summed and scattered backward."""

    @staticmethod
    def forward(_ctx: Any, x: Any) -> Any:
        size = dist.get_world_size()
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(_ctx: Any, grad: Any) -> Any:
        return _scatter(grad)


class _Whole(torch.autograd.Function):
    """The sequence gathered forward; every rank has all its gradients and keeps its share."""

    @staticmethod
    def forward(_ctx: Any, x: Any) -> Any:
        return _Gather.forward(_ctx, x)

    @staticmethod
    def backward(_ctx: Any, grad: Any) -> Any:
        return grad.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


class _Scatter(torch.autograd.Function):
    """The sum of the ranks' terms, a share of the sequence each; gathered backward."""

    @staticmethod
    def forward(_ctx: Any, x: Any) -> Any:
        return _scatter(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _Gather.forward(ctx, grad)


def _scatter(x: Tensor) -> Tensor:
    size = dist.get_world_size()
    parts = [part.contiguous() for part in x.chunk(size, 1)]
    out = torch.empty_like(parts[0])
    dist.reduce_scatter(out, parts)
    return out


class SplitAttention(CausalSelfAttention):
    """Some of the heads; takes and gives a share of the sequence."""

    fault = ""

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(_Gather.apply(x))  # type: ignore[no-untyped-call]
        return _out(y, self.c_proj, self.fault)


class SplitFeedForward(FeedForward):
    """Some of the hidden features; takes and gives a share of the sequence."""

    fault = ""

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(_Gather.apply(x))  # type: ignore[no-untyped-call]
        return _out(y, self.c_proj, self.fault)


def _out(y: Tensor, layer: nn.Linear, fault: str) -> Tensor:
    """A row-parallel layer whose bias is added once, after the sum."""
    term = torch.matmul(y, layer.weight.t())
    if fault == "local":  # its own share of its own term: nobody adds up
        out = term.chunk(dist.get_world_size(), 1)[dist.get_rank()]
    else:
        out = _Scatter.apply(term)  # type: ignore[no-untyped-call]
    return out + layer.bias


def _gpt() -> GPT:
    torch.manual_seed(7)
    model = GPT()
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.4 if parameter.ndim == 1 else 0.0, std=0.25)
    return model


def _narrow(whole: nn.Module, part: nn.Module, rows: tuple[str, ...]) -> None:
    """Give `part` this rank's share of `whole`: of `rows` by outputs, of c_proj by inputs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for name in (*rows, "c_proj"):
        ours, theirs = whole.get_submodule(name), part.get_submodule(name)
        assert isinstance(ours, nn.Linear) and isinstance(theirs, nn.Linear)
        is_row = name != "c_proj"
        with torch.no_grad():
            theirs.weight.copy_(ours.weight.chunk(size, 0 if is_row else 1)[rank])
            theirs.bias.copy_(ours.bias.chunk(size)[rank] if is_row else ours.bias)


def _go(capture: Capture, model: GPT, shared: tuple[str, ...] = ()) -> None:
    ids = torch.randint(0, N_VOCAB, (BATCH, N_CTX), generator=torch.Generator().manual_seed(3))
    with capture():
        torch.manual_seed(0)
        logits = model(ids)
        loss = nn.functional.cross_entropy(logits.view(-1, N_VOCAB), ids.roll(-1, 1).reshape(-1))
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and name.endswith(shared):
                dist.all_reduce(parameter.grad)


def whole(capture: Capture) -> None:
    """The GPT on one rank."""
    _go(capture, _gpt())


def sequence_parallel(capture: Capture, fault: str = "") -> None:
    """Norms on a share of the sequence, products on a share of the features."""
    model = _gpt()
    size = model.shares = dist.get_world_size()
    for number, block in enumerate(model.h):
        assert isinstance(block, GPTBlock)
        attn, mlp = SplitAttention(N_HEAD // size), SplitFeedForward(4 * N_EMBD // size)
        _narrow(block.attn, attn, ("query", "key", "value"))
        _narrow(block.mlp, mlp, ("c_fc",))
        block.attn, block.mlp = attn, mlp
        if number == 2:
            _plant(block, attn, mlp, fault)
    norms = [name for name, _ in model.named_parameters() if "ln_" in name]
    _go(capture, model, ("wte.weight", "wpe.weight", "c_proj.bias", *norms))


def _plant(block: GPTBlock, attn: SplitAttention, mlp: SplitFeedForward, fault: str) -> None:
    last = dist.get_rank() == dist.get_world_size() - 1
    if fault == "local reduce":
        mlp.fault = "local"
    elif fault == "eps on one rank" and last:
        block.ln_2.eps = 0.2
    elif fault == "key bias dropped" and last:
        attn.key.register_parameter("bias", None)
    elif fault == "old value weights" and last:
        with torch.no_grad():
            attn.value.weight.add_(0.02)
    elif fault == "relu for its square":
        mlp.inner = lambda x: torch.relu(mlp.c_fc(x))  # type: ignore[method-assign]
