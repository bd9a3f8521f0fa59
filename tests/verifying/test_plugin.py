"""The pytest fixture passes what agrees, and fails with the report and nothing else."""

import subprocess
import sys

import pytest

pytest_plugins = ("pytester",)

TESTS = """
import torch
from dumpcmp import ExactChecker, VerifyConfig

def test_same(dumpcmp_verify):
    assert dumpcmp_verify([torch.ones(3)], torch.nn.Identity(), lambda x: x + 0).passed

def test_different(dumpcmp_verify):
    exact = VerifyConfig(value_checker=ExactChecker())
    dumpcmp_verify([torch.ones(3)], torch.nn.Identity(), lambda x: x + 1, exact)

def test_golden_raises(dumpcmp_verify):
    dumpcmp_verify([torch.ones(3)], torch.nn.Linear(2, 2), torch.nn.Identity())
"""


def test_the_fixture_fails_readably(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_different*",
            "<lambda> against Identity: 1 of 1 value differs",
            "  output.0: FAIL; 3 of 3 elements differ; rel_l2 1, max_abs_diff 1 at*",
            "*dumpcmp.explain(inputs, golden, target)*",
        ]
    )
    result.stdout.no_fnmatch_line("*raise VerificationError*")
    result.stdout.no_fnmatch_line("*During handling of the above exception*")
    report, _, _ = result.stdout.str().partition("short test summary info")  # whole there in a CI
    assert report.count("output.0: FAIL; 3 of 3 elements differ") == 1


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, dumpcmp.pytest_plugin; print([m for m in ('torch', 'h5py', 'pandas') if m in sys.modules])"  # noqa: E501
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
