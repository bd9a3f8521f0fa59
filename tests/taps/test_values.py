"""Which values are links, which are stored again, and what is said of those that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp import set_rank
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.selection import make_tap
from dumpcmp.taps.distributed import ranks
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.calls import arguments_of
from dumpcmp.taps.recording.functions import moments_written
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.sources import HostSource
from tests.taps.memory import MemorySink


class Program(nn.Module):
    """A function as a model."""

    def __init__(self, body: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> object:
        return self.body(x)


def seen(body: Callable[[Tensor], object], x: Tensor, **selection: object) -> MemorySink:
    sink = MemorySink()
    with ModuleCapture(Recorder(sink, make_tap(**selection))).running():  # type: ignore[arg-type]
        Program(body)(x)
    return sink


def record(sink: MemorySink, op: str, slot: str, call: int = 0) -> Record:
    return sink.records[Key("Program", 0, op, call, slot)]


def value(sink: MemorySink, op: str, slot: str, call: int = 0) -> np.ndarray:
    return sink.values[Key("Program", 0, op, call, slot)]


def through_data(x: Tensor) -> None:
    x.data.add_(1)


def through_numpy(x: Tensor) -> None:
    x.detach().numpy()[:] += 1


def through_a_view(x: Tensor) -> None:
    x.view(-1)[0] = 9


def through_no_grad(x: Tensor) -> None:
    with torch.no_grad():
        x.add_(1)


@pytest.mark.parametrize("write", [through_data, through_numpy, through_a_view, through_no_grad])
def test_a_hidden_write_is_never_linked_over(write: Callable[[Tensor], None]) -> None:
    def body(x: Tensor) -> Tensor:
        y = x.sin()
        write(y)
        return y.cos()

    sink = seen(body, torch.arange(6.0).view(2, 3))
    changed = value(sink, "<root>/cos", "input.0")
    assert not np.array_equal(changed, value(sink, "<root>/sin", "output.0"))
    cosine = torch.from_numpy(changed.copy()).cos()
    assert np.array_equal(cosine, value(sink, "<root>/cos", "output.0"))


def test_repeated_values_are_links_to_the_first() -> None:
    sink = seen(lambda x: (x.sin() * x, x), torch.ones(2))
    root = Key("Program", 0, "<root>", 0, "input.0")
    for op, slot in (("<root>/sin", "input.0"), ("<root>/mul", "input.1"), ("<root>", "output.1")):
        assert record(sink, op, slot).same_as == root
    assert record(sink, "<root>/mul", "input.0").same_as is not None
    assert record(sink, "<root>", "output.0").same_as is not None


def test_another_geometry_of_the_same_storage_is_another_value() -> None:
    sink = seen(lambda x: x.view(3, 2).T @ x.view(3, 2), torch.arange(6.0))
    assert record(sink, "<root>/T", "output.0").same_as is None
    assert record(sink, "<root>/T", "output.0").stride == (1, 2)
    assert np.array_equal(value(sink, "<root>/matmul", "input.0"), [[0, 2, 4], [1, 3, 5]])


def test_inputs_are_as_they_were_before_the_op() -> None:
    def body(x: Tensor) -> Tensor:
        y = x.clone()
        y += 1
        y[0] = 5.0
        return F.relu(y, inplace=True)

    sink = seen(body, torch.tensor([-3.0, -2.0]))
    assert value(sink, "<root>/add", "input.0").tolist() == [-3, -2]
    assert value(sink, "<root>/add", "output.0").tolist() == [-2, -1]
    assert value(sink, "<root>/setitem", "input.0").tolist() == [-2, -1]
    assert value(sink, "<root>/setitem", "output.0").tolist() == [5, -1]
    assert value(sink, "<root>/relu", "input.0").tolist() == [5, -1]
    assert value(sink, "<root>/relu", "output.0").tolist() == [5, 0]


UNSTORABLE = [
    (lambda x: x.to_sparse(), "sparse_coo tensors have no dense bytes"),
    (lambda x: x.to("meta"), "meta tensors have no elements"),
    (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantised"),
    (lambda x: torch.nested.nested_tensor([x, x]), "nested"),
]


@pytest.mark.parametrize("make, problem", UNSTORABLE, ids=["sparse", "meta", "quantised", "nested"])
def test_what_cannot_be_stored_says_why(make: Callable[[Tensor], Tensor], problem: str) -> None:
    sink = seen(make, torch.ones(2, 2))
    assert problem in record(sink, "<root>", "output.0").problem


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.view_as_complex(x.view(2, 2)).conj(),
        lambda x: x.view(2, 2).T,
        lambda x: x.bfloat16(),
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: x > 1,
        lambda x: x[:0],
        lambda x: x.sum(),
        lambda x: x.view(2, 2).expand(3, 2, 2),
        lambda x: x.as_strided((2, 2), (1, 1), 1),
    ],
    ids=["conj", "transposed", "bf16", "fp8", "bool", "empty", "0-d", "expanded", "strided"],
)
def test_every_kind_of_tensor_is_stored_by_value(make: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(4.0)
    sink = seen(make, x)
    made = make(x).resolve_conj().contiguous()
    stored = value(sink, "<root>", "output.0")
    assert stored.shape == tuple(made.shape)
    assert stored.tobytes() == bytes(made.reshape(-1).view(torch.uint8).tolist())


def arguments(sink: MemorySink, op: str) -> object:
    (call,) = [call for call in sink.calls if call.op == op]
    return json.loads(call.arguments)


ARGUMENTS = [
    (lambda x: F.softmax(x, dim=-1), "softmax", "torch.nn.functional.softmax",
     {"args": [{"slot": "input.0"}],
      "kwargs": {"dim": -1, "_stacklevel": 3, "dtype": None}}),
    (lambda x: torch.cat([x, x], 1), "cat", "torch.cat",
     {"args": [[{"slot": "input.0.0"}, {"slot": "input.0.1"}], 1]}),
    (lambda x: x[..., 1:, None], "getitem", "torch.Tensor.__getitem__",
     {"args": [{"slot": "input.0"},
               {"tuple": [{"ellipsis": True}, {"slice": [1, None, None]}, None]}]}),
    (lambda x: x.to(torch.float64), "to", "torch.Tensor.to",
     {"args": [{"slot": "input.0"}, {"dtype": "float64"}]}),
    (lambda x: x.clamp(min=float("-inf")), "clamp", "torch.Tensor.clamp",
     {"args": [{"slot": "input.0"}], "kwargs": {"min": {"float": "-inf"}}}),
    (lambda x: torch.zeros(x.shape, device="cpu"), "zeros", "torch.zeros",
     {"args": [{"size": [2, 3]}], "kwargs": {"device": "cpu"}}),
    (lambda x: 1 - x, "sub", "torch.Tensor.__rsub__", {"args": [1, {"slot": "input.1"}]}),
]  # fmt: skip


@pytest.mark.parametrize("body, name, target, tree", ARGUMENTS, ids=[row[1] for row in ARGUMENTS])
def test_a_call_says_how_to_run_it_again(
    body: Callable[[Tensor], Tensor], name: str, target: str, tree: object
) -> None:
    sink = seen(body, torch.ones(2, 3))
    (call,) = [call for call in sink.calls if call.op == f"<root>/{name}"]
    assert call.target == target
    assert json.loads(call.arguments) == tree
    assert call.source.startswith("tests/taps/test_values.py:")


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: F.dropout(x, 0.5), torch.bernoulli])
def test_random_ops_can_be_drawn_again(draw: Callable[[Tensor], Tensor]) -> None:
    x = torch.full((64,), 0.5)
    sink = seen(draw, x)
    (call,) = [call for call in sink.calls if "/" in call.op]
    torch.set_rng_state(torch.from_numpy(value(sink, call.op, "rng.cpu").copy()))
    assert np.array_equal(draw(x).numpy(), value(sink, call.op, "output.0"))


def test_views_record_where_they_begin() -> None:
    sink = seen(lambda x: x[1:].as_strided((2,), (1,), 1), torch.arange(4.0))
    assert record(sink, "<root>/as_strided", "input.0").storage_offset == 1
    assert value(sink, "<root>/as_strided", "output.0").tolist() == [1, 2]


def test_slots_of_keywords_that_have_a_position() -> None:
    x = torch.ones(1)
    by_keyword, _ = arguments_of((x,), {"weight": x, "other": x}, {"input": 0, "weight": 1})
    assert [slot for slot, _ in by_keyword] == ["input.0", "input.1", "input.other"]


def test_objects_that_json_cannot_hold_are_named() -> None:
    _, text = arguments_of((object(), {"a": 1}, 1 + 2j), {}, {})
    assert json.loads(text) == {
        "args": [{"object": "builtins.object"}, {"dict": {"a": 1}}, {"complex": [1.0, 2.0]}]
    }


def test_the_orders_of_a_step_are_the_order_of_execution() -> None:
    sink = seen(lambda x: x.sin().cos(), torch.ones(1))
    calls: list[Call] = sink.calls
    assert [call.order for call in calls] == list(range(len(calls)))
    assert [call.op for call in calls] == ["<root>", "<root>/sin", "<root>/cos"]


def test_functions_have_the_gradients_of_the_parameters_that_they_took() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    sink = MemorySink()
    with ModuleCapture(Recorder(sink, make_tap(backward=True))).running():
        model(torch.randn(2, 3)).sum().backward()
    weight = Key("Sequential", 0, "0", 0, "grad.weight")
    took = [(f"{i}/linear", "grad_input.1") for i in (0, 1)]
    assert all(
        sink.records[Key("Sequential", 0, op, 0, slot)].same_as == weight for op, slot in took
    )
    bias = Key("Sequential", 0, "1/linear", 0, "grad_input.2")
    assert sink.records[bias].same_as == Key("Sequential", 0, "1", 0, "grad.bias")


class DeviceLikeSink(MemorySink):
    """Takes no digest of what it is given, as nobody does on a GPU."""

    def put(self, record: Record, source: object) -> None:
        self.records[record.key] = record
        if record.same_as is not None:
            self.values[record.key] = self.values[record.same_as]
        elif isinstance(source, HostSource):
            self.values[record.key] = source.tensor.detach().numpy().copy()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one rank, which is told that it is one of two: alone nothing is moved."""
    monkeypatch.setattr(ranks, "_stated", [])
    set_rank(0, 2)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_a_collective_wrote_is_not_what_lay_there_before() -> None:
    """Torch does not count such writes, and without digests versions are all there is."""

    def body(x: Tensor) -> Tensor:
        room = torch.zeros_like(x)
        before = room + 0
        with torch.no_grad():
            dist.all_gather_into_tensor(room, x)
        return before + room.view(2, 2).view(4)

    sink = DeviceLikeSink()
    with ModuleCapture(Recorder(sink, make_tap())).running():
        Program(body)(torch.arange(1.0, 5.0))
    assert record(sink, "<root>/all_gather", "output.0").same_as is None
    assert value(sink, "<root>/all_gather", "output.0").tolist() == [1, 2, 3, 4]
    assert value(sink, "<root>/add", "input.0").tolist() == [0, 0, 0, 0]
    assert value(sink, "<root>/add", "input.1", 1).tolist() == [1, 2, 3, 4]


