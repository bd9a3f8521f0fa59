"""Models that compilers like to lay out anew: convolutions, graph breaks, views, losses."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dumpcmp import (
    ExactChecker,
    Fp64Checker,
    RoundingChecker,
    VerificationError,
    VerifyConfig,
    verify,
    verifying_backend,
)

INFER = VerifyConfig(value_checker=Fp64Checker(), verify_stride=True)
TRAIN = VerifyConfig(value_checker=Fp64Checker(), backward=True)
EXACT = VerifyConfig(value_checker=ExactChecker())


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one."""
    store: Path = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


class TwoConvs(nn.Module):
    """Two convolutions, with a graph break between them where `breaks` says so."""

    def __init__(self, breaks: bool, dim: int = 64, **how: Any) -> None:
        super().__init__()
        how = how or {"stride": 2}
        self.conv1 = nn.Conv2d(3, dim, kernel_size=3, bias=False, **how)
        self.conv2 = nn.Conv2d(dim, dim, kernel_size=3, bias=False, **how)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(x)
        if self.breaks:
            torch._dynamo.graph_break()
        out: torch.Tensor = self.conv2(x)
        return out


class ThreeConvs(nn.Module):
    """Patches, a depthwise convolution and a pointwise one."""

    def __init__(self, breaks: bool, dim: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, kernel_size=7, stride=7, bias=False)
        self.depthwise = nn.Conv2d(dim, dim, 7, groups=dim, padding="same", bias=False)
        self.pointwise = nn.Conv2d(dim, dim, kernel_size=1, bias=False)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.depthwise(self.patches(x))
        if self.breaks:
            torch._dynamo.graph_break()
        out: torch.Tensor = self.pointwise(x)
        return out


LARGE = {TwoConvs: 256, ThreeConvs: 544}  # more than the megabyte of DDP's first bucket


def image() -> torch.Tensor:
    return torch.rand(2, 3, 16, 16)


def by_hand(model: nn.Module, backend: Any) -> Callable[..., Any]:
    return torch.compile(model, backend=backend)


def by_ddp(model: nn.Module, backend: Any) -> Callable[..., Any]:
    return torch.compile(DistributedDataParallel(model, bucket_cap_mb=1), backend=backend)


@pytest.mark.each_value_once
@pytest.mark.parametrize("config", [INFER, TRAIN], ids=["infer", "train"])
@pytest.mark.parametrize("compiled", [by_hand, by_ddp])
@pytest.mark.parametrize("model_class", [TwoConvs, ThreeConvs])
def test_a_graph_break_changes_nothing(
    model_class: type[nn.Module], compiled: Any, config: VerifyConfig, gloo: None
) -> None:
    dim = 64 if compiled is by_hand else LARGE[model_class]
    model = model_class(breaks=compiled is by_hand, dim=dim)
    report = verify([image()], model, compiled(model, "aot_eager"), config)
    grads = [row.key.slot for row in report.rows if row.key.slot.startswith("grad")]
    assert len(grads) == (len(list(model.parameters())) if config.backward else 0)
    assert all(row.reference_errors for row in report.rows)


@pytest.mark.parametrize("compiled", [by_hand, by_ddp])
def test_a_backward_seven_times_too_large_is_caught(compiled: Any, gloo: None) -> None:
    """The two sides never share a `.grad`, so neither is compared with itself."""

    def seven_times(graph: Any, examples: Any) -> Callable[..., Any]:
        return lambda *args: tuple(SevenTimes.apply(value) for value in graph(*args))  # type: ignore[no-untyped-call]

    model = TwoConvs(breaks=False)
    verify([image()], model, compiled(model, seven_times), INFER)
    with pytest.raises(VerificationError, match=r"grad\.conv"):
        verify([image()], model, compiled(model, seven_times), TRAIN)


