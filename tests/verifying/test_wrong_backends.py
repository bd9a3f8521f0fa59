"""24 miscompilations are caught by default: by verify, the backend, the command, the fixture.

The table `seeds` of the benchmarks takes each of them through all four.
"""

from collections.abc import Iterator

import pytest
import torch
from click.testing import CliRunner

import dumpcmp
from benchmarks import wrong_backends
from benchmarks.wrong_backends import WRONG, build
from dumpcmp import AutomaticValueChecker, VerificationError, VerifyConfig, verify
from dumpcmp.cli import main

pytest_plugins = ("pytester",)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_verify_passes_the_model_without_a_fault() -> None:
    model, inputs = build()
    assert verify(inputs, model, torch.compile(model, backend="eager"), with_backward=True)


@pytest.mark.parametrize("fault", WRONG)
def test_verify_catches_it(fault: str) -> None:
    model, inputs = build()
    with pytest.raises(VerificationError) as caught:
        verify(inputs, model, torch.compile(model, backend=WRONG[fault]), with_backward=True)
    assert "the target raised" not in str(caught.value)


@pytest.mark.parametrize("fault", WRONG)
def test_a_verifying_backend_catches_it(fault: str) -> None:
    model, inputs = build()
    backend = dumpcmp.verifying_backend(WRONG[fault], on_failure="record")
    torch.compile(model, backend=backend)(*inputs)
    assert not all(backend.reports)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", list(WRONG)[::4])
def test_the_command_catches_it(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_backends, "chosen", WRONG[fault], raising=False)
    where = "benchmarks.wrong_backends"
    options = ["--model", f"{where}:build", "--backend", f"{where}:chosen", "--backward"]
    result = CliRunner().invoke(main, ["verify", *options])
    assert result.exit_code == 1, result.output


def test_the_fixture_catches_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest, torch
        from benchmarks.wrong_backends import WRONG, build

        @pytest.mark.parametrize("fault", list(WRONG)[::6])
        def test_fault(dumpcmp_verify, fault):
            torch._dynamo.reset()
            model, inputs = build()
            compiled = torch.compile(model, backend=WRONG[fault])
            dumpcmp_verify(inputs, model, compiled, with_backward=True)
    """)
    pytester.syspathinsert(pytester.path)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q")
    result.assert_outcomes(failed=4)


UNSEEN = ["gelu to its tanh form", "bf16 weights", "eps of a norm", "a factor of 1.0001"]


@pytest.mark.parametrize("fault", UNSEEN)
def test_pcc_passes_it_says_what_it_does_not_see_and_warns(fault: str) -> None:
    """So that whoever asks for PCC by name is told."""
    model, inputs = build()
    config = VerifyConfig(value_checker=AutomaticValueChecker())
    with pytest.warns(dumpcmp.VerificationWarning, match="hides rel_l2"):
        report = verify(inputs, model, torch.compile(model, backend=WRONG[fault]), config)
    assert "PCC above 0.99, which does not see a scale" in report.headline
    assert "1 of them would fail by the rounding rule" in report.headline
