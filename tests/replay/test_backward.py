"""Backward passes run again: they give what autograd gives, and say where it cancels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.backward import GRADIENT, BackwardRerun, Slope
from dumpcmp.replay.chains import At, Chain
from dumpcmp.replay.holding import hold
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.taps.recording.calls import arguments_of
from dumpcmp.taps.recording.functions import function_of


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def recorded(number: int, func: Callable[..., Any], *args: Any) -> tuple[Call, dict[At, Tensor]]:
    """A call as a capture tells of it, and its inputs."""
    function = function_of(func)
    found, text = arguments_of(args, {}, function.positions)
    call = Call("M", 0, Op(f"m/{function.name}"), number, number, function.target, arguments=text)
    return call, {(number, slot): tensor for slot, tensor in found}


def slope_of(func: Callable[..., Any], *args: Any, leaf: str = "input.0") -> tuple[Slope, Tensor]:
    """The slope of one call with a random gradient for its first output, and what autograd gives.

    The gradient is in the dtype of the run.
    """
    call, given = recorded(0, func, *args)
    value = given[0, leaf]
    own = value.clone().requires_grad_(True)
    fresh = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]  # some are written to
    result = func(*[own if arg is value else copy for arg, copy in zip(args, fresh, strict=True)])
    slot, output = slots_of("output", result)[0]
    grad = numbers(*output.shape, seed=7, dtype=output.dtype)
    (expected,) = torch.autograd.grad(output, own, grad)
    return Slope(Chain([call]), given, [(0, leaf)], {(0, slot): grad}), expected


WEIGHT, ROWS = numbers(5, 8, seed=1), numbers(3, 8)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "linear, what it was given": (F.linear, (ROWS, WEIGHT), "input.0"),
    "linear, its weight": (F.linear, (ROWS, WEIGHT), "input.1"),
    "a product with what is repeated": (torch.mul, (numbers(8), ROWS), "input.0"),
    "softmax": (torch.softmax, (ROWS, -1), "input.0"),
    "layer norm": (F.layer_norm, (ROWS, (8,)), "input.0"),
    "gelu": (F.gelu, (ROWS,), "input.0"),
    "tanh": (torch.tanh, (ROWS,), "input.0"),
    "convolution": (F.conv1d, (numbers(2, 3, 9), numbers(4, 3, 3, seed=2)), "input.1"),
    "a part of it": (torch.Tensor.__getitem__, (ROWS, (slice(None), 2)), "input.0"),
    "rows by number": (F.embedding, (torch.tensor([1, 1, 2]), ROWS), "input.1"),
    "pieces": (torch.chunk, (ROWS, 2, -1), "input.0"),
    "a scan": (torch.cumsum, (ROWS, -1), "input.0"),
    "in place": (torch.Tensor.mul_, (ROWS, numbers(3, 8, seed=4)), "input.1"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("func, args, leaf", CASES.values(), ids=CASES)
def test_it_gives_what_autograd_gives(
    func: Callable[..., Any], args: tuple[Any, ...], leaf: str, dtype: torch.dtype
) -> None:
    short = [a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    slope, expected = slope_of(func, *short, leaf=leaf)
    again = BackwardRerun(slope)
    rated = again.rated()
    error = float((again.gradient - expected.double()).norm() / again.gradient.norm())
    eps = torch.finfo(dtype).eps
    assert again.gradient.dtype == torch.float64
    assert (
        error
        <= 0.75 * eps + 2.0**-22 * rated.condition.get(GRADIENT, 1.0) + 3 * rated.noise[GRADIENT]
    )
    assert rated.noise[GRADIENT] <= 4 * eps * max(1.0, rated.condition[GRADIENT])


def test_what_several_took_gets_the_sum_of_their_parts() -> None:
    x = numbers(3, 8)
    first, given = recorded(0, torch.mul, x, numbers(3, 8, seed=1))
    second, more = recorded(1, torch.exp, x)
    grads = {(0, "output.0"): numbers(3, 8, seed=2), (1, "output.0"): numbers(3, 8, seed=3)}
    leaves = [(0, "input.0"), (1, "input.0")]
    again = BackwardRerun(Slope(Chain([first, second]), given | more, leaves, grads))
    parts = [again.parts[leaf] for leaf in leaves]
    torch.testing.assert_close(again.gradient, parts[0] + parts[1])
    torch.testing.assert_close(parts[1], grads[1, "output.0"].double() * x.double().exp())


def test_who_took_the_shape_alone_adds_nothing_to_the_gradient() -> None:
    x = numbers(3, 8)
    first, given = recorded(0, torch.exp, x)
    second, more = recorded(1, torch.Tensor.view_as, numbers(24, seed=1), x)
    grads = {(0, "output.0"): numbers(3, 8, seed=2), (1, "output.0"): numbers(3, 8, seed=3)}
    leaves = [(0, "input.0"), (1, "input.1")]
    again = BackwardRerun(Slope(Chain([first, second]), given | more, leaves, grads))
    torch.testing.assert_close(again.gradient, grads[0, "output.0"].double() * x.double().exp())


def test_what_no_gradient_was_recorded_of_is_differentiated_through() -> None:
    x = numbers(3, 8)
    first, given = recorded(0, torch.exp, x)
    second, more = recorded(1, torch.mul, x.exp(), numbers(3, 8, seed=1))
    more.pop((1, "input.0"))
    region = Chain([first, second], {(1, "input.0"): (0, "output.0")})
    grad = numbers(3, 8, seed=2)
    again = BackwardRerun(Slope(region, given | more, [(0, "input.0")], {(1, "output.0"): grad}))
    expected = grad.double() * more[1, "input.1"].double() * x.double().exp()
    torch.testing.assert_close(again.gradient, expected)
    assert again.plain().num_ops == 2


CANCELLING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, Tensor]] = {
    "a shift before softmax": (torch.softmax, (ROWS, -1), "input.0", torch.ones(3, 8)),
    "squares of what a norm gave": (
        F.layer_norm, (ROWS, (8,)), "input.0", 2 * F.layer_norm(ROWS, (8,)),
    ),
    "a bias that nothing depends on": (
        torch.add, (ROWS, numbers(8)), "input.1", numbers(3, 8) - numbers(3, 8).mean(0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("func, args, leaf, grad", CANCELLING.values(), ids=CANCELLING)
def test_what_cancels_has_a_large_condition(
    func: Callable[..., Any], args: tuple[Any, ...], leaf: str, grad: Tensor
) -> None:
    slope, _ = slope_of(func, *args, leaf=leaf)
    plain = BackwardRerun(slope).rated().condition[GRADIENT]
    cancelling = Slope(slope.region, slope.given, slope.leaves, {(0, "output.0"): grad})
    assert plain < 100
    assert BackwardRerun(cancelling).rated().condition[GRADIENT] > 1e4


def test_what_cancels_between_the_calls_has_a_large_condition() -> None:
    """A norm takes away what a bias before it adds, whatever it is given in the backward pass."""
    x, bias = numbers(6, 8), numbers(8, seed=1)
    first, given = recorded(0, torch.add, x, bias)
    second, more = recorded(1, F.batch_norm, x + bias, None, None, None, None, True)
    more.pop((1, "input.0"))
    region = Chain([first, second], {(1, "input.0"): (0, "output.0")})
    grads = {(1, "output.0"): numbers(6, 8, seed=2)}
    again = BackwardRerun(Slope(region, given | more, [(0, "input.1")], grads))
    assert again.rated().condition[GRADIENT] > 1e6


def test_what_only_lays_out_is_known_to_the_bit() -> None:
    slope, expected = slope_of(torch.transpose, ROWS, 0, 1)
    again = BackwardRerun(slope).plain()
    assert again.is_exact
    assert torch.equal(again.outputs[GRADIENT].float(), expected)


def test_what_a_dropout_dropped_is_read_off_its_output() -> None:
    x, p = numbers(4, 16), 0.25
    call, given = recorded(0, F.dropout, x, p, True)
    output = F.dropout(x, p, True)
    grad = numbers(4, 16, seed=2)
    given[0, "output.0"] = output
    again = BackwardRerun(Slope(Chain([call]), given, [(0, "input.0")], {(0, "output.0"): grad}))
    torch.testing.assert_close(again.gradient, (grad * (output != 0) / (1 - p)).double())


def test_what_draws_otherwise_is_refused() -> None:
    call, given = recorded(0, torch.bernoulli, torch.rand(4))
    slope = Slope(Chain([call]), given, [(0, "input.0")], {(0, "output.0"): torch.ones(4)})
    with pytest.raises(Unreplayable, match="random"):
        BackwardRerun(slope)


# Kernels of other devices


def softmax_backward(x: Tensor, grad: Tensor) -> Tensor:
    """As kernels compute it: in float32, from the output as it was rounded."""
    y = torch.exp2((x.float() - x.float().amax(-1, keepdim=True)) * 1.4426950408889634)
    y = (y / y.sum(-1, keepdim=True)).to(x.dtype).float()
    inner = (grad.float() * y).sum(-1, keepdim=True)
    found: Tensor = (y * (grad.float() - inner)).to(x.dtype)
    return found


def attention_backward(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the queries by a fused kernel, which rounds its output and what it sums."""
    dtype, scale = q.dtype, q.shape[-1] ** -0.5
    q, k, v, grad = (each.float() for each in (q, k, v, grad))
    p = torch.softmax(q @ k.mT * scale, -1)
    delta = (grad * (p @ v).to(dtype).float()).sum(-1, keepdim=True)
    found: Tensor = ((p * (grad @ v.mT - delta)).to(dtype).float() @ k * scale).to(dtype)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("peak", [1, 4, 10])