@pytest.mark.usefixtures("alone")
def test_a_collective_that_never_says_that_it_ended_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist.Work, "is_completed", lambda work: False)

    def body(x: Tensor) -> Tensor:
        dist.all_reduce(x.clone(), async_op=True)
        return x

    taking = ModuleCapture(Recorder(DeviceLikeSink(), make_tap()))
    with taking.running():
        Program(body)(torch.ones(4))
        said = taking.remarks()
    assert said == [
        "1 collective had not finished when the capture ended, and what it gave was not recorded: "
        "<root>/all_reduce, step 0"
    ]


class Writer(nn.Module):
    """Writes to its values in every way that torch counts, and keeps what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.kept.append(y.add_(1).clone())
        self.kept.append(y.relu_().clone())
        self.kept.append(y.clamp_(max=2).clone())
        return y


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_what_was_written_in_place_is_new_where_bytes_are_not_read(
    mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def by_version(seen: Any, _tensor: Tensor, version: int | None) -> bool:  # as on a GPU
        return seen[1] == version and version is not None

    monkeypatch.setattr("dumpcmp.taps.recording.values._is_still", by_version)
    model, x = Writer(), torch.randn(4, 8)
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "d", mode=mode):
        model(x)
    archive, prefix = dumpcmp.Archive(tmp_path / "d"), "aten." if mode == "aten" else ""
    for op, kept in zip(("add", "relu", "clamp"), model.kept, strict=True):
        found = archive[Key("Writer", 0, f"<root>/{prefix}{op}", 0, "output.0")]
        assert np.array_equal(archive.load(found).numbers(), kept.numpy()), op


@pytest.mark.parametrize("is_training, num", [(True, 4), (False, 0)])
def test_batch_norms_write_to_their_moments_where_they_train(is_training: bool, num: int) -> None:
    x, *others = torch.empty(4, 3, device="meta"), *torch.empty(4, 3, device="meta")
    args = (x, *others, is_training, 0.1, 1e-5)
    for target in ("torch.nn.functional.batch_norm", "aten.native_batch_norm.default"):
        assert len(moments_written(target, args, {})) == num
    assert not moments_written("torch.nn.functional.layer_norm", args, {})


class InPlace(nn.Module):
    """Writes to what it computed, and to a view of it; its weight was written to before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        y += x
        y.view(-1).mul_(2)
        return torch.relu_(y) + 1


