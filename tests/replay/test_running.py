"""Replays: sound ops are found right in every dtype, and planted errors wrong."""

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.replay import tiling
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable
from tests.replay.calling import Given, called, held, outputs_of, wrongs

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Make = Callable[[torch.dtype], tuple[Any, ...]]


def x(*shape: int, dtype: torch.dtype, scale: float = 1.0, mean: float = 0.0) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) * scale + mean).to(dtype)


def positive(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(shape, dtype=torch.float64) + 0.1).to(dtype)


def attention(d: torch.dtype) -> tuple[Tensor, ...]:
    return x(2, 4, 16, 16, dtype=d), x(2, 4, 16, 16, dtype=d), x(2, 4, 16, 16, dtype=d)


def lstm(d: torch.dtype) -> tuple[Any, ...]:
    weights = [w.detach() for w in torch.nn.LSTM(8, 16).to(d).parameters()]
    state = (x(1, 3, 16, dtype=d), x(1, 3, 16, dtype=d))
    return x(7, 3, 8, dtype=d), state, weights, True, 1, 0.0, False, False, False


def heads(d: torch.dtype) -> tuple[Any, ...]:
    m = torch.nn.MultiheadAttention(32, 4).to(d).requires_grad_(False)
    q, out = x(10, 2, 32, dtype=d), m.out_proj
    return (q, q, q, 32, 4, m.in_proj_weight, m.in_proj_bias, None, None, False, 0.0,
            out.weight, out.bias)  # fmt: skip


PADDED = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)  # of keys
CAUSAL = torch.ones(4, 4, dtype=torch.bool).triu(1)
MASKS: dict[str, tuple[Tensor | None, int | None]] = {
    "": (None, None),
    " padded": (PADDED, 1),
    " padded, of -inf": (torch.zeros(2, 4).masked_fill(PADDED, -math.inf), 1),
    " causal": (CAUSAL, 0),
    " of heads": ((CAUSAL | PADDED[:, None, None]).expand(2, 4, 4, 4), 2),
}


def fused_heads(d: torch.dtype, mask: str, *told: bool) -> tuple[Any, ...]:
    m, q = torch.nn.MultiheadAttention(32, 4).to(d).requires_grad_(False), x(2, 4, 32, dtype=d)
    weights = m.in_proj_weight, m.in_proj_bias, m.out_proj.weight, m.out_proj.bias
    return q, q, q, 32, 4, *weights, MASKS[mask][0], *told, MASKS[mask][1]


def fused_layer(d: torch.dtype, mask: str, gelu: bool, norm_first: bool) -> tuple[Any, ...]:
    one = torch.nn.TransformerEncoderLayer(32, 4, 48).to(d).requires_grad_(False)
    m, norms = one.self_attn, (one.norm1, one.norm2)
    for norm in norms:
        norm.weight.copy_(positive(32, dtype=d))
    weights = m.in_proj_weight, m.in_proj_bias, m.out_proj.weight, m.out_proj.bias
    scales = [each for norm in norms for each in (norm.weight, norm.bias)]
    fed = [each for linear in (one.linear1, one.linear2) for each in (linear.weight, linear.bias)]
    return (x(2, 4, 32, dtype=d), 32, 4, *weights, gelu, norm_first, 1e-5, *scales, *fed,
            *MASKS[mask])  # fmt: skip


TWO = ((32, 48), (32, 48))
BROADCAST = ((4, 1, 8), (3, 8))
ONE = ((1,), (1,))
NONE = ((0, 4), (4,))

