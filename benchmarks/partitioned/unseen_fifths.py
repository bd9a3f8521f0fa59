"""A fifth set that nothing was tuned on: tokens of images on ranks, an encoder and a decoder.

A vision transformer whose patches lie on ranks, the class token with the first ones, so that shares
are unequal; attention exchanges tokens for heads. And a model with relative positions and cross
attention on a mesh of two axes: weights by DTensor on one, the batch by FSDP2 on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.taps.distributed.programs.decoder import seeded
from tests.taps.distributed.programs.scenarios import Capture

WIDTH, HEADS, HEAD = 24, 4, 6
SIDE, PATCH = 16, 4
TOKENS = 1 + (SIDE // PATCH) ** 2
WORDS, BUCKETS, LENGTH = 40, 8, 6


class Exchange(nn.Module):
    """Attention; each rank has all heads of its tokens, and between two exchanges its heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.shares: list[int] = []  # how many tokens each rank has
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(part) for part in self.qkv(x).chunk(3, -1))
        if self.fault == "scores not scaled" and dist.get_rank() == 1:
            q = q * 1.25
        out = F.scaled_dot_product_attention(q, k, v)
        out = self._tokens(out).transpose(1, 2).flatten(2)
        result: Tensor = self.proj(out)
        return result

    def _heads(self, x: Tensor) -> Tensor:
        """All tokens of this rank's heads."""
        x = x.view(*x.shape[:2], HEADS, HEAD).transpose(1, 2)
        if not self.shares:
            return x
        pieces = [part.contiguous() for part in x.chunk(len(self.shares), 1)]
        shapes = [(len(x), HEADS // len(self.shares), num, HEAD) for num in self.shares]
        got = _swapped(pieces, shapes)
        if self.fault == "parts in another order" and dist.get_rank() == 0:
            got = got[::-1]
        return torch.cat(got, 2)

    def _tokens(self, x: Tensor) -> Tensor:
        """All heads of this rank's tokens."""
        if not self.shares:
            return x
        pieces = [part.contiguous() for part in torch.split(x, self.shares, 2)]
        mine = self.shares[dist.get_rank()]
        return torch.cat(_swapped(pieces, [(len(x), x.shape[1], mine, HEAD)] * len(self.shares)), 1)


def _swapped(pieces: list[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """What each rank has for this one, where it has one piece for each."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    got = torch.empty(sum(sizes))
    sent = torch.cat([piece.flatten() for piece in pieces])
    dist.all_to_all_single(got, sent, sizes, [piece.numel() for piece in pieces])
    return [part.view(shape) for part, shape in zip(torch.split(got, sizes), shapes, strict=True)]


class Look(nn.Module):
    """A block of the vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Exchange()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.ln2(x))))
        return out


class Vision(nn.Module):
    """Patches and a class token; what the class token has become is the result."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.ones(1, 1, WIDTH))
        self.pos = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(Look() for _ in range(3))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor, first: int, has_class: bool) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        if has_class:
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        x = x + self.pos[first : first + x.shape[1]]
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x[:, 0]) if has_class else x
        return out


def _image() -> Tensor:
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))


def vision_whole(capture: Capture) -> None:
    """All tokens on one rank."""
    model = seeded(Vision, 0.3)
    with capture(), torch.no_grad():
        model(_image(), 0, True)


def vision_split(capture: Capture, fault: str = "") -> None:
    """Rows of the image on each rank; the class token on the first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = seeded(Vision, 0.3)
    patches = (TOKENS - 1) // size
    for block in model.blocks:
        assert isinstance(block, Look)
        block.attn.shares = [patches + (n == 0) for n in range(size)]
    second = model.blocks[1]
    assert isinstance(second, Look)
    second.attn.fault = fault
    if fault == "old fc1" and rank == 1:
        with torch.no_grad():
            second.fc1.weight.mul_(0.97)
    first = rank * patches + (rank > 0 and fault != "positions off by one")
    with capture(), torch.no_grad():
        model(_image().chunk(size, 2)[rank], int(first), rank == 0)


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Related(nn.Module):
    """Attention to `memory` with a bias for how far apart two words are."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.far = nn.Embedding(BUCKETS, HEADS)
        self.sign = 1

    def forward(self, x: Tensor, memory: Tensor, is_causal: bool) -> Tensor:
        q, k, v = (
            layer(t).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer, t in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        here, there = torch.arange(x.shape[1]), torch.arange(memory.shape[1])
        apart = (self.sign * (there - here[:, None])).clamp(-BUCKETS // 2, BUCKETS // 2 - 1)
        bias = self.far(apart + BUCKETS // 2).permute(2, 0, 1)
        scores = q @ k.transpose(-1, -2) + bias
        if is_causal:
            scores = scores.masked_fill(there > here[:, None], -1e9)
        out: Tensor = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


class Reader(nn.Module):
    """A layer of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.own = Rms(), Rms(), Related()
        self.wi, self.wg = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.wo = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.n1(x)
        return self.fed(x + self.own(normed, normed, False))

    def fed(self, x: Tensor) -> Tensor:
        y = self.n2(x)
        out: Tensor = x + self.wo(F.gelu(self.wg(y)) * self.wi(y))
        return out


class Writer(Reader):
    """A layer of the decoder, which looks at what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.n3, self.cross = Rms(), Related()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        assert memory is not None
        normed = self.n1(x)
        x = x + self.own(normed, normed, True)
        return self.fed(x + self.cross(self.n3(x), memory, False))


class Translator(nn.Module):
    """Two layers each, and words that both share."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.reads = nn.ModuleList(Reader() for _ in range(2))
        self.writes = nn.ModuleList(Writer() for _ in range(2))
        self.end = Rms()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = self.words(source), self.words(target)
        for layer in self.reads:
            x = layer(x)
        for layer in self.writes:
            y = layer(y, x)
        return F.linear(self.end(y), self.words.weight)


def _texts() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    source = torch.randint(0, WORDS, (4, LENGTH + 2), generator=generator)
    return source, torch.randint(0, WORDS, (4, LENGTH), generator=generator)


def _learn(capture: Capture, model: nn.Module, source: Tensor, target: Tensor) -> None:
    with capture():
        out = model(source, target)
        loss = F.cross_entropy(out.flatten(0, 1), target.roll(-1, 1).flatten())
        loss.backward()  # type: ignore[no-untyped-call]


def translator_whole(capture: Capture) -> None:
    """The model on one rank."""
    _learn(capture, seeded(Translator, 0.2), *_texts())


def translator_meshed(capture: Capture, fault: str = "") -> None:
    """Heads and features on one axis, the batch on the other, two ranks each."""
    model: Any = seeded(Translator, 0.2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    second = model.writes[1]
    if fault == "distances turned":
        second.cross.sign = -1
    for layer in (*model.reads, *model.writes):
        parts = [name for name in ("own", "cross") if hasattr(layer, name)]
        plan: dict[str, Any] = {"wi": ColwiseParallel(), "wg": ColwiseParallel()}
        plan |= {"wo": RowwiseParallel()}
        for part in parts:
            plan |= {f"{part}.{name}": ColwiseParallel() for name in ("q", "k", "v", "far")}
            plan |= {f"{part}.o": RowwiseParallel()}
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    if fault == "stale values" and dist.get_rank() == 3:
        with torch.no_grad():
            second.cross.v.weight.to_local().mul_(1.04)
    if fault == "gate forgotten":
        second.fed = lambda x: x + second.wo(F.gelu(second.wg(second.n2(x))))
    rank = mesh["dp"].get_local_rank()
    source, target = (t.chunk(2)[rank] for t in _texts())
    if fault == "another source" and rank == 1:
        source = source.flip(0)
    _learn(capture, model, source, target)
