"""Held out: a sharded convolution net, a pipeline with a skip, experts with a capacity."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from tests.taps.distributed.programs.scenarios import Capture

# A net of convolutions under FSDP2.


class Residual(nn.Module):
    """Two convolutions with group norms and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_a = nn.Conv2d(channels, channels, 3, padding=1)
        self.gn_a = nn.GroupNorm(2, channels)
        self.conv_b = nn.Conv2d(channels, channels, 3, padding=1, groups=2)
        self.gn_b = nn.GroupNorm(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.gn_a(self.conv_a(x)))
        return x + F.hardswish(self.gn_b(self.conv_b(y)))


class ConvNet(nn.Module):
    """A stem, two residual blocks with pooling between them, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Residual(8), nn.AvgPool2d(2), Residual(8))
        self.classifier = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.blocks(self.stem(images)).mean((2, 3)))
        return out


def _conv_net() -> ConvNet:
    torch.manual_seed(11)
    model = ConvNet()
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.6 if parameter.ndim == 1 else 0.0, std=0.3)
    return model


def _images() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(5)
    return torch.randn(4, 3, 16, 16, generator=made), torch.tensor([1, 7, 3, 3])


def conv_whole(capture: Capture) -> None:
    """The net on one rank."""
    model, (images, classes) = _conv_net(), _images()
    with capture():
        F.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]


def conv_sharded(capture: Capture, fault: str = "") -> None:
    """FSDP2 of each block; the images are sharded."""
    model, (images, classes) = _conv_net(), _images()
    size, rank = dist.get_world_size(), dist.get_rank()
    second: Any = model.blocks[2]
    if fault == "padding":
        second.conv_b.padding_mode = "circular"
        second.conv_b._reversed_padding_repeated_twice = [1, 1, 1, 1]
    elif fault == "groups of norm":
        second.gn_a.num_groups = 4
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
    for block in (model.blocks[0], second):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if fault == "stale convolution" and rank == 1:
        with torch.no_grad():
            second.conv_a.weight.to_local().mul_(1.1)
    with capture():
        out = model(images.chunk(size)[rank])
        F.cross_entropy(out, classes.chunk(size)[rank]).backward()  # type: ignore[no-untyped-call]


# A pipeline whose last stage takes what the first one began with.


class Encode(nn.Module):
    """The first half: gives out what it made, and what the second half needs besides."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(6, 16)
        self.down1, self.down2 = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.inp(x))
        return torch.tanh(self.down2(torch.tanh(self.down1(h)))), h