# name, function, what it is given in a dtype, keywords
SOUND: list[tuple[str, Callable[..., Any], Make, dict[str, Any]]] = [
    *((f"{f.__name__} {s}", f, lambda d, s=s: (x(*s[0], dtype=d), x(*s[1], dtype=d)), {})
      for f in (torch.add, torch.sub, torch.mul, torch.div, torch.maximum)
      for s in (TWO, BROADCAST, ONE, NONE)),
    *((f.__name__, f, lambda d, s=s: (x(*s, dtype=d),), {})
      for f in (F.relu, F.silu, F.gelu, torch.tanh, torch.sigmoid, torch.exp, torch.cos, torch.neg,
                F.softplus, torch.erf, torch.square, torch.abs, torch.round)
      for s in ((33, 40), (1,), ())),
    *((f.__name__, f, lambda d: (positive(33, 40, dtype=d),), {})
      for f in (torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal)),
    *((f"{f.__name__} {k}", f, lambda d, k=k: (positive(33, 40, dtype=d), k), {})
      for f in (torch.add, torch.mul, torch.sub, operator.truediv, torch.Tensor.__rsub__, torch.pow)
      for k in (1 / 3, -3)),
    ("ones x 0.1", torch.mul, lambda d: (torch.ones(64, 64, dtype=d), 0.1), {}),
    ("a mask", torch.add, lambda d: (x(8, 32, dtype=d), x(8, 32, dtype=d).masked_fill(
        torch.rand(8, 32) > 0.5, torch.finfo(d).min)), {}),
    *((f.__name__, f, lambda d, s=s: (x(*s, dtype=d, mean=2.0), -1), {})
      for f in (torch.sum, torch.mean, F.softmax, F.log_softmax, torch.logsumexp, torch.var,
                torch.cumsum)
      for s in ((16, 1024), (5,), (3, 1, 7))),
    ("sum of all", torch.sum, lambda d: (x(20000, dtype=d, mean=1.0),), {}),
    ("layer_norm", F.layer_norm, lambda d: (x(16, 64, dtype=d, mean=30.0), (64,),
                                            x(64, dtype=d), x(64, dtype=d)), {}),
    ("rms_norm", F.rms_norm, lambda d: (x(16, 64, dtype=d), (64,), x(64, dtype=d), 1e-6), {}),
    ("group_norm", F.group_norm, lambda d: (x(2, 8, 7, 7, dtype=d, mean=5.0), 4), {}),
    ("batch_norm", F.batch_norm, lambda d: (x(4, 8, 7, dtype=d), x(8, dtype=d),
                                            positive(8, dtype=d)), {}),
    ("linear", F.linear, lambda d: (x(2, 9, 64, dtype=d), x(32, 64, dtype=d), x(32, dtype=d)), {}),
    ("mm", torch.mm, lambda d: (x(8, 2048, dtype=d, mean=0.5), x(2048, 16, dtype=d, mean=0.5)), {}),
    ("matmul", torch.matmul, lambda d: (x(2, 3, 5, 64, dtype=d), x(3, 64, 9, dtype=d)), {}),
    ("einsum", torch.einsum, lambda d: ("mk,kn->nm", x(9, 65, dtype=d), x(65, 7, dtype=d)), {}),
    ("addmm", torch.addmm, lambda d: (x(9, dtype=d), x(5, 64, dtype=d), x(64, 9, dtype=d)),
     {"beta": -2, "alpha": 0.5}),
    ("conv2d", F.conv2d, lambda d: (x(2, 8, 9, 9, dtype=d), x(16, 4, 3, 3, dtype=d)),
     {"padding": 1, "groups": 2}),
    ("sdpa", F.scaled_dot_product_attention, attention, {"is_causal": True}),
    ("cross_entropy", F.cross_entropy, lambda d: (x(64, 32, dtype=d), torch.arange(64) % 32), {}),
    ("mse_loss", F.mse_loss, lambda d: (x(64, 32, dtype=d), x(64, 32, dtype=d)), {}),
    ("lstm", torch.lstm, lstm, {}),
    ("mha", F.multi_head_attention_forward, heads, {"need_weights": False}),
    *((f"fused heads{m} {w}", torch._native_multi_head_attention,
       lambda d, m=m, w=w: fused_heads(d, m, *w), {})
      for m in MASKS for w in ((True, True), (True, False), (False, True))),
    *((f"fused layer{m} {w}", torch._transformer_encoder_layer_fwd,
       lambda d, m=m, w=w: fused_layer(d, m, *w), {})
      for m in MASKS for w in ((False, False), (True, False), (False, True))),
    ("index_add", torch.index_add, lambda d: (x(8, 12, dtype=d), 0, torch.arange(50) % 8,
                                              x(50, 12, dtype=d)), {}),
    ("embedding", F.embedding, lambda d: (torch.arange(6) % 4, x(8, 12, dtype=d)), {}),
    ("cat", torch.cat, lambda d: ([x(3, 4, dtype=d), x(2, 4, dtype=d)], 0), {}),
    ("where", torch.where, lambda d: (torch.rand(9, 9) > 0.5, x(9, 9, dtype=d), 0.1), {}),
    ("masked_fill", torch.masked_fill, lambda d: (x(9, 9, dtype=d), torch.rand(9, 9) > 0.5,
                                                  -math.inf), {}),
    ("clamp", torch.clamp, lambda d: (x(9, 9, dtype=d), -0.1, 0.3), {}),
    ("getitem", torch.Tensor.__getitem__, lambda d: (x(5, 5, dtype=d), (slice(None), [0, 3])), {}),
    ("setitem", torch.Tensor.__setitem__, lambda d: (x(5, 5, dtype=d), (slice(0, 2),), 0.3), {}),
    ("add_", torch.Tensor.add_, lambda d: (x(5, 50, dtype=d), x(5, 50, dtype=d)), {}),
    ("copy_", torch.Tensor.copy_, lambda d: (x(5, 50, dtype=d), torch.randn(5, 50)), {}),
    ("strided", torch.mul, lambda d: (x(50, 40, dtype=d).t()[::2], x(20, 50, dtype=d)), {}),
    ("with float32", torch.mul, lambda d: (x(50, 40, dtype=d), torch.randn(50, 40)), {}),
    ("float", torch.Tensor.float, lambda d: (x(5, 50, dtype=d),), {}),
    *((f"to {t}", torch.Tensor.to, lambda d, t=t: (x(5, 50, dtype=d), t), {}) for t in DTYPES),
    *((f"softmax in {t}", F.softmax, lambda d: (x(5, 50, dtype=d), -1), {"dtype": t})
      for t in DTYPES),
    ("ids to", torch.Tensor.to, lambda d: (torch.arange(70000)[::97], d), {}),
    ("ids / 64", torch.div, lambda d: (torch.arange(65), 64), {}),
    ("arange", torch.arange, lambda d: (0.0, 6.4, 0.1), {}),
    ("long arange", torch.arange, lambda d: (10000,), {"dtype": torch.bfloat16}),
    ("full", torch.full, lambda d: ((3, 4), 0.1), {"dtype": torch.bfloat16}),
    ("dropout", F.dropout, lambda d: (x(64, 64, dtype=d), 0.1), {}),
    ("idle dropout", F.dropout, lambda d: (x(64, 64, dtype=d), 0.1, False), {}),
    ("complex mul", torch.mul, lambda d: (torch.randn(9, 64, dtype=torch.complex64),
                                          torch.randn(9, 64, dtype=torch.complex64)), {}),
    ("complex number", torch.complex, lambda d: (torch.randn(()), torch.randn(())), {}),
    ("batch norm of nothing", F.batch_norm, lambda d: (x(0, dtype=d), x(0, dtype=d), x(0, dtype=d)),
     {"training": True}),
    ("trapezoid", torch.trapezoid, lambda d: (x(6, dtype=d),), {}),
    ("outer product and a number", torch.addr, lambda d: (
        x(1, dtype=d).reshape(()), x(5, dtype=d), x(10, dtype=d)), {"beta": 0.6, "alpha": 0.2}),
    ("samples of a volume", F.grid_sample, lambda d: (
        x(2, 3, 5, 20, 20, dtype=d), x(2, 12, 11, 10, 3, dtype=d)), {"align_corners": False}),
    ("rfft", torch.fft.rfft, lambda d: (torch.randn(9, 64),), {}),
    ("inv", torch.linalg.inv, lambda d: (torch.randn(5, 5) + 5 * torch.eye(5),), {}),
    ("aten", torch.ops.aten.addmm.default, lambda d: (x(9, dtype=d), x(5, 64, dtype=d),
                                                      x(64, 9, dtype=d)), {}),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted({case[0] for case in SOUND}))