def test_a_derivative_from_a_rounded_output_is_right(peak: int, dtype: torch.dtype) -> None:
    for seed, rows in enumerate([(1, 4), (2, 8), (4, 16), (8, 32)]):
        x, grad = (peak * numbers(*rows, seed=seed)).to(dtype), numbers(*rows, seed=9, dtype=dtype)
        call, given = recorded(0, torch.softmax, x, -1)
        assert not found_wrong(call, given, grad, softmax_backward(x, grad))
        q, k, v = (numbers(1, 2, rows[1], 8, seed=seed + n, dtype=dtype) for n in range(3))
        grad = numbers(1, 2, rows[1], 8, seed=9, dtype=dtype)
        call, given = recorded(0, F.scaled_dot_product_attention, q, k, v)
        got = attention_backward(q, k, v, grad)
        assert not found_wrong(call, given, grad, got)
        assert found_wrong(call, given, grad, (got.float() * 1.05).to(dtype))


def found_wrong(call: Call, given: dict[At, Tensor], grad: Tensor, got: Tensor) -> str:
    """What is said of a gradient of the first input, after everything was asked."""
    again = BackwardRerun(Slope(Chain([call]), given, [(0, "input.0")], {(0, "output.0"): grad}))
    asked = (again.plain(), again.rated(), again.rated(is_moved=True))
    said = [wrong(hold(rerun, GRADIENT, got)) for rerun in asked]
    return said[-1] if all(said) else ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "func, more",
    [
        (torch.softmax, [-1]), (F.log_softmax, [0]), (F.softmin, [1]),
        (torch.sigmoid, []), (torch.tanh, []),
    ],
)  # fmt: skip
def test_by_the_output_that_was_recorded_nothing_but_the_last_rounding_is_left(
    func: Callable[..., Any], more: list[int], dtype: torch.dtype
) -> None:
    x = (3 * numbers(6, 40)).to(dtype)
    own = x.clone().requires_grad_(True)
    output = func(own, *more)
    grad = 1 + numbers(6, 40, seed=7, dtype=dtype) / 64  # much of it cancels in a softmax
    (got,) = torch.autograd.grad(output, own, grad)
    call, given = recorded(0, func, x, *more)
    plain = Slope(Chain([call]), given, [(0, "input.0")], {(0, "output.0"): grad})
    exact = BackwardRerun(replace(plain, recorded={(0, "output.0"): output.detach()}))
    eps = torch.finfo(dtype).eps
    assert hold(exact.plain(), GRADIENT, got).introduced < 0.75 * eps
    assert not wrong(hold(exact.rated(), GRADIENT, got))
    assert wrong(hold(exact.plain(), GRADIENT, got * (1 + 2 * eps)))
    assert wrong(hold(exact.rated(), GRADIENT, got * 2))


