"""Checking a program while it runs: wrong kernels are named, sound ones are not."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp.checkup import check
from dumpcmp.cli import main
from dumpcmp.demo import build
from dumpcmp.faults import Fault, on_output, planted
from dumpcmp.nouns.row import Verdict


class Block(nn.Module):
    """A little of everything that a kernel may get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        mixed += x
        mixed[:, 0] = 0
        return torch.cat([self.out(mixed), x], dim=-1).softmax(-1)


def block(dtype: torch.dtype) -> tuple[Block, Tensor]:
    torch.manual_seed(3)
    return Block().to(dtype), torch.randn(2, 16, 64).to(dtype)


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sound_model_is_the_same_and_undisturbed(dtype: torch.dtype) -> None:
    model, x = block(dtype)
    alone = model(x)
    state = torch.get_rng_state()
    with check(model) as checkup:
        checked = model(x)
    assert torch.equal(alone, checked) and torch.equal(state, torch.get_rng_state())
    assert checkup.passed and checkup.exit_code == 0, repr(checkup)
    assert checkup.tally[Verdict.PASS] >= 9 and not checkup.rows
    assert repr(checkup).startswith("SAME: every op that was checked")


def scaled(out: Tensor) -> None:
    out.mul_(1.02)


def one_row(out: Tensor) -> None:
    out[0, 3].mul_(1.1)


def reversed_rows(out: Tensor) -> None:
    out.copy_(out.flip(1))


FAULTS = [("qkv", "linear", scaled), ("", "scaled_dot_product_attention", one_row),
          ("norm", "layer_norm", scaled), ("", "cat", reversed_rows)]  # fmt: skip


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("module, function, change", FAULTS, ids=[f[1] for f in FAULTS])
def test_a_wrong_kernel_is_named_alone(
    module: str, function: str, change: Callable[[Tensor], None], dtype: torch.dtype
) -> None:
    model, x = block(dtype)
    fault = Fault("wrong", module, function, on_output(change))
    with planted(model, fault), check(model) as checkup:
        model(x)
    assert [row.site.op for row in checkup.failures] == [fault.op]
    assert checkup.exit_code == 1 and checkup.headline.startswith(f"WRONG at {fault.op}")
    with pytest.raises(dumpcmp.VerificationError, match=fault.op):
        checkup.raise_for_status()


@torch.library.custom_op("dumpcmp_tests::double_silu", mutates_args=())
def double_silu(x: Tensor) -> Tensor:
    return 2.0 * nn.functional.silu(x) * (1 + 2**-5)


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.dumpcmp_tests.double_silu(x)
        return found + 1


def test_a_custom_op_is_unknown_until_it_has_a_reference() -> None:
    with check() as checkup:
        Custom()(torch.ones(4, 64))
    assert checkup.exit_code == 2 and checkup.tally[Verdict.INCONCLUSIVE] == 1
    assert checkup.headline.startswith("UNKNOWN: 1 value could not be checked, the first of <root>")
    told = 'dumpcmp.reference("dumpcmp_tests::double_silu")'
    assert told in checkup.headline and any(told in said for said in checkup.remarks)
    with pytest.raises(dumpcmp.VerificationError, match="custom op without a reference"):
        checkup.raise_for_status()
    dumpcmp.reference("dumpcmp_tests::double_silu")(lambda x: 2 * nn.functional.silu(x))
    with check() as checkup:
        Custom()(torch.randn(4, 64))
    assert [row.site.op.function for row in checkup.failures] == ["double_silu"]


@torch.library.custom_op("dumpcmp_tests::double_in_place", mutates_args=("x",))
def double_in_place(x: Tensor) -> None:
    x.mul_(2)


class Unlike(torch.autograd.Function):
    """A kernel of its own, which no function of torch runs; it may write into memory of torch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, made: Tensor) -> Tensor:
        found = torch.empty_like(x) if made.numel() else torch.from_numpy(x.numpy().copy())
        found.numpy()[...] = np.sin(x.numpy())
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (*grads, None)


def sines(x: Tensor, size: int) -> object:
    return Unlike.apply(x, torch.ones(size))  # type: ignore[no-untyped-call]


class Called(nn.Module):
    """Calls a function on what it is given, and computes with that."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        self.function(x)
        return x + 1