def test_what_torch_computes_is_right(name: str) -> None:
    for number, dtype in enumerate(DTYPES):
        for _, function, make, kwargs in (case for case in SOUND if case[0] == name):
            torch.manual_seed(number)
            args = make(dtype)
            call, given = called(function, *args, **kwargs)
            got = outputs_of(function, *args, **kwargs)
            assert wrongs_of(call, given, got) == {}, dtype


def wrongs_of(call: Any, given: Given, got: Given) -> dict[str, str]:
    again = rerun(call, given)
    found = {slot: hold(again, slot, value) for slot, value in got.items()}
    return {slot: one.unknown or said for slot, one in found.items()
            if (said := one.unknown or wrong(one))}  # fmt: skip


def one_row(y: Tensor) -> Tensor:
    y = y.clone()
    y[3] = y[3] * 1.2
    return y


def one_element(y: Tensor) -> Tensor:
    y = y.clone()
    y[3, 5] = y[3, 5] + 4 * y.double().square().mean().sqrt().to(y.dtype)
    return y


def wide(y: Tensor, by: Callable[[Tensor], Tensor]) -> Tensor:
    return by(y.double()).to(y.dtype)


def rms(y: Tensor) -> Tensor:
    return y.square().mean().sqrt()


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "scale 1 + 2^-6": lambda y: wide(y, lambda z: z * (1 + 2**-6)),
    "scale 1 + 2^-9": lambda y: wide(y, lambda z: z * (1 + 2**-9)),
    "shift by 1e-3 rms": lambda y: wide(y, lambda z: z + 1e-3 * rms(z)),
    "one row": one_row,
    "one element": one_element,
    "a NaN": lambda y: y.index_fill(0, torch.tensor([0]), math.nan),
    "swapped columns": lambda y: y.flip(1),
    "stale row": lambda y: y.index_copy(0, torch.tensor([2]), y[1:2]),
}
CAUGHT: dict[str, tuple[Callable[..., Any], Make]] = {
    "mul": (torch.mul, lambda d: (x(64, 96, dtype=d), x(64, 96, dtype=d))),
    "add": (torch.add, lambda d: (x(64, 96, dtype=d), x(64, 96, dtype=d))),
    "silu": (F.silu, lambda d: (x(64, 96, dtype=d),)),
    "linear": (F.linear, lambda d: (x(64, 128, dtype=d), x(96, 128, dtype=d), x(96, dtype=d))),
    "sum": (torch.sum, lambda d: (x(64, 96, 16, dtype=d), -1)),
    "layer_norm": (F.layer_norm, lambda d: (x(64, 96, dtype=d), (96,))),
    "softmax": (F.softmax, lambda d: (x(64, 96, dtype=d), -1)),
    "clone": (torch.clone, lambda d: (x(64, 96, dtype=d),)),
}


