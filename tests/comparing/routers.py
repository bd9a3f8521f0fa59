"""Models that choose: mixtures of experts in several styles, masks, argmax."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, EXPERTS, TAKEN = 16, 8, 2


class Experts(nn.Module):
    """The weights of a mixture, and what one expert makes of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) * WIDTH**-0.5 / 2)

    def expert(self, rows: Tensor, number: int) -> Tensor:
        return F.gelu(rows @ self.up[number]) @ self.down[number]

    def routed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.softmax(self.gate(rows).float(), -1)
        weights, chosen = torch.topk(scores, TAKEN, -1)
        return (weights / weights.sum(-1, keepdim=True)).to(rows.dtype), chosen


class Looped(Experts):
    """Each expert in turn takes its tokens and adds what it makes of them."""

    def forward(self, rows: Tensor) -> Tensor:
        weights, chosen = self.routed(rows)
        out = torch.zeros_like(rows)
        for number in range(EXPERTS):
            token, slot = torch.where(chosen == number)
            made = self.expert(rows[token], number)
            out.index_add_(0, token, made * weights[token, slot, None])
        return out


class Grouped(Experts):
    """Tokens are sorted by their experts, who take them in one piece, and sorted back."""

    def forward(self, rows: Tensor) -> Tensor:
        weights, chosen = self.routed(rows)
        flat = chosen.reshape(-1)
        order = flat.argsort()
        counts = torch.bincount(flat, minlength=EXPERTS).tolist()
        parts = torch.split(rows[order // TAKEN], counts)
        made = torch.cat([self.expert(part, number) for number, part in enumerate(parts)])
        back = torch.empty_like(made)
        back[order] = made
        return (back.view(-1, TAKEN, WIDTH) * weights[..., None]).sum(1)


class Dense(Experts):
    """All experts take all tokens; a one-hot gate says which of them count."""

    def forward(self, rows: Tensor) -> Tensor:
        weights, chosen = self.routed(rows)
        gates = torch.zeros(rows.shape[0], EXPERTS, dtype=rows.dtype).scatter(1, chosen, weights)
        made = F.gelu(rows @ self.up) @ self.down
        return (made * gates.t()[..., None]).sum(0)


class Gated(Experts):
    """Only tokens above a threshold go through an expert."""

    def forward(self, rows: Tensor) -> Tensor:
        mask = self.gate(rows).amax(-1) > 0.5
        out = rows.clone()
        out[mask] = self.expert(rows[mask], 0)
        return out.masked_fill(~mask[:, None], 0.0)


class Block(nn.Module):
    """Attention, and then a mixture."""

    def __init__(self, style: type[Experts]) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.moe = style()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.attend(self.norm(x)).view(batch, length, 3, 2, WIDTH // 2)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        made: Tensor = self.moe(self.norm2(x).reshape(-1, WIDTH))
        return x + made.view_as(x)


class Router(nn.Module):
    """A decoder of such blocks, which chooses the next token by argmax."""

    def __init__(self, style: type[Experts], num_blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(Block(style) for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits.argmax(-1)


STYLES: dict[str, type[Experts]] = {
    "looped": Looped,
    "grouped": Grouped,
    "dense": Dense,
    "gated": Gated,
}


def router(style: str, dtype: torch.dtype, seed: int = 0) -> tuple[Router, Tensor]:
    """A model, and the tokens that it is given."""
    torch.manual_seed(seed)
    return Router(STYLES[style]).to(dtype), torch.randint(0, 32, (2, 12))
