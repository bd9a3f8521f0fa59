"""An embedding of which each rank has some words, and drops the others in one of many ways."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp

SIZE, WIDTH = 24, 8
WAYS = ("set", "filled", "filled in place", "chosen", "multiplied", "not dropped")


class Words(nn.Module):
    """The rows of an embedding, all of them or those of one rank."""

    def __init__(self, first: int = 0, count: int = SIZE) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.count = first, count
        self.weight = nn.Parameter(torch.randn(SIZE, WIDTH)[first : first + count].clone())

    def forward(self, words: Tensor, way: str) -> Tensor:
        if self.count == SIZE:
            return F.embedding(words, self.weight)
        other = (words < self.first) | (words >= self.first + self.count)
        rows = F.embedding((words - self.first).masked_fill(other, 0), self.weight)
        given = dropped(rows, other, way)
        dist.all_reduce(given)
        return given


def dropped(rows: Tensor, other: Tensor, way: str) -> Tensor:
    """The rows of words that a rank has, zeros in place of others, unless that is forgotten."""
    match way:
        case "set":
            rows[other] = 0.0
        case "filled":
            return rows.masked_fill(other[..., None], 0.0)
        case "filled in place":
            rows.masked_fill_(other[..., None], 0.0)
        case "chosen":
            return torch.where(other[..., None], 0.0, rows)
        case "multiplied":
            return rows * (~other)[..., None]
    return rows


class Reader(nn.Module):
    def __init__(self, words: Words) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.head = words, nn.Linear(WIDTH, 5)

    def forward(self, words: Tensor, way: str = "") -> Tensor:
        out: Tensor = self.head(self.words(words, way))
        return out


def dump(path: Path, words: Words, way: str = "") -> None:
    """Read a few words, one `way` or the other."""
    model = Reader(words)
    given = torch.randint(0, SIZE, (2, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), dumpcmp.capture(model, path):
        model(given, way)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    share = SIZE // dist.get_world_size()
    for each in WAYS:
        dump(Path(sys.argv[1]) / each, Words(dist.get_rank() * share, share), each)
    dist.destroy_process_group()