def test_a_planted_error_in_a_fused_layer_is_found() -> None:
    layer, heads_of = torch._transformer_encoder_layer_fwd, torch._native_multi_head_attention
    for dtype in DTYPES:
        torch.manual_seed(7)
        args = fused_layer(dtype, " padded", False, False)
        out = layer(*args)
        for wrong_one in (out * (1 + 2**-5), out.flip(1), layer(*args[:-2])):
            assert wrongs(layer, args, {"output.0": wrong_one}), dtype
        args = fused_heads(dtype, " causal", True, True)
        mixed, shares = heads_of(*args)
        for told in ({"output.0": mixed.flip(0)}, {"output.1": shares.mT}):
            assert wrongs(heads_of, args, told), dtype


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("op", CAUGHT)
def test_a_planted_error_is_found(op: str, fault: str) -> None:
    function, make = CAUGHT[op]
    for dtype in DTYPES:
        torch.manual_seed(7)
        args = make(dtype)
        exact = function(*(a.double() if isinstance(a, Tensor) else a for a in args))
        got = {"output.0": FAULTS[fault](exact).to(dtype)}
        if not torch.equal(
            got["output.0"], exact.to(dtype)
        ):  # a fault that rounding undoes is none
            assert wrongs(function, args, got), dtype


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_rounding_toward_zero_is_found(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    args = x(64, 96, dtype=dtype), x(64, 96, dtype=dtype)
    exact = args[0].double() * args[1].double()
    near = exact.to(dtype)
    below = torch.nextafter(near, torch.zeros_like(near))
    cut = torch.where(near.double().abs() > exact.abs(), below, near)
    assert wrongs(torch.mul, args, {"output.0": near}) == {}
    assert "nearest" in wrongs(torch.mul, args, {"output.0": cut})["output.0"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_must_be_zero_is_nothing_else(dtype: torch.dtype) -> None:
    call, given = called(torch.mul, torch.zeros(4, 8, dtype=dtype), torch.ones(4, 8, dtype=dtype))
    got = torch.zeros(4, 8, dtype=dtype)
    assert not wrongs_of(call, given, {"output.0": got})
    got[1, 2] = 0.25
    assert wrongs_of(call, given, {"output.0": got})


def test_what_only_moves_is_held_bit_for_bit() -> None:
    given = torch.tensor([[-0.0, math.nan, 1.0], [math.inf, -2.0, 0.0]])
    assert held(torch.t, (given,), {"output.0": given.t()})["output.0"].mismatched == 0
    for got in (given.t().abs(), given.t() + 2**-23, given.t().flip(0)):
        found = held(torch.t, (given,), {"output.0": got})["output.0"]
        assert found.is_exact and found.mismatched, found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("function", [torch.floor_divide, torch.fmod])
def test_a_whole_quotient_has_one_right_result(function: Any, dtype: torch.dtype) -> None:
    args = torch.tensor([560.0, 561.0, -7.0], dtype=dtype), torch.full((3,), 3.0, dtype=dtype)
    exact = function(*(each.double() for each in args)).to(dtype)
    assert not wrongs(function, args, {"output.0": exact})
    above = torch.where(exact == exact[0], exact + 1, exact)
    assert "rounds nothing" in wrongs(function, args, {"output.0": above})["output.0"]


def test_the_next_number_is_that_of_the_dtype() -> None:
    args = torch.arange(1.0, 65.0).half(), torch.arange(2.0, 66.0).half()
    assert not wrongs(torch.nextafter, args, {"output.0": torch.nextafter(*args)})
    longer = torch.nextafter(*(each.float() for each in args)).half()
    assert "64 elements" in wrongs(torch.nextafter, args, {"output.0": longer})["output.0"]


def test_memory_that_nobody_has_written_to_may_hold_anything_but_where_it_is_written() -> None:
    args = torch.zeros(6), slice(1, 4), torch.arange(3.0)
    call, given = called(torch.Tensor.__setitem__, *args)
    again = rerun(call, given | {"input.0": torch.empty(6, device="meta")})
    got = torch.tensor([math.nan, 0.0, 1.0, 2.0, 7.0, -1.0])
    assert hold(again, "output.0", got).mismatched == 0
    assert hold(again, "output.0", got.roll(1)).mismatched == 3
    call, given = called(torch.add, torch.zeros(6), 1)
    with pytest.raises(Unreplayable, match="nobody has written"):
        rerun(call, {"input.0": torch.empty(6, device="meta")})


def test_a_cast_is_held_as_its_dtype_rounds_whatever_the_dtype_of_the_run() -> None:
    given = torch.randn(100)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        got = {"output.0": given.to(dtype)}
        assert wrongs(torch.Tensor.to, (given, torch.bfloat16), got) == {}
    cut = {"output.0": (given.view(torch.int32) & -65536).view(torch.float32).bfloat16()}
    assert wrongs(torch.Tensor.to, (given, torch.bfloat16), cut)


def test_autocast_rounds_what_it_computes_with() -> None:
    args = torch.randn(16, 256), torch.randn(32, 256)
    call, given = called(F.linear, *args)
    text = call.arguments[:-1] + ',"autocast":{"cpu":"bfloat16"}}'
    cast = type(call)(**{f: getattr(call, f) for f in call.__slots__} | {"arguments": text})
    rounded = args[0].bfloat16().double() @ args[1].bfloat16().double().t()
    assert torch.equal(rerun(cast, given).outputs["output.0"], rounded)


def test_terms_that_cancel_condition_the_sum() -> None:
    a = torch.randn(64, 64) + 1000
    again = rerun(*called(torch.sub, a, a + 1e-3))
    assert again.condition["output.0"] > 1e5
    assert rerun(*called(torch.add, a.abs(), a.abs())).condition["output.0"] == 1


def test_tiles_give_the_same_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (F.linear, (torch.randn(40, 3, 64), torch.randn(96, 64), torch.randn(96))),
        (torch.matmul, (torch.randn(4, 30, 64), torch.randn(4, 64, 20))),
        (torch.mm, (torch.randn(50, 64), torch.randn(64, 70))),
        (torch.addmm, (torch.randn(50, 70), torch.randn(50, 64), torch.randn(64, 70))),
        (torch.add, (torch.randn(50, 64), torch.randn(64))),
        (F.layer_norm, (torch.randn(50, 64), (64,))),
        (F.softmax, (torch.randn(50, 64), -1)),
        (F.softmax, (torch.randn(50, 64), 0)),
    ]
    wholes = [rerun(*called(function, *args)) for function, args in cases]
    monkeypatch.setattr(tiling, "AT_ONCE", 500)
    for (function, args), whole in zip(cases, wholes, strict=True):
        tiled = rerun(*called(function, *args))
        torch.testing.assert_close(tiled.outputs, whole.outputs, rtol=1e-13, atol=1e-12)
        assert tiled.condition == pytest.approx(whole.condition, rel=0.1)


REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (torch.rand, (3,), "draws"),
    (torch.empty, (3,), "memory as it was found"),
    (F.scaled_dot_product_attention, (*attention(torch.float32), None, 0.5), "draws"),
    (torch.Tensor.repeat, (torch.ones(1), 1 << 40), "bytes"),
    (torch.zeros, (1 << 40,), "bytes"),
    (F.one_hot, (torch.tensor([1 << 40]),), "bytes"),
    (torch.bincount, (torch.tensor([1 << 40]),), "bytes"),
    (torch.repeat_interleave, (torch.ones(1), torch.tensor([1 << 40])), "bytes"),
    (torch.outer, (torch.ones(1 << 18), torch.ones(1 << 18)), "bytes"),
    (torch.add, (torch.ones(1 << 18), torch.ones(1 << 18, 1)), "bytes"),
]