class SevenTimes(torch.autograd.Function):
    """The identity, with a gradient seven times too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


def test_every_graph_of_a_ddp_model_is_checked(gloo: None) -> None:
    backend = verifying_backend("aot_eager")
    model = TwoConvs(breaks=False, dim=LARGE[TwoConvs])
    by_ddp(model, backend)(image()).sum().backward()
    assert len(backend.reports) == 2  # type: ignore[attr-defined]
    assert all(backend.reports)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def on_inductor() -> Callable[..., Any]:
    """Inductor, which compiles a kernel once: tests give it convolutions of one shape."""
    return lambda model, **options: torch.compile(model, backend="inductor", **options)


@pytest.mark.slow
@pytest.mark.long  # breaks are tested with another backend, Inductor without a break
def test_inductor_with_a_graph_break(on_inductor: Any) -> None:
    model = TwoConvs(breaks=True, dim=3, padding=1)  # the kernels of both are the same
    verify([image()], model, on_inductor(model), TRAIN)


@pytest.mark.parametrize("freezing", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_output_keeps_its_layout(on_inductor: Any, freezing: bool) -> None:
    model = nn.Conv2d(3, 16, kernel_size=3, padding=1, bias=False).eval()
    x = image()
    with torch.no_grad(), torch._inductor.config.patch(freezing=freezing):
        compiled = on_inductor(model)
        verify([x], model, compiled, INFER)
        assert compiled(x).view(16, -1).shape == model(x).view(16, -1).shape
    channels_last = lambda x: model(x).to(memory_format=torch.channels_last)  # noqa: E731
    with pytest.raises(VerificationError, match="strides"):
        verify([x], lambda x: model(x), channels_last, VerifyConfig(verify_stride=True))


def mutate_view(x: torch.Tensor) -> None:
    x.view(3, 2).mul_(2)


def mutate_base(x: torch.Tensor) -> torch.Tensor:
    y = x.view(3, 2)
    x.mul_(2)
    return y


@pytest.mark.each_value_once
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("function", [mutate_view, mutate_base])
def test_mutation_reaches_base_and_view(
    function: Callable[[torch.Tensor], torch.Tensor | None], backend: str
) -> None:
    x = torch.ones(2, 3)
    compiled = torch.compile(function, backend=backend)
    report = verify([x], function, compiled, EXACT)
    assert "mutated.0" in [row.key.slot for row in report.rows]
    result = compiled(x)
    assert torch.equal(x, torch.full((2, 3), 2.0))
    assert result is None or torch.equal(result, torch.full((3, 2), 2.0))
    forgetful = lambda x: function(x.clone())  # noqa: E731
    with pytest.raises(VerificationError, match=r"mutated\.0: FAIL"):
        verify([x], function, forgetful, EXACT)


class MutatesItsOutput(nn.Module):
    """Doubles a convolution's output through its view, or its view through the output."""

    def __init__(self, through: str, dim: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, dim, kernel_size=3, stride=2, bias=False)
        self.through = through

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        y = x.view(-1)
        if self.through == "base":
            x.mul_(2)
            return y
        y.mul_(2)
        return x


@pytest.mark.each_value_once
@pytest.mark.parametrize("through", ["base", "view"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_mutation_of_a_convolutions_output(through: str, backend: str) -> None:
    model = MutatesItsOutput(through)
    with torch.no_grad():
        verify([image()], model, torch.compile(model, backend=backend), INFER)


def test_dynamic_shapes_with_backward() -> None:
    backend = verifying_backend("aot_eager")
    compiled = torch.compile(lambda a, b: a.sin() + b.cos(), backend=backend, dynamic=True)
    for size in (4, 8, 16):
        a, b = torch.randn(2, size, requires_grad=True), torch.randn(2, size)
        config = VerifyConfig(value_checker=RoundingChecker(), backward=True)
        report = verify([a, b], lambda a, b: a.sin() + b.cos(), compiled, config)
        assert [row.key.slot for row in report.rows] == ["output.0", "grad_input.0"]
        compiled(a, b).sum().backward()
        assert a.grad is not None and torch.allclose(a.grad, a.detach().cos())
    assert len(backend.reports) == 1  # type: ignore[attr-defined]


class Classifier(nn.Module):
    """A convolution, a linear layer and the loss, whose backward wants a contiguous input."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, num_classes, 3, 1, padding="same")
        self.out = nn.Linear(width * num_classes, num_classes)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        b, c, t, f = x.size()
        x = self.out(x.reshape(b, t, c * f))
        logits = x.reshape(x.size(0), x.size(2), x.size(1))
        return nn.functional.cross_entropy(logits, targets)


def test_a_loss_through_the_compiled_model(on_inductor: Any) -> None:
    model = Classifier(width=13, num_classes=11)
    inputs = [torch.randn(4, 1, 24, 13), torch.randint(0, 10, (4, 24))]
    report = verify(inputs, model, on_inductor(model), TRAIN)
    assert len(report.rows) == 1 + len(list(model.parameters()))

    class Wrong(Classifier):
        def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return super().forward(x, targets.roll(1, 1))

    wrong = Wrong(width=13, num_classes=11)
    wrong.load_state_dict(model.state_dict())
    with pytest.raises(VerificationError, match=r"output\.0: FAIL"):
        verify(inputs, model, wrong, INFER)
