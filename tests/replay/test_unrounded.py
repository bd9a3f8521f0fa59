"""Ops inside of kernels: what they took may not have been rounded yet, and that is not all."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unrounded import leeway
from tests.replay.calling import called

UNIT = 2.0**-9  # of bfloat16
OPS: dict[str, Callable[..., Tensor]] = {
    "mul": lambda x, y: x * y,
    "sub": lambda x, y: x - y,
    "silu": lambda x, _: torch.nn.functional.silu(x),
    "mean": lambda x, _: x.mean(-1, keepdim=True),
    "float": lambda x, _: x.float(),
}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "mul": torch.mul,
    "sub": torch.sub,
    "silu": torch.nn.functional.silu,
    "mean": torch.mean,
    "float": torch.Tensor.float,
}


def inputs(name: str, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """What the archive has of the inputs of an op, and what it gave by those of the kernel."""
    torch.manual_seed(3)
    wide = [torch.randn(32, 64) for _ in range(2)]
    stored = [each.to(dtype) for each in wide][: 2 if name in ("mul", "sub") else 1]
    got = OPS[name](*wide)
    return stored, got if name == "float" else got.to(dtype)


def judged(name: str, factor: float, dtype: torch.dtype = torch.bfloat16) -> tuple[str, str]:
    """What is wrong by the values as they are stored, and by those that a kernel may have had."""
    stored, got = inputs(name, dtype)
    got = (got.double() * factor).to(got.dtype)
    rest = {"dim": -1, "keepdim": True} if name == "mean" else {}
    call, given = called(FUNCTIONS[name], *stored, **rest)
    again = rerun(call, given)
    plain = hold(again, "output.0", got)
    unit = torch.finfo(dtype).eps / 2
    room = leeway(
        lambda moved: rerun(call, moved).outputs["output.0"],
        given,
        dict.fromkeys(given, unit),
        again.outputs["output.0"],
    )
    return wrong(plain), wrong(room.held(again, "output.0", got, plain))


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPS)
def test_inputs_that_were_not_rounded_yet_explain_what_a_kernel_gives(
    name: str, dtype: torch.dtype
) -> None:
    assert judged(name, 1.0, dtype)[1] == ""


def test_as_they_are_stored_they_do_not() -> None:
    assert judged("sub", 1.0)[0] and judged("float", 1.0)[0]


@pytest.mark.parametrize("name", ["mul", "silu", "sub"])
def test_a_scale_is_no_rounding(name: str) -> None:
    assert judged(name, 1 + 2**-6)[1]


def test_one_element_is_no_rounding() -> None:
    stored, got = inputs("mul", torch.bfloat16)
    got[3, 5] *= 1.125
    call, given = called(torch.mul, *stored)
    again = rerun(call, given)
    plain = hold(again, "output.0", got)
    room = leeway(
        lambda moved: rerun(call, moved).outputs["output.0"],
        given,
        dict.fromkeys(given, UNIT),
        again.outputs["output.0"],
    )
    assert wrong(room.held(again, "output.0", got, plain))


def test_nan_is_not_explained_by_rounding() -> None:
    known, got = torch.ones(4, 4, dtype=torch.float64), torch.ones(4, 4).bfloat16()
    got[0, 0] = torch.nan
    given = {"x": torch.ones(4, 4).bfloat16()}
    room = leeway(lambda moved: moved["x"].double(), given, {"x": UNIT}, known)
    replay: Replay = room.held(Rerun({"output.0": known}), "output.0", got, Replay())
    assert "NaN" in wrong(replay)
