"""Awkward models, in every mode: undisturbed, with the expected keys and the true values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import UNWRITTEN, Phase
from dumpcmp.nouns.selection import make_tap
from dumpcmp.nouns.value import value_of
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.taps.modes.aten import AtenCapture
from dumpcmp.taps.modes.graph import GraphCapture
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.recorder import Recorder
from tests.taps.byhand import catch
from tests.taps.memory import MemorySink
from tests.taps.models import CASES, Case

MODES = {"eager": ModuleCapture, "fx": GraphCapture, "aten": AtenCapture}


def built(case: Case) -> nn.Module:
    torch.manual_seed(7)
    return case.build()


def exercise(model: nn.Module, case: Case, backward: bool) -> list[Tensor]:
    """Run every call of `case`, with a backward pass; all that a user could see of it."""
    torch.manual_seed(3)
    seen: list[Tensor] = []
    for args, kwargs in case.calls:
        outputs = [t for _, t in slots_of("output", model(*args, **kwargs))]
        seen += outputs
        leaves = [t for t in outputs if t.requires_grad]
        if backward and leaves:
            loss = sum((t * t).sum() for t in leaves)
            assert isinstance(loss, Tensor)
            loss.backward()  # type: ignore[no-untyped-call]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    inputs = [a for args, kwargs in case.calls for a in (*args, *kwargs.values())]
    grads += [a.grad.clone() for a in inputs if getattr(a, "grad", None) is not None]
    for value in inputs:
        value.grad = None
    return [*(t.detach().clone() for t in seen), *grads, *model.buffers(), torch.get_rng_state()]


def captured(case: Case, mode: str, model: nn.Module | None = None, **selection: Any) -> MemorySink:
    sink = MemorySink()
    recorder = Recorder(sink, make_tap(**selection))
    model = model or built(case)
    with MODES[mode](recorder, [model]).running():
        exercise(model, case, backward=bool(selection.get("backward")))
    return sink


def functions(sink: MemorySink) -> set[Key]:
    return {key for key in sink.records if "/" in key.op}


def same_bits(a: Tensor, b: Tensor) -> bool:
    left, right = value_of(a).bits, value_of(b).bits
    return left.shape == right.shape and left.tobytes() == right.tobytes()


cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
modes = pytest.mark.parametrize("mode", MODES)


@pytest.mark.each_value_once
@cases
@modes
def test_a_capture_changes_nothing(case: Case, mode: str) -> None:
    plain = exercise(built(case), case, backward=True)
    model = built(case)
    recorder = Recorder(MemorySink(), make_tap(backward=True, weights=True))
    with MODES[mode](recorder, [model]).running():
        observed = exercise(model, case, backward=True)
    again = exercise(built(case), case, backward=True)
    assert len(plain) == len(observed) == len(again)
    assert all(map(same_bits, plain, observed))
    assert all(map(same_bits, plain, again))


@cases
def test_the_ops_of_a_step_are_those_expected(case: Case) -> None:
    sink = captured(case, "eager")
    for step in range(len(case.calls)):
        ops = [c.op + (f"#{c.call}" if c.call else "") for c in sink.calls if c.step == step]
        assert ops == case.ops


@cases
def test_module_values_are_those_of_a_capture_by_hand(case: Case) -> None:
    model = built(case)
    caught, handles = catch(model)
    torch.manual_seed(3)
    args, kwargs = case.calls[0]
    model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    sink = captured(case, "eager", built(case))
    recorded = {k: v for k, v in sink.values.items() if "/" not in k.op and k.step == 0}
    assert {(k.op, k.call, k.slot) for k in recorded} == set(caught)
    for key, bits in recorded.items():
        assert np.array_equal(bits, value_of(caught[key.op, key.call, key.slot]).bits), str(key)


@cases
def test_eager_and_fx_name_functions_alike(case: Case) -> None:
    eager, fx = captured(case, "eager", backward=True), captured(case, "fx", backward=True)
    differ = functions(eager) ^ functions(fx)
    assert {key.op for key in differ} <= case.fx_differs
    for key in functions(eager) & functions(fx):
        assert np.array_equal(eager.values[key], fx.values[key], equal_nan=True), str(key)


@cases
def test_aten_inputs_and_outputs_hang_together(case: Case) -> None:
    sink = captured(case, "aten", backward=True)
    assert any("/aten." in call.op for call in sink.calls)
    written = [key for key in sink.records if sink.records[key].problem != UNWRITTEN]
    assert written and all(key in sink.values for key in written)


class Tripled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * x
        y.mul_(3.0)
        return y + 1


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_the_gradient_of_what_an_op_in_place_gave_is_not_that_of_what_it_took(mode: str) -> None:
    model, sink = Tripled(), MemorySink()
    with MODES[mode](Recorder(sink, make_tap(backward=True)), [model]).running():
        model(torch.ones(4)).sum().backward()
    prefix = "aten." * (mode == "aten")
    grads = {str(k.slot): v for k, v in sink.values.items()
             if k.op.function == f"{prefix}mul" and k.call == 1 and k.slot.is_gradient}  # fmt: skip
    assert np.array_equal(grads["grad_input.0"], value_of(torch.full((4,), 3.0)).bits)
    given = grads.get("grad_output.0", value_of(torch.ones(4)).bits)
    assert np.array_equal(given, value_of(torch.ones(4)).bits)


def test_backward_ops_belong_to_the_scope_of_their_forward() -> None:
    case = next(case for case in CASES if case.name == "list in a loop")
    sink = captured(case, "aten", backward=True)
    backward = {call.op for call in sink.calls if call.phase is Phase.BACKWARD}
    assert all("/backward.aten." in op for op in backward)
    for layer in range(3):
        assert {f"layers.{layer}/backward.aten.mm", f"layers.{layer}/backward.aten.sum"} <= backward
    assert "<root>/backward.aten.threshold_backward" in backward
    assert not any("mm" in op for op in backward if op.startswith("<root>"))


@pytest.mark.parametrize("name", ["checkpointing", "reentrant checkpointing"])
def test_recomputation_is_marked_and_makes_no_new_calls(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    sink = captured(case, "eager", backward=True)
    again = [call for call in sink.calls if call.phase is Phase.RECOMPUTE]
    assert {call.op for call in again} >= {"blocks.0@recompute", "blocks.0.0@recompute/linear"}
    assert not any("@recompute" in key.op for key in sink.records)
    forward = [call.op for call in sink.calls if call.phase is Phase.FORWARD]
    assert forward == case.ops
    grads = {k.op for k in sink.records if k.slot == "grad_output.0"}
    assert {"blocks.0.0/linear", "blocks.1.1/tanh", "<root>/mul"} <= grads


@pytest.mark.each_value_once
@cases
@pytest.mark.parametrize("mode", ["eager", "fx"])
def test_gradients_are_those_of_autograd(case: Case, mode: str) -> None:
    """The gradient recorded for a module's output is what autograd.grad gives for it."""
    model = built(case)
    sink = captured(case, mode, model, backward=True)
    for name, parameter in model.named_parameters():
        path, _, word = name.rpartition(".")
        last = max(k.step for k in sink.records if k.slot == f"grad.{word}")
        key = Key(type(model).__name__, last, path or "<root>", 0, f"grad.{word}")
        assert parameter.grad is not None
        assert np.array_equal(sink.values[key], parameter.grad.numpy()), str(key)


class Scaled(nn.Module):
    """Multiplies by a number that changes from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale /= 2
        return x * self.scale + self.scale


@modes
def test_a_number_that_dynamo_hands_over_as_a_tensor_is_no_call(mode: str) -> None:
    sink, model = MemorySink(), Scaled()
    with MODES[mode](Recorder(sink, make_tap()), [model]).running():
        for _ in range(4):
            model(torch.ones(2, 3))
    calls = {(call.step, call.op.replace("aten.", "")) for call in sink.calls if "/" in call.op}
    assert calls == {(step, f"<root>/{op}") for step in range(4) for op in ("mul", "add")}
    assert model.scale == 1 / 16
