"""same() and run_and_compare() say of results at hand what verify says of two models."""

from typing import Any

import numpy as np
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
    x = X.clone().requires_grad_()
    (row,) = same(x * 1, x * 1).rows
    y = x * 1
    (row,) = same(y, y).rows
    assert row.verdict is Verdict.INCONCLUSIVE


def test_gradients_that_two_runs_add_up_in_one_tensor_are_the_same_and_it_is_said() -> None:
    """As in torch's own tests of training, whose sides are the same parameters."""
    model = nn.Linear(4, 4)
    model(torch.ones(2, 4)).sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    in_float64 = [torch.zeros_like(grad, dtype=torch.float64) for grad in grads if grad is not None]
    for report in (same(grads, grads), same(grads, grads, fp64_ref=in_float64)):
        assert report
        assert any("2 values are one tensor on both sides" in said for said in report.remarks)
    assert same(model.weight.grad, torch.zeros(4, 4)).exit_code == 1


NAN = torch.tensor([1.0, float("nan"), 3.0])
MASK = torch.arange(1000) < 900

# Both sides, a keyword of torch's same, and whether they agree without it and with it.
KEYWORDS: list[tuple[Any, Any, dict[str, Any], bool, bool]] = [
    (X, X + 1e-3, {"tol": 1e-2}, False, True),
    (X, X + 1e-1, {"tol": 1e-2}, False, False),
    (X, X * 1.1, {"cos_similarity": True}, False, True),
    (X, -X, {"cos_similarity": True}, False, False),
    (NAN, NAN.clone(), {"equal_nan": True}, True, True),
    (NAN, NAN.clone(), {"equal_nan": False}, True, False),
    (NAN, NAN.flip(0) + 1, {"equal_nan": True}, False, False),
    (X, X.double(), {"exact_dtype": False}, False, True),
    (np.float32(3), 3.0, {"relax_numpy_equality": True}, False, True),
    (np.float32(3), 4.0, {"relax_numpy_equality": True}, False, False),
    ([X, torch.ones(2).int()], [X + 0, torch.zeros(2).int()], {"ignore_non_fp": True}, False, True),
    (MASK, MASK.roll(1), {"use_iou_for_bool": True}, False, True),
    (MASK, ~MASK, {"use_iou_for_bool": True}, False, False),
    (MASK, MASK.roll(99), {"use_iou_for_bool": True, "iou_threshold": 0.5}, False, True),
]


@pytest.mark.parametrize("golden, target, words, without, with_it", KEYWORDS)
def test_the_keywords_of_torch_let_pass_what_they_name(
    golden: Any, target: Any, words: dict[str, Any], without: bool, with_it: bool
) -> None:
    assert (bool(same(golden, target)), bool(same(golden, target, **words))) == (without, with_it)


def test_larger_multipliers_let_larger_errors_pass() -> None:
    every: tuple[dict[str, Any], ...] = (
        {}, {"use_larger_multiplier_for_smaller_tensor": True}, {"force_max_multiplier": True},
    )  # fmt: skip
    exact = torch.linspace(0.1, 1, 8, dtype=torch.float64)
    golden, target = (exact * (1 + 3e-5)).float(), (exact * (1 + 18e-5)).float()
    found = [bool(same(golden, target, fp64_ref=exact, **words)) for words in every]
    assert found == [False, True, True]


def test_failures_are_told_to_log_error_and_what_is_left_out_proves_nothing() -> None:
    told: list[str] = []
    assert not same(X, X + 1, log_error=lambda text, *args: told.append(text % args))
    assert len(told) == 1 and "output.0" in told[0]
    report = same(torch.tensor([1]), torch.tensor([2]), ignore_non_fp=True)
    assert not report.compared and report.exit_code == 2


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
