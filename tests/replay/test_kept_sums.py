"""What optimizers keep is made of gradients: factors that give golden's must give the target's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.replay.kept_sums import CANNOT_SUM, KeptCourse, replayed_sum

Keep = Callable[[Tensor, Tensor, Tensor], Tensor]  # of what was kept, a gradient and the weight

KEEPS: dict[str, Keep] = {
    "momentum": lambda kept, grad, weight: 0.9 * kept + grad,
    "with decay": lambda kept, grad, weight: 0.9 * kept + grad + 0.01 * weight,
    "exp_avg": lambda kept, grad, weight: torch.lerp(kept, grad, 0.1),
    "exp_avg_sq": lambda kept, grad, weight: 0.999 * kept + 0.001 * grad * grad,
    "squares with decay": lambda kept, grad, weight: (
        0.99 * kept + 0.01 * (grad + 0.1 * weight).square()
    ),
    "sum": lambda kept, grad, weight: kept + grad * grad,
}


def course(keep: Keep, seed: int, num: int = 200, steps: int = 5) -> KeptCourse:
    """What is kept after some steps, in float32, of gradients that `seed` moves a little."""
    generator = torch.Generator().manual_seed(0)
    moved = torch.Generator().manual_seed(seed)
    kept, weight = torch.zeros(num), torch.randn(num, generator=generator)
    gradients, weights = [], []
    for _ in range(steps):
        grad = torch.randn(num, generator=generator) + 1e-3 * torch.randn(num, generator=moved)
        kept = keep(kept, grad, weight)
        gradients.append(grad)
        weights.append(weight)
        weight = weight - 0.05 * torch.tanh(grad)
    return KeptCourse(kept, gradients, weights)


def judged(golden: KeptCourse, target: KeptCourse, peer: KeptCourse | None = None) -> str:
    """What is wrong with the target's; empty where nothing is."""
    replay = replayed_sum(golden, target, "output.0", lambda: peer)
    assert replay.is_known, replay.unknown
    return wrong(replay)


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
def test_sums_of_other_gradients_are_right_and_other_sums_are_not(keep: Keep) -> None:
    golden, target = course(keep, 1), course(keep, 2)
    assert not torch.allclose(golden.kept, target.kept, rtol=1e-4)
    assert judged(golden, target) == ""
    assert "golden's optimizer" in judged(golden, target._replace(kept=target.kept * 1.0005))
    assert judged(golden, target._replace(kept=golden.kept)), "it is of other gradients"
    stale = course(keep, 2, steps=4).kept
    assert judged(golden, target._replace(kept=stale)), "the last step is missing"


def test_few_elements_leave_it_to_others() -> None:
    keep = KEEPS["exp_avg"]
    golden, target = course(keep, 1, num=6), course(keep, 2, num=6)
    assert replayed_sum(golden, target, "output.0", lambda: None).unknown == CANNOT_SUM
    peer = course(keep, 1)
    assert judged(golden, target, peer) == ""
    assert judged(golden, target._replace(kept=target.kept * 1.001), peer)


def test_what_is_no_sum_cannot_be_told() -> None:
    def largest(kept: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
        return torch.maximum(kept, grad.abs())

    golden, target = course(largest, 1), course(largest, 2)
    assert replayed_sum(golden, target, "output.0", lambda: golden).unknown == CANNOT_SUM


def test_sums_that_cancel_have_the_rounding_of_their_terms() -> None:
    golden, target = (course(KEEPS["momentum"], seed) for seed in (1, 2))
    left = 1e-3 * torch.randn(200, generator=torch.Generator().manual_seed(3))
    for one in (golden, target):
        one.gradients.append(left - 0.9 * one.kept)
        one.weights.append(one.weights[-1])
    ends = [0.9 * one.kept + one.gradients[-1] for one in (golden, target)]
    assert judged(golden._replace(kept=ends[0]), target._replace(kept=ends[1])) == ""
    assert judged(golden._replace(kept=ends[0]), target._replace(kept=ends[1] * 1.01))
