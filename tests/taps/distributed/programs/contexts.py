"""Context parallelism by hand: the sequence over the ranks, keys gathered or sent in a ring."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.taps.distributed.programs.decoder import seeded
from tests.taps.distributed.programs.scenarios import Capture

WIDTH, HEADS, LENGTH, VOCAB, LAYERS = 32, 4, 16, 64, 2
HEAD = WIDTH // HEADS


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, length, head]."""
    angles = positions[:, None] / 100.0 ** (torch.arange(HEAD // 2) / (HEAD // 2))
    cos, sin = angles.cos(), angles.sin()
    one, other = x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class Attention(nn.Module):
    """Causal attention; of the keys and values every rank has its share of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.how, self.fault = "", ""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        shift = positions
        if self.fault == "offset" and dist.get_rank() == 1:
            shift = positions - positions[0]
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = rotated(q, shift), rotated(k, positions)
        if self.how == "ring":
            out = ringed(q, k, v, positions, self.fault)
        elif self.how:
            out = gathered(q, k, v, positions, self.fault)
        else:
            mask = positions[:, None] >= positions
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        merged: Tensor = self.o(out.transpose(1, 2).flatten(2))
        return merged


def gathered(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, fault: str = "") -> Tensor:
    """Attention over the keys and values of all ranks, in the order of their positions."""
    all_k, all_v, places = (_everyones(t, dim) for t, dim in ((k, 2), (v, 2), (positions, 0)))
    if fault == "own keys" and dist.get_rank() == 1:
        all_k = torch.cat([k] * dist.get_world_size(), 2)
    order = torch.argsort(places)
    mask = positions[:, None] >= places[order]
    if fault == "mask":
        mask = torch.ones_like(mask)
    return F.scaled_dot_product_attention(q, all_k[:, :, order], all_v[:, :, order], attn_mask=mask)


def _everyones(mine: Tensor, dim: int) -> Tensor:
    shares = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(shares, mine.contiguous())
    return torch.cat(shares, dim)


def ringed(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, fault: str) -> Tensor:
    """Attention block by block, as keys and values come round; sums are kept up to date."""
    rank, size = dist.get_rank(), dist.get_world_size()
    best = torch.full((*q.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(best), torch.zeros_like(q)
    for turn in range(size):
        places = positions + (((rank - turn) % size) - rank) * len(positions)
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
        scores = scores.masked_fill(positions[:, None] < places, -math.inf)
        top = torch.maximum(best, scores.amax(-1, keepdim=True)).clamp_min(-1e30)
        weights = (scores - top).exp()
        shrink = (best - top).exp()
        if fault == "rescale" and turn and rank == 1:
            shrink = torch.ones_like(shrink)
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ v
        best = top
        if turn < size - 1:
            k, v = _passed_on(k), _passed_on(v)
    return out / total


def _passed_on(mine: Tensor) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = mine.contiguous()
    theirs = torch.empty_like(mine)
    ops = [
        dist.P2POp(dist.isend, mine, (rank + 1) % size),
        dist.P2POp(dist.irecv, theirs, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return theirs


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), positions)
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Long(nn.Module):
    """A decoder that is told the positions of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.layers:
            x = block(x, positions)
        out: Tensor = self.head(self.norm(x))
        return out


def _ids() -> Tensor:
    return torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def whole(capture: Capture) -> None:
    """The whole sequence on one rank."""
    model = seeded(Long, 0.3)
    with capture(), torch.no_grad():
        model(_ids(), torch.arange(LENGTH))


def partitioned(capture: Capture, how: str, fault: str = "") -> None:
    """A share of the sequence on each rank: consecutive, or in zig-zag order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = seeded(Long, 0.3)
    for block in model.layers:
        assert isinstance(block, Block)
        block.attn.how = how
    second = model.layers[1]
    assert isinstance(second, Block)
    second.attn.fault = fault
    if fault == "weight" and rank == 1:
        with torch.no_grad():
            second.down.weight.mul_(1.05)
    places = torch.arange(LENGTH)
    if how == "zigzag":
        pieces = places.chunk(2 * size)
        mine = torch.cat([pieces[rank], pieces[2 * size - 1 - rank]])
    else:
        mine = places.chunk(size)[rank]
    with capture(), torch.no_grad():
        model(_ids()[:, mine].contiguous(), mine)