def test_a_relu_gives_back_what_it_let_through_in_the_run() -> None:
    """What is all but zero may have been on the other side there."""
    x, grad = torch.tensor([1.0, 1e-9, -1e-9, -1.0]), torch.ones(4)
    call, given = recorded(0, F.relu, x)
    known = {(0, "output.0"): torch.tensor([1.0, 0.0, 1e-9, 0.0])}
    slope = Slope(Chain([call]), given, [(0, "input.0")], {(0, "output.0"): grad}, recorded=known)
    assert BackwardRerun(slope).gradient.tolist() == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_softmax_of_a_gpu_rounds_a_product_on_the_way_back(dtype: torch.dtype) -> None:
    x, grad = (3 * numbers(6, 40)).to(dtype), 1 + numbers(6, 40, seed=7, dtype=dtype) / 64
    output = torch.softmax(x, -1)
    weighted = (grad * output).float()
    got = (weighted - output.float() * weighted.sum(-1, keepdim=True)).to(dtype)
    call, given = recorded(0, torch.softmax, x, -1)
    known = {(0, "output.0"): output}
    slope = Slope(Chain([call]), given, [(0, "input.0")], {(0, "output.0"): grad}, recorded=known)
    again = BackwardRerun(slope)
    assert wrong(hold(again.plain(), GRADIENT, got))
    assert not wrong(hold(again.rated(), GRADIENT, got))


@pytest.mark.parametrize("func, more", [(torch.topk, [2]), (torch.sort, [1]), (torch.max, [1])])
def test_a_gradient_goes_to_the_choice_that_was_made_among_equals(
    func: Callable[..., Any], more: list[int]
) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 0.0, 2.0]])
    call, given = recorded(0, func, x, *more)
    own = x.flip(1).requires_grad_(True)  # of equals it takes others there
    values, places = func(own, *more)
    grad = numbers(*values.shape, seed=3)
    (got,) = torch.autograd.grad(values, own, grad)
    slope = Slope(Chain([call]), given, [(0, "input.0")], {(0, "output.0"): grad})
    known = replace(slope, recorded={(0, "output.1"): 3 - places})
    assert torch.equal(BackwardRerun(known).gradient, got.flip(1).double())
