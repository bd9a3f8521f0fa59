"""Gradients: a wrong one is found at its call, and what only cancels or is rounded is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import dumpcmp
from dumpcmp.comparing.side import open_side
from dumpcmp.comparing.taping import Tape, plan_gradient
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Why
from dumpcmp.nouns.selection import Tap
from tests.choosing_cases import long

Plant = Callable[[], AbstractContextManager[Any]]


class Encoder(nn.Module):
    """A layer of attention and feed-forward, as in BERT: it ends in a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.norm1, self.norm2 = (nn.LayerNorm(16, eps=1e-12) for _ in range(2))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(2, 6, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        probs = torch.softmax(q @ k.transpose(-1, -2) / 3, -1)
        x = self.norm1(x + self.o((probs @ v).transpose(1, 2).reshape(2, 6, 16)))
        down: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return down


class Cells(nn.Module):
    """A recurrence that takes parts of one tensor step by step, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.out = nn.Linear(8, 32), nn.Linear(8, 32, bias=False), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        gates, h = self.x(x), torch.zeros(2, 8, dtype=x.dtype)
        kept = []
        for t in range(4):
            i, f, g, o = (gates[:, t] + self.h(h)).chunk(4, -1)
            h = torch.sigmoid(o) * torch.tanh(
                torch.sigmoid(i) * torch.tanh(g) + f * gates[:, t, :8]
            )
            kept.append(h)
        out: Tensor = self.out(torch.stack(kept, 1))
        return out


class Pictures(nn.Module):
    """A convolutional net with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.out = nn.GroupNorm(2, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.one(x)))
        x = x + F.silu(self.two(x))
        out: Tensor = self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return out


def squares(y: Tensor) -> Tensor:
    return y.float().pow(2).mean()


def weighted(y: Tensor) -> Tensor:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(9))
    return (y.float() * weights).sum()


SHAPES = {Encoder: (2, 6, 16), Cells: (2, 4, 8), Pictures: (2, 3, 6, 6)}


def dumped(
    path: Path,
    kind: type[nn.Module],
    dtype: torch.dtype = torch.float32,
    plant: Plant = nullcontext,
    loss: Callable[[Tensor], Tensor] = weighted,
    mode: str = "eager",
) -> Path:
    """Run a model with its backward pass into an archive at `path`."""
    torch.manual_seed(5)
    model = kind().to(dtype)
    given = torch.randn(SHAPES[kind]).to(dtype).requires_grad_(True)
    run = torch.compile(model) if mode == "compiled" else model
    with plant(), dumpcmp.capture(model, path, mode=mode, backward=True):
        loss(run(given)).backward()  # type: ignore[no-untyped-call]
    return path


class Wrong(torch.autograd.Function):
    """Gives on what it was given, and a wrong gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str) -> Tensor:
        ctx.how = how
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        if ctx.how == "scaled":
            return grad * 1.02, None
        if ctx.how == "scaled a little":
            return grad * (1 + 2**-11), None
        if ctx.how == "a wrong sign":
            grad[..., :2] *= -1
            return grad, None
        if ctx.how == "stale":
            return grad.roll(1, 0), None
        return torch.zeros_like(grad), None  # dropped


class WrongBackward(TorchFunctionMode):
    """The nth call of a function gives a wrong gradient for one of its arguments."""

    def __init__(self, function: str, call: int, argument: int, how: str) -> None:
        super().__init__()
        self.function, self.call, self.argument, self.how = function, call, argument, how

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").strip("_") == self.function:
            self.call -= 1
            if self.call == -1:
                args = list(args)
                args[self.argument] = Wrong.apply(args[self.argument], self.how)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class Otherwise(TorchFunctionMode):
    """Computes sums in halves, and norms and softmax in float64: as right, and not the same."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "linear" and args[2] is not None:
            (x, weight, bias), half = args, args[0].shape[-1] // 2
            first, second = (
                x[..., part].float() @ weight[:, part].float().t()
                for part in (slice(half), slice(half, None))
            )
            return (first + second + bias.float()).to(x.dtype)
        if name in ("softmax", "layer_norm", "gelu", "conv2d", "group_norm"):
            wide = [a.double() if isinstance(a, Tensor) else a for a in args]
            words = {k: v.double() if isinstance(v, Tensor) else v for k, v in kwargs.items()}
            return func(*wide, **words).to(args[0].dtype)
        return func(*args, **kwargs)