@pytest.mark.parametrize("grad", [True, False])
def test_what_the_dispatcher_shows_hangs_together_where_memory_is_written_to(
    grad: bool, tmp_path: Path
) -> None:
    model, x = InPlace(), torch.randn(3, 8)
    with torch.no_grad():
        model.linear.weight.mul_(2)
    with torch.set_grad_enabled(grad), dumpcmp.capture(model, tmp_path / "d", mode="aten"):
        model(x)
    archive = dumpcmp.Archive(tmp_path / "d")

    def source(op: str, slot: str) -> str:
        found = archive[Key("InPlace", 0, op, 0, slot)].same_as
        return "" if found is None else f"{found.op} {found.slot}"

    assert source("linear/aten.addmm", "input.2") == "linear/aten.t output.0"
    assert source("<root>/aten.view", "input.0") == "<root>/aten.add output.0"
    assert source("<root>/aten.mul", "input.0") == "<root>/aten.view output.0"
    assert source("<root>/aten.relu", "input.0") == ""  # its memory is of another shape than mul's
    after = Key("InPlace", 0, "<root>/aten.add", 1, "input.0")
    assert str(archive[after].same_as) == "InPlace[0] <root>/aten.relu#0 output.0"
    doubled = archive.tensor("<root>/aten.mul", step=0, call=0, slot="output.0")
    assert torch.equal(
        archive.tensor("<root>/aten.relu", step=0, slot="input.0"), doubled.view(3, 8)
    )


@pytest.mark.parametrize("level", ["functions", "modules"])
def test_parameters_that_were_computed_have_their_gradients(level: str, tmp_path: Path) -> None:
    """As in `functional_call` with a step of an optimizer inside: autograd accumulates nothing."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(2, 3)
    told: list[dict[str, Tensor]] = []
    with dumpcmp.capture(model, tmp_path / "d", backward=True, level=level):
        for _ in range(3):
            made = {name: weight * 0.5 for name, weight in model.named_parameters()}
            for tensor in made.values():
                tensor.retain_grad()
            torch.func.functional_call(model, made, (x,)).sum().backward()
            told.append({name: grad for name, t in made.items() if (grad := t.grad) is not None})
    archive = dumpcmp.Archive(tmp_path / "d")
    for step, grads in enumerate(told):
        for name, grad in grads.items():
            key = Key("Sequential", step, "0", 0, name.replace("0.", "grad."))
            assert np.array_equal(archive.load(archive[key]).bits, grad.numpy()), key
