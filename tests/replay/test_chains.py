"""Regions: several calls run one after the other from the values at their edge."""

import torch

from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.replay.chains import At, Chain, rerun_region
from dumpcmp.replay.holding import hold

TAKES = {1: '{"args":[{"slot":"input.0"}]}', 2: '{"args":[{"slot":"input.0"},{"slot":"input.1"}]}'}


def call(target: str, takes: int, order: int) -> Call:
    return Call("M", 0, Op("x"), order, order, target=target, arguments=TAKES[takes])


def region() -> Chain:
    """silu(x @ w) * y, in bfloat16."""
    calls = [
        call("torch.matmul", 2, 0),
        call("torch.nn.functional.silu", 1, 1),
        call("torch.Tensor.mul", 2, 2),
    ]
    wires: dict[At, At] = {
        (1, "input.0"): (0, "output.0"),
        (2, "input.0"): (1, "output.0"),
    }
    short = {(n, "output.0"): torch.bfloat16 for n in range(3)}
    return Chain(calls, wires, short)


def test_a_region_is_not_rounded_inside_and_knows_the_noise_of_the_run_that_is() -> None:
    torch.manual_seed(0)
    x, w, y = (torch.randn(32, 32).bfloat16() for _ in range(3))
    given: dict[At, torch.Tensor] = {(0, "input.0"): x, (0, "input.1"): w, (2, "input.1"): y}
    replay = rerun_region(region(), given, {"output.0": (2, "output.0")})
    assert replay.num_ops == 3
    exact = torch.nn.functional.silu(x.double() @ w.double()) * y.double()
    assert torch.equal(replay.outputs["output.0"], exact)
    eps = 2.0**-7
    assert eps / 8 < replay.noise["output.0"] < eps
    fused, stepwise = exact.bfloat16(), torch.nn.functional.silu(x @ w) * y
    assert (
        hold(replay, "output.0", fused).introduced < hold(replay, "output.0", stepwise).introduced
    )
