"""explain() names the op where the target first goes wrong, whatever made it go wrong."""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from dumpcmp import explain
from dumpcmp.demo import RMSNorm, build
from dumpcmp.explaining import Explanation


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def swap_rows(module: Any) -> None:
    with torch.no_grad():
        module.weight[[3, 9]] = module.weight[[9, 3]]


def scale_output(module: Any) -> None:
    module.register_forward_hook(lambda _, args, output: output * 1.01)


FAULTS = {
    "layers.1.mlp.up_proj": swap_rows,
    "layers.0.attn_norm": scale_output,
    "norm": scale_output,
}


def faulty(place: str) -> tuple[nn.Module, nn.Module, Any]:
    model, inputs = build()
    wrong = copy.deepcopy(model)
    FAULTS[place](wrong.get_submodule(place))
    return model, wrong, inputs


@pytest.mark.parametrize("place", FAULTS)
def test_the_op_of_a_planted_fault_is_named(place: str) -> None:
    model, wrong, inputs = faulty(place)
    explanation = explain(inputs, model, wrong)
    assert explanation.op.partition("/")[0] == place
    assert place in repr(explanation).splitlines()[0]


def test_nothing_is_blamed_where_nothing_differs() -> None:
    model, inputs = build()
    explanation = explain(inputs, model, model, backward=True)
    assert explanation.op == ""
    assert explanation.first_divergence is None
    assert explanation.outcome.exit_code == 0
    assert repr(explanation).startswith("no op diverges")


Grads = tuple[torch.Tensor, ...] | torch.Tensor


def enlarged(_: nn.Module, given: Grads, taken: Grads) -> tuple[torch.Tensor]:
    return (given[0] * 1.5,)


def test_a_fault_in_the_backward_is_named() -> None:
    model, inputs = build()
    wrong = copy.deepcopy(model)
    place = wrong.get_submodule("layers.1.mlp.up_proj")
    place.register_full_backward_hook(enlarged)
    explanation = explain(inputs, model, wrong, backward=True)
    row = explanation.first_divergence
    assert row is not None
    assert "layers.1.mlp" in row.key.op
    assert "grad" in row.key.slot


def test_a_graph_of_another_backend_is_seen_at_its_boundary() -> None:
    def wrong_graph(graph: fx.GraphModule, examples: Sequence[Any]) -> Any:
        return lambda *args: tuple(value * 1.5 for value in graph(*args))

    model, inputs = build()
    explanation = explain(inputs, model, torch.compile(model, backend=wrong_graph))
    assert explanation.mode == "boundary"
    assert explanation.op


@pytest.mark.slow
def test_the_op_is_named_inside_what_inductor_compiled() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(up=nn.Linear(8, 8), norm=RMSNorm(8), down=nn.Linear(8, 8)))
    wrong = copy.deepcopy(model)
    scale_output(wrong.norm)
    explanation = explain([torch.randn(4, 8)], model, torch.compile(wrong))
    assert explanation.mode == "compiled"
    assert explanation.op.startswith("norm")


def test_the_dumps_are_kept_on_demand_and_nothing_else(tmp_path: Path) -> None:
    model, inputs = build()
    state = torch.get_rng_state()
    explanation = explain(inputs, model, model, path=tmp_path / "kept")
    assert isinstance(explanation, Explanation)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["golden", "target"]
    assert explain(inputs, model, model).path is None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
