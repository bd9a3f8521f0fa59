"""same() and run_and_compare() say of results at hand what verify says of two models."""

from typing import Any

import pytest
import torch
from torch import nn

from dumpcmp import CheckError, Fp64Checker, Verdict, VerifyConfig, run_and_compare, same

X = torch.linspace(-3, 3, 4096).reshape(64, 64)
W = torch.linspace(0.1, 1.0, 4096).reshape(64, 64)


def product(x: torch.Tensor, w: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """A sum of products, in so many parts: the parts round otherwise."""
    terms = zip(x.chunk(parts, 1), w.chunk(parts, 0), strict=True)
    return torch.stack([a @ b for a, b in terms]).sum(0).cumsum(0)


EXPECTED, ACTUAL, EXACT = product(X, W), product(X, W, 8), product(X.double(), W.double())
NESTED: list[tuple[Any, Any, bool]] = [
    (X, X.clone(), True),
    (X, X + 1, False),
    ([X, {"a": W}], [X + 0, {"a": W + 0}], True),
    ([X, {"a": W}], [X + 0, {"a": W * 1.01}], False),
    ([X, W], [X + 0], False),
    (X, X[:1], False),
    (X, X.double(), False),
    (3, 3, True),
    (torch.tensor(100000), torch.tensor(100001), False),
]


@pytest.mark.parametrize("golden, target, agree", NESTED)
def test_results_of_any_nesting_are_paired_by_path(golden: Any, target: Any, agree: bool) -> None:
    assert bool(same(golden, target)) is agree


def test_a_reference_at_hand_decides() -> None:
    assert same(EXPECTED, ACTUAL, fp64_ref=EXACT)
    report = same(EXPECTED, ACTUAL * (1 + 1e-3), fp64_ref=EXACT)
    assert not report
    assert "times golden's" in report.message()
    assert same([EXPECTED], [EXPECTED.clone()], fp64_ref=[EXACT])


def test_a_reference_that_lacks_a_value_passes_nothing() -> None:
    """Where a value differs and the reference has none for it, nothing is proven."""
    (_, row) = same([X, EXPECTED], [X + 0, ACTUAL * 1.001], fp64_ref=[X.double()]).rows
    assert row.verdict is Verdict.INCONCLUSIVE
    with pytest.raises(CheckError, match="float64"):
        same(X, X.clone(), config=VerifyConfig(value_checker=Fp64Checker()))


def test_one_tensor_held_against_itself_proves_nothing() -> None:
    """So it is with gradients that two runs leave in the same parameters."""
    model = nn.Linear(4, 4)
    model(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad is not None
    (row,) = same(model.weight.grad, model.weight.grad).rows
    assert row.verdict is Verdict.INCONCLUSIVE
    assert same(model.weight.grad, model.weight.grad.clone())


def test_depth_is_what_autograd_remembers_or_what_is_said() -> None:
    x, noise = X.clone().requires_grad_(), 1 + 4e-6 * torch.randn(64, 64)
    deep = x
    for _ in range(64):
        deep = deep * 1.01
    wrong = (deep * noise).detach()
    assert same(deep, wrong)
    assert same(deep.detach(), wrong, depth=64)
    report = same(deep.detach(), wrong)
    assert not report
    assert any("depth=" in remark for remark in report.remarks)


def test_two_callables_run_on_copies_of_the_same_arguments() -> None:
    def doubling(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x.mul_(by)

    x = X.clone()
    assert run_and_compare(doubling, lambda x, by: x.mul_(by), x, by=torch.tensor(2.0))
    assert torch.equal(x, X)
    report = run_and_compare(doubling, lambda x, by: x * by, x, torch.tensor(2.0))
    assert [row.key.slot for row in report.failures] == ["mutated.0"]
