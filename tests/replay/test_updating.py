"""The rule of an optimizer, as it is found in a weight and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay import updating
from dumpcmp.replay.updating import Course, replayed_update


def course(
    optimizer: str, seed: int, size: int = 64, steps: int = 3, rate: float = 0.1, idle: bool = False
) -> Course:
    """A weight that is the same in all of them, and gradients of its own."""
    weight = nn.Parameter(torch.linspace(-1, 1, size))
    gradients = torch.Generator().manual_seed(seed)
    made: torch.optim.Optimizer = getattr(torch.optim, optimizer)([weight], lr=rate)
    weights, given = [weight.detach().clone()], []
    for _ in range(steps):
        weight.grad = torch.randn(size, generator=gradients) * (not idle)
        given.append([weight.grad.clone()])
        made.step()
        weights.append(weight.detach().clone())
    return Course(weights, given, is_whole=True)


def held(golden: Course, target: Course, peer: Course | None = None) -> Replay:
    return replayed_update(golden, target, "param.weight", lambda: peer)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_other_gradients_make_another_weight_by_the_same_rule(optimizer: str) -> None:
    golden = course(optimizer, 0)
    right = held(golden, course(optimizer, 1))
    assert right.is_known and not wrong(right) and right.num_ops == 0
    assert "golden's optimizer" in wrong(held(golden, course(optimizer, 1, rate=0.1001)))


def test_a_history_that_is_not_whole_tells_of_no_adam() -> None:
    golden, target = (course("Adam", seed)._replace(is_whole=False) for seed in (0, 1))
    assert "cannot be told" in held(golden, target).unknown
    assert "cannot be told" in held(course("Adagrad", 0), course("Adagrad", 1)).unknown


def test_few_elements_fit_any_rule() -> None:
    assert "cannot be told" in held(course("SGD", 0, size=3), course("SGD", 1, size=3)).unknown


def test_zeros_tell_nothing_and_another_weight_does() -> None:
    golden, target = course("SGD", 0, idle=True), course("SGD", 1)
    assert not held(golden, target).is_known
    peer = course("SGD", 2, size=100)
    assert not wrong(held(golden, target, peer)) and held(golden, target, peer).is_known
    assert wrong(held(golden, course("SGD", 1, rate=0.2), peer))


def test_a_weight_that_hardly_moved_leaves_its_rate_open() -> None:
    def slightly(tensor: Tensor, by: float) -> Course:
        return Course([torch.ones(1000), torch.ones(1000) - by * tensor], [[tensor]])

    noise = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    golden, target = slightly(noise * 2.0**-24, 1.0), slightly(noise * 2.0**-14, 1.0)
    found = held(golden, target)
    assert found.is_known and not wrong(found)


def test_a_large_weight_is_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "_AT_ONCE", 1000)
    monkeypatch.setattr(updating, "_SAMPLE", 100)
    size = 2500
    golden, target = course("SGD", 0, size, steps=1), course("SGD", 1, size, steps=1)
    found = held(golden, target)
    assert found.is_known and not wrong(found) and found.count == size
    target.weights[-1][-1] += 0.1
    assert wrong(held(golden, target))