@pytest.mark.parametrize("function, args, why", REFUSED, ids=lambda c: getattr(c, "__name__", ""))
def test_what_cannot_be_run_again_says_why(
    function: Callable[..., Any], args: tuple[Any, ...], why: str
) -> None:
    with pytest.raises(Unreplayable, match=why):
        rerun(*called(function, *args))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("func", [torch.add, torch.sub, torch.mul, operator.mul])
def test_what_is_computed_at_once_is_the_nearest_and_no_truncation_of_it(
    func: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    one, other = x(16, 64, dtype=dtype, scale=3.0), x(64, dtype=dtype)
    call, given = called(func, one, other)
    again, got = rerun(call, given), func(one, other)
    sound = hold(again, "output.0", got)
    assert sound.is_nearest and sound.mismatched <= 8 and not wrong(sound)
    exact = func(one.double(), other.double())
    grain = torch.finfo(dtype).eps / 2
    cut = (exact * (1 - grain)).to(dtype)  # towards zero, where it is not the nearest
    assert "not the nearest" in wrong(hold(again, "output.0", cut))


def test_a_number_of_python_may_be_rounded_first() -> None:
    call, given = called(torch.mul, x(4, 4, dtype=torch.bfloat16), 0.3)
    assert not rerun(call, given).is_nearest


def short(tensor: Tensor, scale: Tensor) -> Tensor:
    return (tensor / scale).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 32)])