UNKNOWN: dict[str, Callable[[Tensor], object]] = {
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 2),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "normal": lambda x: torch.normal(x, 1.0),
    "scaled_dot_product_attention": lambda x: Attending()(x),
    "gumbel_softmax": F.gumbel_softmax,
    "geqrf": lambda x: torch.geqrf(x)[0],
    "_foreach_mul": lambda x: torch._foreach_mul([x], 2.0),
    "double_in_place": lambda x: torch.ops.dumpcmp_tests.double_in_place(x.clone()),
    "Unlike": lambda x: sines(x, 0),
    "Unlike into memory of torch": lambda x: sines(x, 1),
    "to": lambda x: x.to(torch.float8_e5m2fnuz),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_op_that_computes_and_cannot_be_checked_is_unknown(name: str) -> None:
    with check() as checkup, torch.no_grad():
        Called(UNKNOWN[name])(torch.rand(4, 8))
    assert checkup.exit_code == 2 and checkup.headline.startswith("UNKNOWN"), repr(checkup)
    (open_,) = checkup.inconclusive
    assert open_.site.op.function == name.partition(" ")[0] and open_.reason
    assert any(open_.reason in said and ", 1 x, " in said for said in checkup.remarks)


IDLE: dict[str, Callable[[Tensor], object]] = {
    "empty": lambda x: torch.empty(3),
    "empty_like": torch.empty_like,
    "randn": lambda x: torch.randn(3),
    "rand_like": torch.rand_like,
    "randperm": lambda x: torch.randperm(5),
    "uniform": lambda x: x.clone().uniform_(),
    "bernoulli": lambda x: x.clone().bernoulli_(0.5),
    "kaiming_uniform": lambda x: nn.init.kaiming_uniform_(x.clone()),
}


@pytest.mark.parametrize("name", IDLE)
def test_what_nothing_decides_need_not_be_checked_and_is_listed(name: str) -> None:
    with check() as checkup, torch.no_grad():
        Called(IDLE[name])(torch.ones(4, 8))
    assert checkup.exit_code == 0, repr(checkup)
    (row,) = checkup.rows
    assert (row.verdict, row.site.op.function) == (Verdict.SKIPPED, name)
    assert any(said.startswith(f"{name} was not checked, 1 x, ") for said in checkup.remarks)


def test_what_gives_out_no_tensor_is_no_op() -> None:
    with check() as checkup:
        Called(lambda x: (x.dim(), torch.is_grad_enabled(), x.to(torch.float32)))(torch.ones(2))
    assert checkup.exit_code == 0 and not checkup.rows, repr(checkup)


# Backward


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_the_backward_pass_of_a_dropout_is_checked(kind: type[nn.Module], zeros: bool) -> None:
    """What it drew shows where it was given no zeros, and elsewhere when it draws once more."""
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5, 5, requires_grad=True)
    given = x.relu() if zeros else x
    alone, state = kind()(given), torch.get_rng_state()
    torch.manual_seed(0)
    torch.randn(4, 6, 5, 5)
    with check() as checkup:
        seen = kind()(given)
    assert torch.equal(seen, alone) and torch.equal(torch.get_rng_state(), state)
    seen.square().sum().backward()
    assert checkup.exit_code == 0 and not checkup.rows, repr(checkup)
    assert checkup.tally[Verdict.PASS] >= 2  # forward and backward


def test_attention_with_dropout_is_not_called_wrong() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 8, 16, requires_grad=True)
    with check() as checkup:
        Attending()(q).sum().backward()
    assert not checkup.failures and checkup.exit_code == 2, repr(checkup)
    assert "without dropout it can be run again" in checkup.headline


