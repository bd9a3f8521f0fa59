"""Experts with room for so many tokens: places by number, or groups of tokens in one product."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.taps.distributed.programs.scenarios import Capture

WIDTH, HIDDEN, EXPERTS, ROOM, TOKENS = 12, 20, 4, 3, 16


class Places(nn.Module):
    """The best expert of each token; what finds no place there goes to a row that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
            for _ in range(EXPERTS)
        )
        self.shards, self.fault = 1, ""

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each token, and with what weight it comes back."""
        weight, expert = self.gate(x).softmax(-1).max(-1)
        if self.fault == "wrong expert" and dist.get_rank() == 1:
            expert = (expert + 1) % EXPERTS
        ones = F.one_hot(expert, EXPERTS)
        place = (ones.cumsum(0) * ones).sum(-1) - 1
        kept = place < ROOM
        slot = torch.where(kept, expert * ROOM + place, EXPERTS * ROOM)
        if self.fault == "combine weight" and dist.get_rank() == 1:
            weight = weight.roll(1, 0)
        return slot, weight * kept

    def fill(self, x: Tensor, slot: Tensor) -> Tensor:
        """The rows of all experts, zero where there is no token."""
        rows = x.new_zeros(EXPERTS * ROOM + 1, WIDTH)
        return rows.index_copy(0, slot, x)[:-1]

    def take(self, rows: Tensor, slot: Tensor, weight: Tensor) -> Tensor:
        """What each token's place has."""
        padded = torch.cat([rows, rows.new_zeros(1, WIDTH)])
        return padded.index_select(0, slot) * weight[:, None]

    def forward(self, x: Tensor) -> Tensor:
        outs = []
        for part in x.chunk(self.shards):
            slot, weight = self.route(part)
            rows = self.fill(part, slot).view(EXPERTS, ROOM, WIDTH)
            made = torch.stack(
                [expert(own) for expert, own in zip(self.experts, rows, strict=True)]
            )
            outs.append(self.take(made.view(-1, WIDTH), slot, weight))
        return torch.cat(outs)


class PlacesOnRanks(Places):
    """The same with this rank's experts; every rank has a shard of the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        size = dist.get_world_size()
        slot, weight = self.route(x)
        rows = self.fill(x, slot)
        here = torch.empty_like(rows)
        dist.all_to_all_single(here, rows)
        mine = here.view(size, -1, ROOM, WIDTH).transpose(0, 1).flatten(1, 2)
        own = [expert for expert in self.experts if not isinstance(expert, nn.Identity)]
        made = torch.stack([expert(part) for expert, part in zip(own, mine, strict=True)])
        sent = made.view(len(own), size, ROOM, WIDTH).transpose(0, 1).flatten(0, 2).contiguous()
        back = torch.empty_like(sent)
        if self.fault == "dropped all_to_all":
            back = sent
        else:
            dist.all_to_all_single(back, sent)
        return self.take(back, slot, weight)


class Groups(nn.Module):
    """Two experts of each token, groups of tokens in one product: an einsum to places and back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.empty(EXPERTS, WIDTH, HIDDEN))
        self.down = nn.Parameter(torch.empty(EXPERTS, HIDDEN, WIDTH))
        self.shards, self.fault = 1, ""

    def dispatch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For each group, token, expert and place: whether, and with what weight."""
        gates = self.gate(x).softmax(-1)
        best = gates.topk(2, -1).indices
        if self.fault == "wrong expert" and dist.get_rank() == 1:
            best = (best + 1) % EXPERTS
        chosen = F.one_hot(best, EXPERTS).sum(-2)
        place = chosen.cumsum(-2) * chosen - 1
        spread = F.one_hot(place.clamp(min=0), TOKENS)[..., :ROOM] * chosen[..., None]
        weights = gates * chosen
        weights = weights / weights.sum(-1, keepdim=True)
        if self.fault == "combine weight" and dist.get_rank() == 1:
            weights = weights * 1.02
        return spread.to(x.dtype), weights[..., None] * spread

    def experts(self, rows: Tensor) -> Tensor:
        """All experts that are here on their rows."""
        hidden = F.silu(torch.einsum("egcm,emh->egch", rows, self.up))
        return torch.einsum("egch,ehm->egcm", hidden, self.down)

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.view(self.shards, -1, WIDTH)
        mask, weights = self.dispatch(grouped)
        rows = torch.einsum("gsec,gsm->egcm", mask, grouped)
        out = torch.einsum("gsec,egcm->gsm", weights, self.experts(rows))
        return out.reshape(-1, WIDTH)


class GroupsOnRanks(Groups):
    """The same with this rank's experts and its group."""

    def forward(self, x: Tensor) -> Tensor:
        size = dist.get_world_size()
        grouped = x.view(1, -1, WIDTH)
        mask, weights = self.dispatch(grouped)
        rows = torch.einsum("gsec,gsm->egcm", mask, grouped).contiguous()
        here = torch.empty_like(rows)
        dist.all_to_all_single(here, rows)
        mine = here.view(size, -1, ROOM, WIDTH).transpose(0, 1)
        made = self.experts(mine).transpose(0, 1).reshape(rows.shape).contiguous()
        back = torch.empty_like(made)
        if self.fault == "dropped all_to_all":
            back = made
        else:
            dist.all_to_all_single(back, made)
        return torch.einsum("gsec,egcm->gsm", weights, back).reshape(-1, WIDTH)


class Sparse(nn.Module):
    """Two such layers with norms."""

    def __init__(self, kind: type[Places | Groups], shards: int) -> None:
        super().__init__()
        torch.manual_seed(29)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.moes = nn.ModuleList(kind() for _ in range(2))
        for moe in self.moes:
            moe.shards = shards  # type: ignore[assignment]
        for parameter in self.parameters():
            nn.init.normal_(parameter, mean=0.8 if parameter.ndim == 1 else 0.0, std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        for norm, moe in zip(self.norms, self.moes, strict=True):
            x = x + moe(norm(x))
        return x


_KINDS: dict[str, tuple[type[Places | Groups], type[PlacesOnRanks | GroupsOnRanks]]] = {
    "places": (Places, PlacesOnRanks),
    "groups": (Groups, GroupsOnRanks),
}


def _rows() -> Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(31))


def whole(capture: Capture, kind: str) -> None:
    """All experts on one rank, which fills their places as two shards of the tokens do."""
    model = Sparse(_KINDS[kind][0], 2)
    with capture(), torch.no_grad():
        model(_rows())


def spread(capture: Capture, kind: str, fault: str = "") -> None:
    """Some of the experts and of the tokens on each rank."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model = Sparse(_KINDS[kind][1], 1)
    for number, moe in enumerate(model.moes):
        assert isinstance(moe, PlacesOnRanks | GroupsOnRanks)
        moe.fault = fault if number == 1 else ""
        if isinstance(moe, PlacesOnRanks):
            for n in range(EXPERTS):
                if n * size // EXPERTS != rank:
                    moe.experts[n] = nn.Identity()
        else:
            moe.up = nn.Parameter(moe.up.detach().chunk(size)[rank].clone())
            moe.down = nn.Parameter(moe.down.detach().chunk(size)[rank].clone())
    with capture(), torch.no_grad():
        model(_rows().chunk(size)[rank])
