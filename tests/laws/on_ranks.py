"""Programs at random on two ranks, each with its rows: python -m me DIRECTORY SEEDS."""

from __future__ import annotations

import random
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import dumpcmp
from tests.laws.drawing import Drawn, Plan, drawn, exact, given, how_far, rewritten, with_fault
from tests.laws.pieces import PIECES, Affine
from tests.laws.trials import REACHES


def on_ranks(seed: int) -> Plan:
    """A program of one step whose rows do not depend on each other."""
    plan = drawn(seed, most=3)
    kinds = tuple(kind if PIECES[kind].is_by_row else "Affine" for kind in plan.kinds)
    ways = tuple(PIECES[kind].ways[0] for kind in kinds)
    return replace(
        plan, kinds=kinds, ways=ways, end="Scores", end_way="plain", lengths=plan.lengths[:1],
        trains=False, dtype=torch.float32,
    )  # fmt: skip


def faulty(plan: Plan) -> Plan | None:
    """`plan` with a fault in its program or start that changes what it returns."""
    draws = random.Random(plan.seed)
    for _ in range(8):
        planted = with_fault(plan, draws)
        if planted.question in ("program", "start"):
            far = how_far(exact(planted.plan), exact(plan))
            if far > REACHES[plan.dtype]:
                return planted.plan
    return None


class Shared(Drawn):
    """Each rank runs its rows, and all of them are gathered; linear layers are split as well."""

    def forward(self, x: Tensor) -> object:
        part = self._run(x[dist.get_rank() :][:1])
        assert isinstance(part, Tensor)
        parts = [torch.empty_like(part) for _ in range(2)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)


class Split(Drawn):
    """Each rank has all rows, and of a linear layer half of what goes in, or of what comes out."""

    def _run(self, x: Tensor) -> object:
        for piece in self.modules():
            if isinstance(piece, Affine) and piece.way in Affine.ways:
                piece.forward = _summed(piece)  # type: ignore[method-assign]
        return super()._run(x)


def _summed(piece: Affine):  # type: ignore[no-untyped-def]
    half = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)

    def forward(x: Tensor) -> Tensor:
        part = F.linear(x[..., half], piece.linear.weight[:, half])
        dist.all_reduce(part)
        return part + piece.linear.bias

    return forward


def main(room: Path, seeds: list[int]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    for seed in seeds:
        plan = on_ranks(seed)
        wrong = faulty(plan)
        for name, each in (("sound", rewritten(plan, random.Random(seed))), ("wrong", wrong)):
            if each is None:
                continue
            dist.barrier()
            kind = Shared if seed % 2 else Split
            model = kind(replace(each, is_by_row=False, is_renamed=False))
            with torch.no_grad(), dumpcmp.capture(model, room / f"{name}-{seed}"):
                model(given(plan, 0))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [*map(int, sys.argv[2:])])