class Attending(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


def test_a_backward_pass_that_is_too_long_to_be_watched_is_told() -> None:
    with check() as checkup:
        Called(lambda x: torch.linalg.multi_dot([x] * 70).sum().backward())(
            torch.eye(3, requires_grad=True)
        )
    assert checkup.exit_code == 2 and "more than 64 nodes" in checkup.headline, repr(checkup)


def test_parameters_that_autocast_casts_are_checked_backward() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv1d(4, 4, 3), nn.Linear(14, 14)), torch.randn(2, 4, 16)
    with check(model) as checkup:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().sum()
        loss.backward()
    assert checkup.exit_code == 0 and not checkup.rows, repr(checkup)
    assert checkup.tally[Verdict.PASS] == 2 + 5  # with the gradients of two weights and biases


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_backward_pass_of_a_sound_model_is_silent(dtype: torch.dtype) -> None:
    model, x = block(dtype)
    x.requires_grad_()
    model(x).float().square().sum().backward()
    alone = [each.grad for each in (x, *model.parameters())]
    for each in (x, *model.parameters()):
        each.grad = None
    with check(model) as checkup:
        model(x).float().square().sum().backward()
    checked = [each.grad for each in (x, *model.parameters())]
    both = zip(alone, checked, strict=True)
    assert all(a is not None and c is not None and torch.equal(a, c) for a, c in both)
    assert checkup.passed and not checkup.rows, repr(checkup)
    forward = len([*model.modules()])
    assert checkup.tally[Verdict.PASS] >= 9 + forward


class Silu(torch.autograd.Function):
    """Written by hand, and wrong in the backward pass by `factor`."""

    factor = 1.02

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x.float())
        found: Tensor = (grad.float() * (s + x.float() * s * (1 - s)) * Silu.factor).to(x.dtype)
        return found


class Rounded(torch.autograd.Function):
    """Hands its gradient straight through, as many quantisers do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class ByHand(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(64, 64), function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.function.apply(self.first(x))
        return found + x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor, ops", [(1.02, ["<root>/Silu"]), (1.0, [])])
def test_a_wrong_backward_of_a_custom_function_is_named_alone(
    factor: float, ops: list[str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Silu, "factor", factor)
    torch.manual_seed(1)
    model, x = ByHand(Silu).to(dtype), torch.randn(16, 64).to(dtype)
    with check(model) as checkup:
        model(x).sum().backward()
    assert [str(row.site.op) for row in checkup.failures] == ops, repr(checkup)
    assert all(row.slot == "grad_input.0" for row in checkup.failures)


def test_a_gradient_that_is_handed_straight_through_is_no_mistake() -> None:
    torch.manual_seed(1)
    with check() as checkup:
        ByHand(Rounded)(torch.randn(16, 64)).sum().backward()
    assert checkup.passed and "straight through" in repr(checkup.rows)


def test_a_wrong_backward_of_a_custom_op_is_named_by_its_reference() -> None:
    dumpcmp.reference("dumpcmp_tests::half_square")(lambda x: x * x / 2)
    with check() as checkup:
        HalfSquare()(torch.randn(8, 64, requires_grad=True)).sum().backward()
    assert [(row.site.op.function, row.slot) for row in checkup.failures] == [
        ("half_square", "grad_input.0")
    ]


def test_a_custom_op_with_a_backward_is_named_as_the_program_names_it() -> None:
    with check() as checkup:
        Halved()(torch.randn(8, 64, requires_grad=True)).sum().backward()
    rows = [row for row in checkup.rows if row.verdict is Verdict.INCONCLUSIVE]
    assert {row.site.op.function for row in rows} == {"halved.default"}
    assert 'dumpcmp.reference("dumpcmp_tests::halved")' in checkup.headline


@torch.library.custom_op("dumpcmp_tests::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() / 2)  # a kernel of its own


halved.register_autograd(lambda _, grad: grad / 2)


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = halved(x)
        return found


@torch.library.custom_op("dumpcmp_tests::half_square", mutates_args=())
def half_square(x: Tensor) -> Tensor:
    return x * x / 2


def _wrong(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    found: Tensor = grad * x * (1 + 2**-6)
    return found


def _saving(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


half_square.register_autograd(_wrong, setup_context=_saving)


class HalfSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.dumpcmp_tests.half_square(x)
        return found * 3


def test_a_graph_that_nobody_goes_back_through_is_freed() -> None:
    model, x = block(torch.float32)
    with check(model):
        out = model(x)
    held = weakref.ref(model.out.weight)  # which the graph holds
    del out, model
    gc.collect()
    assert held() is None


# Kernels


GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


@torch.library.custom_op("dumpcmp_tests::short_mm", mutates_args=())
def short_mm(a: Tensor, b: Tensor, step: int) -> Tensor:
    """A product whose sum is rounded to the dtype of its factors every `step` terms."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for start in range(0, a.shape[1], step):
        part = a[:, start : start + step].float() @ b[start : start + step].float()
        total = (total.float() + part).to(a.dtype)
    return total