class Decode(nn.Module):
    """The second half."""

    def __init__(self) -> None:
        super().__init__()
        self.up1, self.mix, self.up2 = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(32, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        u = F.elu(self.up1(x))
        u = F.elu(self.up2(torch.cat([u, self.mix(skip)], -1)))
        out: Tensor = self.out(u)
        return out


class Hourglass(nn.Module):
    """Both halves, whose modules have the names that they have alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(13)
        for half in (Encode(), Decode()):
            for name, module in half.named_children():
                self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return Decode.forward(self, *Encode.forward(self, x))  # type: ignore[arg-type]


def _half(kind: type[Encode | Decode]) -> Encode | Decode:
    both, half = Hourglass(), kind()
    for name, _ in half.named_children():
        half.add_module(name, both.get_submodule(name))
    return half


def _signals() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(17)
    return torch.randn(8, 5, 6, generator=made), torch.randn(8, 5, 4, generator=made)


def skip_whole(capture: Capture) -> None:
    """Both halves on one rank."""
    model, (x, y) = Hourglass(), _signals()
    with capture():
        F.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]


def skip_piped(capture: Capture, fault: str = "") -> None:
    """A half on each rank, four microbatches."""
    rank, (x, y) = dist.get_rank(), _signals()
    half: Any = _half(Encode if rank == 0 else Decode)
    if fault == "skip scaled" and rank == 1:
        inner = half.forward
        half.forward = lambda x, skip: inner(x, skip * 1.05)
    elif fault == "other activation" and rank == 1:
        half.forward = lambda x, skip: half.out(
            F.elu(half.up2(torch.cat([F.celu(half.up1(x), 0.5), half.mix(skip)], -1)))
        )
    elif fault == "weight on first" and rank == 0:
        with torch.no_grad():
            half.down1.weight.mul_(1.1)
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=F.mse_loss)
    with capture():
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)


# Experts with a capacity: what does not fit is dropped.

D_MODEL, D_FF, NUM, CAPACITY, ROWS = 12, 20, 4, 3, 16


class CapacityMoE(nn.Module):
    """The two best experts of each token, each expert with room for so many of a shard's tokens."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.wg = nn.Linear(D_MODEL, NUM, bias=False)
        self.w1 = nn.Parameter(torch.empty(NUM, D_MODEL, D_FF))
        self.w2 = nn.Parameter(torch.empty(NUM, D_FF, D_MODEL))
        self.shards, self.fault = shards, ""

    def dispatch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For each token, expert and place in it: whether, and with what weight."""
        gates = self.wg(x).softmax(-1)
        _, best = gates.topk(2, -1)
        chosen = F.one_hot(best, NUM).sum(-2)
        place = chosen.cumsum(0) * chosen - 1
        kept = F.one_hot(place.clamp(min=0), ROWS)[..., :CAPACITY] * chosen[..., None]
        if self.fault == "not normalised" and dist.get_rank() == 1:
            return kept.to(x.dtype), gates[..., None] * kept
        gates = gates * chosen / (gates * chosen).sum(-1, keepdim=True)
        return kept.to(x.dtype), gates[..., None] * kept

    def forward(self, x: Tensor) -> Tensor:
        outs = []
        for part in x.chunk(self.shards):
            mask, weights = self.dispatch(part)
            rows = torch.einsum("tec,td->ecd", mask, part)
            hidden = torch.bmm(F.relu(torch.bmm(rows, self.w1)), self.w2)
            outs.append(torch.einsum("tec,ecd->td", weights, hidden))
        return torch.cat(outs)


class CapacityMoEOnRanks(CapacityMoE):
    """The same with this rank's experts; every rank has a shard of the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        size, own = dist.get_world_size(), self.w1.shape[0]
        mask, weights = self.dispatch(x)
        rows = torch.einsum("tec,td->ecd", mask, x)
        there = torch.empty_like(rows)
        dist.all_to_all_single(there, rows.contiguous())
        mine = there.view(size, own, CAPACITY, D_MODEL).transpose(0, 1).reshape(own, -1, D_MODEL)
        hidden = torch.bmm(F.relu(torch.bmm(mine, self.w1)), self.w2)
        sent = hidden.view(own, size, CAPACITY, D_MODEL).transpose(0, 1).contiguous()
        if self.fault == "experts not sent back in order":
            sent = sent.flip(1)
        back = torch.empty_like(rows)
        dist.all_to_all_single(back, sent.view_as(rows))
        return torch.einsum("tec,ecd->td", weights, back)


class Sparse(nn.Module):
    """Two such layers with norms."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        torch.manual_seed(19)
        self.norms = nn.ModuleList(nn.RMSNorm(D_MODEL) for _ in range(2))
        self.moes = nn.ModuleList(CapacityMoE(shards) for _ in range(2))
        for parameter in self.parameters():
            nn.init.normal_(parameter, mean=0.8 if parameter.ndim == 1 else 0.0, std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        for norm, moe in zip(self.norms, self.moes, strict=True):
            x = x + moe(norm(x))
        return x


def _rows() -> Tensor:
    return torch.randn(ROWS, D_MODEL, generator=torch.Generator().manual_seed(23))


def capacity_whole(capture: Capture) -> None:
    """All experts on one rank, which fills them as two shards of the tokens do."""
    model = Sparse(2)
    with capture(), torch.no_grad():
        model(_rows())


def capacity_spread(capture: Capture, fault: str = "") -> None:
    """Some of the experts and of the tokens on each rank."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model = Sparse(1)
    for number, (norm, moe) in enumerate(zip(model.norms, list(model.moes), strict=True)):
        assert isinstance(moe, CapacityMoE) and isinstance(norm, nn.RMSNorm)
        spread = CapacityMoEOnRanks(1)
        spread.wg = moe.wg
        spread.w1 = nn.Parameter(moe.w1.detach().chunk(size)[rank].clone())
        spread.w2 = nn.Parameter(moe.w2.detach().chunk(size)[rank].clone())
        if number == 1 and fault == "expert weight" and rank == 1:
            spread.w2.data[1] *= 1.1
        spread.fault = fault if number == 1 else ""
        model.moes[number] = spread
    with capture(), torch.no_grad():
        model(_rows().chunk(size)[rank])
