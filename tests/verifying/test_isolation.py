"""What verify runs shares nothing with what the user gave, and looks exactly like it."""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dumpcmp import verify
from dumpcmp.pytorch.trees import leaves, tensors_in
from dumpcmp.verifying.isolate import Inputs, in_double, isolated, put_back

BASE = torch.arange(24.0)
TENSORS = {
    "contiguous": (torch.randn(2, 3),),
    "transposed": (torch.randn(2, 3).t(),),
    "strided": (BASE[::2],),
    "expanded": (torch.randn(3, 1).expand(3, 4),),
    "offset": (BASE[5:9],),
    "channels last": (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    "two views": (BASE[:8], BASE[4:12].view(2, 4)),
    "the same twice": (BASE, BASE),
    "leaf with grad": (torch.randn(3, requires_grad=True),),
    "computed with grad": (torch.randn(3, requires_grad=True) * 2,),
    "computed views": tuple((torch.randn(6, requires_grad=True) * 2).split(3)),  # type: ignore[no-untyped-call]
    "integers": (torch.arange(6), torch.tensor(True)),
    "bfloat16": (torch.randn(4).bfloat16(),),
    "nested": ({"a": [BASE[1:3], (BASE[2:4],)]},),
    "empty": (torch.empty(0, 3),),
}


@pytest.mark.parametrize("case", TENSORS)
def test_a_copy_looks_like_its_original_and_shares_no_memory(case: str) -> None:
    inputs = Inputs(TENSORS[case])
    twin = isolated(lambda *_: None, inputs).inputs
    for (path, tensor), (twin_path, copy) in zip(
        inputs.tensors().items(), twin.tensors().items(), strict=True
    ):
        assert path == twin_path
        assert torch.equal(tensor, copy)
        assert (tensor.dtype, tensor.stride(), tensor.storage_offset(), tensor.requires_grad) == (
            copy.dtype,
            copy.stride(),
            copy.storage_offset(),
            copy.requires_grad,
        )
        assert copy.is_leaf
        if tensor.numel():
            assert tensor.untyped_storage().data_ptr() != copy.untyped_storage().data_ptr()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("case", ["two views", "the same twice", "computed views", "nested"])
def test_aliases_stay_aliases(case: str, wide: bool) -> None:
    subject = isolated(lambda *_: None, Inputs(TENSORS[case]))
    tensors = (in_double(subject.inputs) if wide else subject.inputs).tensors().values()
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert all((tensor.dtype == torch.float64) == wide for tensor in tensors)


def test_an_input_that_is_a_parameter_is_the_copys_parameter() -> None:
    model = nn.Linear(2, 2)
    subject = isolated(model, Inputs((model.weight,)))
    copied = subject.call
    assert isinstance(copied, nn.Linear)
    assert subject.inputs.args[0] is copied.weight
    assert copied.weight is not model.weight


class Counting(nn.Module):
    """Changes everything that it can reach: buffer, parameter, attribute, input, RNG."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.names: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.names.append("called")
        with torch.no_grad():
            self.linear.weight.mul_(1.5)
        random.random(), np.random.rand(), torch.rand(1)
        y: torch.Tensor = self.linear(x)
        x.add_(1)
        return y


def bound(model: nn.Module) -> Callable[..., Any]:
    return model.forward


def closing_over(model: nn.Module) -> Callable[..., Any]:
    def call(x: torch.Tensor) -> Any:
        return model(x)

    return call


def compiled(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, backend="eager")


def compiled_function(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(closing_over(model), backend="eager")


def part(model: nn.Module) -> Callable[..., Any]:
    return functools.partial(model)


def uncopyable(model: nn.Module) -> Callable[..., Any]:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot copy a lock")

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

    return Locked()


WRAPPINGS = [bound, closing_over, compiled, compiled_function, part, uncopyable]


def numpys_state() -> list[int]:
    words: list[int] = np.random.get_state(legacy=False)["state"]["key"].tolist()
    return words


@pytest.mark.parametrize("wrap", WRAPPINGS)
def test_verify_leaves_no_trace(wrap: Callable[[nn.Module], Callable[..., Any]]) -> None:
    model, x = Counting(), torch.randn(2, 3)
    model.linear.weight.grad = torch.full((3, 3), 7.0)
    weight, given, seed = model.linear.weight.detach().clone(), x.clone(), torch.get_rng_state()
    states = random.getstate(), numpys_state()
    report = verify([x], wrap(model), wrap(model))
    assert {row.key.slot.partition(".")[0] for row in report.rows} >= {"output", "mutated"}
    assert torch.equal(x, given)
    assert torch.equal(model.linear.weight, weight)
    assert torch.equal(model.linear.weight.grad, torch.full((3, 3), 7.0))
    assert model.calls == 0
    assert torch.equal(torch.get_rng_state(), seed)
    assert (random.getstate(), numpys_state()) == states


@pytest.mark.parametrize("wrap", [bound, closing_over, uncopyable])
def test_each_side_starts_from_the_same_state(wrap: Callable[..., Any]) -> None:
    """Golden changes the weight; if that reached the target, the outputs would differ."""
    model, x = Counting(), torch.randn(2, 3)
    report = verify([x], wrap(model), wrap(model))
    assert report.passed
    (output,) = (row for row in report.rows if row.key.slot == "output.0")
    assert output.metrics is not None and output.metrics.equal


def test_a_module_that_cannot_be_copied_is_remarked_on() -> None:
    locked = uncopyable(Counting())
    report = verify([torch.randn(2, 3)], locked, locked)
    assert "TypeError: cannot copy a lock" in report.remarks[0]


def test_put_back_empties_grads_for_the_run_only() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    subject = isolated(closing_over(model), Inputs((torch.ones(1, 2),)))
    with put_back(subject):
        assert model.weight.grad is None
        model.weight.grad = torch.zeros(2, 2)
    assert torch.equal(model.weight.grad, torch.ones(2, 2))


class Cache:
    """Stands for a key-value cache: an object with attributes, which holds itself too."""

    def __init__(self) -> None:
        self.layers = [torch.zeros(1), torch.ones(1)]
        self.owner = self


def test_leaves_have_dotted_paths() -> None:
    tree = {"a": [torch.zeros(1), (1, None)], "cache": Cache()}
    assert [path for path, _ in leaves(tree, "output")] == [
        "output.a.0",
        "output.a.1.0",
        "output.a.1.1",
        "output.cache.layers.0",
        "output.cache.layers.1",
    ]
    assert list(tensors_in(torch.zeros(1))) == [""]