class Product(nn.Module):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        found: Tensor = torch.ops.dumpcmp_tests.short_mm(a, b, self.step)
        return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("step, is_wrong", [(8, True), (1024, False)])
def test_a_product_that_is_summed_in_bfloat16_is_found(
    step: int, is_wrong: bool, device: str
) -> None:
    dumpcmp.reference("dumpcmp_tests::short_mm")(lambda a, b, step: a @ b)
    torch.manual_seed(0)
    a, b = (torch.randn(*shape).bfloat16().to(device) for shape in ((32, 1024), (1024, 32)))
    with check() as checkup:
        Product(step)(a, b)
    assert bool(checkup.failures) is is_wrong, repr(checkup)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("factor, ops", [(1.01, ["<root>/scaled_add"]), (1.0, [])])
def test_a_wrong_triton_kernel_is_named(factor: float, ops: list[str]) -> None:
    from tests.kernels import ScaledAdd

    dumpcmp.reference("dumpcmp_tests::scaled_add")(lambda x, y, factor: x + y)
    torch.manual_seed(0)
    x, y = (torch.randn(64, 96, device="cuda") for _ in range(2))
    with check() as checkup:
        ScaledAdd(factor)(x, y)
    assert [str(row.site.op) for row in checkup.failures] == ops, repr(checkup)


def test_what_is_selected_is_checked_and_nothing_else() -> None:
    model, inputs = build()
    with check(model, layers="layers.0.*") as some, torch.no_grad():
        model(*inputs)
    with check(model, every=10) as tenth, torch.no_grad():
        model(*inputs)
    with check(model) as everything, torch.no_grad():
        model(*inputs)
    assert 0 < some.tally.total < everything.tally.total
    assert tenth.tally.total == pytest.approx(everything.tally.total / 10, rel=0.25)


def test_functions_outside_of_modules_are_checked_where_no_model_is_named() -> None:
    x, linear = torch.randn(4, 8), nn.Linear(8, 8)
    with dumpcmp.check() as checkup:
        linear(x).square().mean().backward()
    assert checkup.passed and checkup.tally[Verdict.PASS] > 4
    with dumpcmp.check() as outside:
        double_silu(x)
    assert [row.site.model for row in outside.rows] == ["program"]
    with dumpcmp.check(linear) as inside:
        double_silu(x)
    assert not inside.rows


def test_operators_in_place_are_held_against_what_they_were_given() -> None:
    mask, x = torch.rand(64) > 0.5, torch.rand(64)
    with check() as checkup:
        mask ^= x > 0.5
        mask &= x > 0.2
        mask |= x > 0.9
        x += 1
    assert checkup.passed and checkup.tally[Verdict.PASS] > 4, checkup.headline


def test_nothing_checked_is_unknown() -> None:
    with check(nn.Identity()) as checkup:
        pass
    assert checkup.exit_code == 2 and checkup.headline.startswith("UNKNOWN")


PROGRAM = """
import torch
from dumpcmp.faults import Fault, on_output, planted
from tests.test_checkup import block, scaled
model, x = block(torch.float32)
if {broken}:
    with planted(model, Fault("wrong", "out", "linear", on_output(scaled))):
        model(x)
else:
    model(x)
if {raises}:
    raise ValueError("the program's own")
"""


@pytest.mark.parametrize("broken, raises, code, said", [
    (False, False, 0, "SAME"), (True, False, 1, "WRONG at out/linear"), (False, True, 2, "own"),
])  # fmt: skip
def test_the_command_answers_by_its_exit_code(
    broken: bool, raises: bool, code: int, said: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(broken=broken, raises=raises))
    result = CliRunner().invoke(main, ["check", str(program)])
    assert (result.exit_code, said in result.output) == (code, True), result.output
