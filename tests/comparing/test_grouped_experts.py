"""Experts that take sorted tokens, as on a GPU: ties in another order, and counts as integers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict

WIDTH, EXPERTS, TAKEN = 8, 4, 2


class Grouped(nn.Module):
    """Tokens sorted by expert; a histogram tells where each expert's end.

    On a CPU `histc` takes floats alone, on a GPU it is given integers.
    """

    def __init__(self, counts_integers: bool) -> None:
        super().__init__()
        self.counts_integers = counts_integers
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        weights, chosen = torch.topk(self.gate(rows).softmax(-1), TAKEN, -1)
        ids, perm = torch.sort(chosen.reshape(-1))
        counted = ids.int() if self.counts_integers else ids.float()
        per_expert = torch.histc(counted, bins=EXPERTS, min=0, max=EXPERTS - 1)
        ends = torch.cumsum(per_expert, dim=0, dtype=torch.int32)
        made = rows[perm // TAKEN]
        places = torch.arange(made.shape[0])[:, None] >= ends
        made = torch.einsum("sd,sde->se", made, self.up[places.sum(-1)])
        made = made * weights.reshape(-1)[perm][:, None]
        back = torch.empty_like(perm)
        back[perm] = torch.arange(perm.shape[0])
        return made[back].view(-1, TAKEN, WIDTH).sum(1)


class LikeGPU(TorchFunctionMode):
    """What a GPU's kernels do: equal ids in another order, and `histc` of integers."""

    def __init__(self, too_many: int = 0) -> None:
        super().__init__()
        self.too_many = too_many

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "sort":
            (ids,) = args
            values, order = ids.flip(0).sort(stable=True)
            return torch.return_types.sort((values, ids.numel() - 1 - order))
        if name == "histc":
            counts = torch.bincount(args[0], minlength=EXPERTS).to(args[0].dtype)
            counts[0] += self.too_many
            return counts
        return func(*args, **(kwargs or {}))


def compared(room: Path, too_many: int = 0) -> Outcome:
    rows = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1))
    for name, counts_integers in (("golden", False), ("target", True)):
        torch.manual_seed(0)
        model = Grouped(counts_integers)
        with torch.no_grad():
            if not counts_integers:
                with dumpcmp.capture(model, room / name):
                    model(rows)
            else:
                with LikeGPU(too_many), dumpcmp.capture(model, room / name):
                    model(rows)
    return dumpcmp.compare(room / "golden", room / "target")


def test_counts_in_another_dtype_are_the_same_numbers(tmp_path: Path) -> None:
    outcome = compared(tmp_path)
    verdicts = {f"{row.key.op} {row.key.slot}": row.verdict for row in outcome.rows}
    assert verdicts["<root>/sort output.1"] is Verdict.FLIP  # or the test would show nothing
    assert verdicts["<root>/float output.0"] is Verdict.DTYPE  # beside the target's int
    assert verdicts["<root>/histc output.0"] is Verdict.DTYPE
    assert outcome.exit_code == 0 and not outcome.roots


def test_a_wrong_count_is_found_all_the_same(tmp_path: Path) -> None:
    outcome = compared(tmp_path, too_many=1)
    assert outcome.exit_code == 1 and outcome.first_divergence is not None
    assert outcome.first_divergence.key.op == "<root>/histc"