FAULTS = [
    long(Encoder, "linear", 1, 0, "a wrong sign", "k/linear"),
    (Encoder, "linear", 1, 1, "scaled", "k/linear"),
    (Encoder, "softmax", 0, 0, "a wrong sign", "<root>/softmax"),
    (Encoder, "gelu", 0, 0, "stale", "<root>/gelu"),
    (Encoder, "layer_norm", 0, 0, "dropped", "norm1/layer_norm"),
    (Encoder, "transpose", 3, 0, "scaled", "<root>/transpose"),
    (Cells, "tanh", 2, 0, "scaled", "<root>/tanh"),
    long(Cells, "sigmoid", 3, 0, "dropped", "<root>/sigmoid"),
    long(Pictures, "conv2d", 1, 0, "a wrong sign", "two/conv2d"),
    (Pictures, "conv2d", 1, 1, "scaled", "two/conv2d"),
    (Pictures, "group_norm", 0, 0, "stale", "norm/group_norm"),
]  # fmt: skip


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The golden archive of a model, dumped once."""
    room, made = tmp_path_factory.mktemp("golden"), dict[tuple[Any, ...], Path]()

    def get(kind: type[nn.Module], dtype: torch.dtype = torch.float32) -> Path:
        if (kind, dtype) not in made:
            made[kind, dtype] = dumped(room / f"{kind.__name__}-{dtype}", kind, dtype)
        return made[kind, dtype]

    return get


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind, function, call, argument, how, op", FAULTS)
def test_a_wrong_backward_is_found_at_its_call(
    kind: type[nn.Module], function: str, call: int, argument: int, how: str, op: str,
    dtype: torch.dtype, golden: Callable[..., Path], tmp_path: Path,
) -> None:  # fmt: skip
    plant = lambda: WrongBackward(function, call, argument, how)  # noqa: E731
    outcome = dumpcmp.compare(golden(kind, dtype), dumped(tmp_path / "mine", kind, dtype, plant))
    first = outcome.first_divergence
    assert first is not None
    assert (first.key.op, first.key.slot) == (op, f"grad_input.{argument}")
    assert len(outcome.roots) == 1
    assert not list(orphans(outcome))


def orphans(outcome: Outcome) -> Iterator[str]:
    """Failing rows without a root or a cause."""
    yield from (str(r.key) for r in outcome.failures if not r.root and r.cause is None)


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", SHAPES, ids=lambda kind: str(kind.__name__))
def test_another_way_to_compute_is_not_wrong(
    kind: type[nn.Module], dtype: torch.dtype, golden: Callable[..., Path], tmp_path: Path
) -> None:
    outcome = dumpcmp.compare(
        golden(kind, dtype), dumped(tmp_path / "mine", kind, dtype, Otherwise)
    )
    assert [str(row.key) for row in outcome.failures] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_left_after_cancellation_is_named_as_such(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """The squares of what a layer norm gives have the same sum, whatever it is given."""
    ours = dumped(tmp_path / "ours", Encoder, dtype, loss=squares)
    mine = dumped(tmp_path / "mine", Encoder, dtype, Otherwise, squares)
    outcome = dumpcmp.compare(ours, mine)
    ill = [row for row in outcome.rows if row.judgement.why is Why.ILL]
    assert not outcome.failures
    assert any(row.key.op == "norm2/layer_norm" for row in ill)
    assert all("left after cancellation (condition" in row.reason for row in ill)


class Estimator(torch.autograd.Function):
    """Rounds, and gives the gradient back as if it had not: not that of its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x * 8)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 8


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        two: Tensor = self.two(Estimator.apply(self.one(x)))  # type: ignore[no-untyped-call]
        return two


SHAPES[Rounded] = (2, 4, 8)


def test_gradients_that_a_program_makes_otherwise_are_not_called_wrong(tmp_path: Path) -> None:
    ours = dumped(tmp_path / "ours", Rounded)
    other = lambda: WrongBackward("linear", 1, 0, "scaled")  # noqa: E731
    outcome = dumpcmp.compare(ours, dumped(tmp_path / "mine", Rounded, plant=other))
    assert [row.key.op for row in outcome.roots] == ["two/linear"]
    same = dumpcmp.compare(ours, dumped(tmp_path / "same", Rounded), replay="all")
    assert not same.failures


def test_a_tensor_has_the_gradients_of_all_that_took_it(golden: Callable[..., Path]) -> None:
    tape = Tape(open_side(golden(Encoder), Tap()).listing)
    plan = plan_gradient(tape, Key("Encoder", 0, "<root>", 0, "grad_input.0"), lambda _: True)
    took = [f"{call.op} {slot}" for call, (_, slot) in zip(plan.calls, plan.leaves, strict=True)]
    assert took == [
        "q/linear input.0", "k/linear input.0", "v/linear input.0", "<root>/add input.0",
    ]  # fmt: skip
    assert all(key.slot.kind == "grad_output" for key in plan.grads.values())


def test_a_parameter_has_the_gradients_of_every_call_that_took_it(
    golden: Callable[..., Path],
) -> None:
    tape = Tape(open_side(golden(Cells), Tap()).listing)
    plan = plan_gradient(tape, Key("Cells", 0, "h", 0, "grad.weight"), lambda _: True)
    assert len(plan.calls) == 4
    assert {slot for _, slot in plan.leaves} == {"input.1"}


def test_the_same_part_taken_twice_is_two_tensors(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            return y[:, 0] * y[:, 0].exp() + torch.zeros_like(y[:, 0])

    SHAPES[Twice] = (2, 4, 8)
    tape = Tape(open_side(dumped(tmp_path / "d", Twice), Tap()).listing)
    plans = [
        plan_gradient(
            tape, Key("Twice", 0, "<root>/getitem", call, "grad_output.0"), lambda _: True
        )
        for call in (0, 1)
    ]
    assert [[call.op.function for call in plan.calls] for plan in plans] == [["mul"], ["exp"]]
    ends = plan_gradient(tape, Key("Twice", 0, "<root>/mul", 0, "grad_output.0"), lambda _: True)
    given = [f"{key.op.function}#{key.call}" for key in ends.grads.values()]
    assert sorted(given) == ["getitem#0", "getitem#1"]  # nothing comes back through the third


@pytest.mark.parametrize("allow", [(), ("tf32", "tf32-conv")])
def test_a_shortcut_of_products_excuses_no_gradient_of_other_functions(
    allow: tuple[str, ...], tmp_path: Path, golden: Callable[..., Path]
) -> None:
    wrong = dumped(
        tmp_path / "d", Encoder, plant=lambda: WrongBackward("gelu", 0, 0, "scaled a little")
    )
    outcome = dumpcmp.compare(golden(Encoder), wrong, allow=allow)
    assert outcome.headline.startswith("WRONG at <root>/gelu")
