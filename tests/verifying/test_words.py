"""verify() in tt-forge's words: what its tests write is accepted, and gives what it gives there."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import (
    AutomaticValueChecker,
    CheckError,
    NotCallableError,
    Verdict,
    VerificationError,
    VerifyConfig,
    verify,
)

X = torch.linspace(-2, 2, 64).reshape(4, 16)


class Add(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


INPUTS = [X, X.flip(0)]
WRITTEN: dict[str, Callable[[Add, nn.Module], object]] = {
    "by position": lambda model, compiled: verify(INPUTS, model, compiled),
    "config by position": lambda model, compiled: verify(
        INPUTS, model, compiled, VerifyConfig(verify_dtype=False)
    ),
    "verify_cfg": lambda model, compiled: verify(
        INPUTS, model, compiled, verify_cfg=VerifyConfig(value_checker=AutomaticValueChecker())
    ),
    "all by keyword": lambda model, compiled: verify(
        inputs=INPUTS, framework_model=model, compiled_model=compiled, verify_cfg=VerifyConfig()
    ),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_each_way_of_writing_it_passes_and_fails(written: str) -> None:
    WRITTEN[written](Add(), Add())
    with pytest.raises(ValueError, match=r"output\.0"):
        WRITTEN[written](Add(), lambda a, b: -a - b)  # type: ignore[arg-type]


def test_the_result_unpacks_into_the_outputs_of_both_sides() -> None:
    framework_outputs, compiled_outputs = verify(INPUTS, Add(), lambda a, b: b + a)
    assert len(framework_outputs) == len(compiled_outputs) == 1
    assert torch.equal(framework_outputs[0], X + X.flip(0))
    assert torch.equal(compiled_outputs[0], X + X.flip(0))


def test_switched_off_both_still_run_and_their_outputs_are_returned() -> None:
    ours, theirs = verify(INPUTS, Add(), lambda a, b: a, VerifyConfig(enabled=False))
    assert torch.equal(ours[0], X + X.flip(0))
    assert torch.equal(theirs[0], X)


def test_with_backward_compares_gradients() -> None:
    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b.detach()

    inputs = [X.clone().requires_grad_(), X.clone().requires_grad_()]
    verify(inputs, Add(), wrong)
    with pytest.raises(VerificationError, match=r"grad_input\.1"):
        verify(inputs, framework_model=Add(), compiled_model=wrong, with_backward=True)


def test_one_thing_said_by_two_words_is_refused() -> None:
    with pytest.raises(CheckError, match="golden and framework_model"):
        verify(INPUTS, Add(), Add(), framework_model=Add())
    with pytest.raises(NotCallableError, match="no target"):
        verify(INPUTS, framework_model=Add())


def test_dumped_tensors_are_archives_that_compare(tmp_path: Path) -> None:
    """Inputs and both sides' outputs, also where they differ; each verification has its own."""
    config = VerifyConfig(dump_tensors=True, dump_tensors_path=str(tmp_path))
    report = verify(INPUTS, Add(), lambda a, b: b + a, config)
    assert any(str(tmp_path / "verify-0") in remark for remark in report.remarks)
    with pytest.raises(VerificationError):
        verify(INPUTS, Add(), lambda a, b: a - b, config)
    rooms = sorted(path.name for path in tmp_path.iterdir())
    assert rooms == ["verify-0", "verify-1"]
    same, different = (
        dumpcmp.compare(tmp_path / room / "golden", tmp_path / room / "target") for room in rooms
    )
    assert {str(row.key.slot): row.verdict for row in different.rows} == {
        "input.0": Verdict.PASS,
        "input.1": Verdict.PASS,
        "output.0": Verdict.FAIL,
    }
    assert same.passed
