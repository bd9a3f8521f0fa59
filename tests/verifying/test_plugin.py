"""The pytest fixtures pass what agrees, and fail with the report and nothing else."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dumpcmp import ExactChecker, Report, VerifyConfig, capture, demo
from dumpcmp.golden import GoldenCheck, pack_golden


def test_a_golden_run_fails_with_the_report(
    dumpcmp_golden: Callable[..., GoldenCheck], tmp_path: Path
) -> None:
    def run(scale: float) -> None:
        model, _ = demo.build()
        model.get_parameter("layers.1.mlp.down_proj.weight").data *= scale
        demo.generate(model, 1)

    with capture(None, tmp_path / "d1"):
        run(1.0)
    fixture = pack_golden(tmp_path / "d1", tmp_path / "golden.tar").path
    assert dumpcmp_golden(fixture, lambda: run(1.0)).outcome.exit_code == 0
    with pytest.raises(pytest.fail.Exception, match=r"layers\.1\.mlp\.down_proj") as failure:
        dumpcmp_golden(fixture, lambda: run(1.5))
    assert not failure.value.pytrace


def test_verify_fails_with_the_report(dumpcmp_verify: Callable[..., Report]) -> None:
    assert dumpcmp_verify([torch.ones(3)], nn.Identity(), lambda x: x + 0).passed
    exact = VerifyConfig(value_checker=ExactChecker())
    with pytest.raises(pytest.fail.Exception) as failure:
        dumpcmp_verify([torch.ones(3)], nn.Identity(), lambda x: x + 1, exact)
    told = str(failure.value)
    assert told.startswith("<lambda> against Identity: 1 of 1 value differs")
    assert "  output.0: FAIL; 3 of 3 elements differ; rel_l2 1, max_abs_diff 1 at" in told
    assert "dumpcmp.explain(inputs, golden, target)" in told
    assert not failure.value.pytrace and failure.value.__context__ is None


def test_what_golden_raises_is_raised(dumpcmp_verify: Callable[..., Report]) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        dumpcmp_verify([torch.ones(3)], nn.Linear(2, 2), nn.Identity())


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, dumpcmp.pytest_plugin; print([m for m in ('torch', 'h5py', 'pandas') if m in sys.modules])"  # noqa: E501
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
