"""tt-forge's checkers against their definitions, computed here the long way."""

import math

import numpy as np
import pytest
import torch

from dumpcmp.judge import (
    AllCloseValueChecker,
    AutomaticValueChecker,
    Conditions,
    FullValueChecker,
    judge,
)
from dumpcmp.judge.conditions import Checker
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.value import value_of


def passes(golden: torch.Tensor, target: torch.Tensor, checker: Checker) -> bool:
    ours, theirs = value_of(golden), value_of(target)
    metrics = measure(ours, theirs, checker.closeness)
    conditions = Conditions(ours.dtype, theirs.dtype, shape=ours.shape)
    return judge(metrics, conditions, checker).verdict is Verdict.PASS


def noisy(seed: int, far: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(4, 65, generator=generator)
    return golden, golden + far * torch.randn(4, 65, generator=generator)


SEEDS, FAR = range(6), [0.0, 1e-7, 1e-4, 0.05, 0.15, 0.5, 3.0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("least", [0.8, 0.99, 0.9999])
def test_floats_pass_by_pearsons_correlation(seed: int, far: float, least: float) -> None:
    golden, target = noisy(seed, far)
    pcc = np.corrcoef(golden.double().flatten(), target.double().flatten())[0, 1]
    assert passes(golden, target, AutomaticValueChecker(pcc=least)) == (pcc >= least)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_flipped", [0, 1, 2, 40])
@pytest.mark.parametrize("most", [0.0, 1e-3, 0.02])
def test_booleans_pass_by_rogers_and_tanimoto(seed: int, num_flipped: int, most: float) -> None:
    golden = torch.rand(3000, generator=torch.Generator().manual_seed(seed)) > 0.5
    target = golden.clone()
    target[:num_flipped] = ~target[:num_flipped]
    agree = int((golden == target).sum())
    dissimilarity = 2 * num_flipped / (agree + 2 * num_flipped)
    checker = AutomaticValueChecker(dissimilarity_threshold=most)
    assert passes(golden, target, checker) == (dissimilarity <= most)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("rtol, atol", [(1e-5, 1e-8), (1e-3, 1e-5), (0.0, 0.1)])
def test_closeness_is_of_each_element(seed: int, far: float, rtol: float, atol: float) -> None:
    golden, target = noisy(seed, far)
    close = bool(((golden - target).abs() <= atol + rtol * golden.abs()).all())
    assert passes(golden, target, AllCloseValueChecker(rtol, atol)) == close
    pcc = np.corrcoef(golden.double().flatten(), target.double().flatten())[0, 1]
    both = close and pcc >= 0.99
    assert passes(golden, target, FullValueChecker(rtol=rtol, atol=atol)) == both


@pytest.mark.parametrize("golden, target", [(1.0, 1.0), (1.0, 1.1), (-3.0, -3.00001), (0.0, 1e-9)])
def test_one_element_passes_where_it_is_close(golden: float, target: float) -> None:
    close = math.isclose(golden, target, rel_tol=0, abs_tol=1e-8 + 1e-5 * abs(golden))
    found = passes(torch.tensor([golden]), torch.tensor([target]), AutomaticValueChecker())
    assert found == close