def test_a_product_of_floats_of_8_bits(bias: Tensor | None) -> None:
    a, b = torch.randn(16, 64), torch.randn(64, 32)
    scales = a.abs().max() / 448, b.abs().max() / 448
    args = short(a, scales[0]), short(b.t().contiguous(), scales[1]).t(), *scales, bias
    try:
        got = outputs_of(torch._scaled_mm, *args, out_dtype=torch.float32)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"torch has no kernel for it here: {error}")
    assert not wrongs(torch._scaled_mm, args, got, out_dtype=torch.float32)
    wrong = {"output.0": got["output.0"] * 1.001}
    assert wrongs(torch._scaled_mm, args, wrong, out_dtype=torch.float32)


@pytest.mark.parametrize(
    ("scale_a", "scale_b"),
    [
        (torch.rand(8, 1), torch.rand(1, 24)),  # by rows and columns
        (torch.rand(8, 4), torch.rand(4, 3)),  # by blocks of 16, and of 16 times 8
        (torch.rand(8, 3), torch.rand(3, 24)),  # the last blocks are shorter
    ],
)
def test_scales_of_rows_and_blocks(scale_a: Tensor, scale_b: Tensor) -> None:
    a, b = (short(torch.randn(shape), torch.tensor(1.0)) for shape in ((8, 64), (64, 24)))
    size = -(-64 // scale_a.shape[1])
    wide = scale_a.repeat_interleave(size, 1)[:, :64] if scale_a.shape[1] > 1 else scale_a
    high = scale_b.repeat_interleave(size, 0)[:64] if scale_b.shape[0] > 1 else scale_b
    high = high.repeat_interleave(24 // high.shape[1], 1)
    got = {"output.0": ((a.double() * wide) @ (b.double() * high)).float()}
    assert not wrongs(torch._scaled_mm, (a, b, scale_a, scale_b), got)
    got["output.0"][3, 5] *= 1.01
    assert wrongs(torch._scaled_mm, (a, b, scale_a, scale_b), got)


def test_what_only_moves_floats_of_8_bits_is_known_to_the_bit() -> None:
    codes = short(torch.randn(4, 8), torch.tensor(1.0))
    assert not wrongs(torch.t, (codes,), {"output.0": codes.t()})
    other = codes.float()
    other[1, 2] += 1
    assert wrongs(torch.t, (codes,), {"output.0": other.to(codes.dtype).t()})
    other[1, 2] = math.nan
    assert wrongs(torch.t, (codes,), {"output.0": other.to(codes.dtype).t()})


@pytest.mark.parametrize("func", [torch.mul, torch.div, torch.add, torch.sub])
def test_a_wider_tensor_without_dimensions_may_be_rounded_first(
    func: Callable[..., Tensor],
) -> None:
    one, number = x(64, 64, dtype=torch.bfloat16), torch.tensor(1.0037)
    rounded = func(one.double(), number.bfloat16().double()).bfloat16()
    exact = func(one.double(), number.double()).bfloat16()
    assert not torch.equal(rounded, exact)
    for got in (rounded, exact):
        assert not wrongs(func, (one, number), {"output.0": got})
    wrong = func(one.double(), 1.03 * number.double()).bfloat16()
    assert wrongs(func, (one, number), {"output.0": wrong})
