"""What a root module returns or raises is recorded by structure and value, and left as it is."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Generator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive
from dumpcmp.nouns.effects import Effect, TreeLeafKind, shown_tree, tree_of
from dumpcmp.nouns.record import Call
from dumpcmp.taps.recording import written_trees
from dumpcmp.taps.recording.written_trees import TreeWriter, written

MODES = ["eager", "fx", "aten"]


class Returning(nn.Module):
    """A layer whose result `make` turns into what is returned."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 4), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layer(x))


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Output:
    logits: Any
    count: int = 3


Pair = namedtuple("Pair", "left right")


class Holder:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.label = tensor, "kept"


class Slotted:
    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 5


def effects_of(path: Path, kind: Effect = Effect.RESULT) -> list[Call]:
    archive = Archive(path)
    places = [(model, step) for model in archive.models for step in archive.steps(model)]
    calls = [c for place in places for one in archive.effects_at(*place).values() for c in one]
    return [call for call in calls if call.op == kind.op]


def captured(path: Path, make: Callable[[Tensor], Any], **options: Any) -> Any:
    torch.manual_seed(0)
    model = Returning(make)
    with dumpcmp.capture(model, path, **options), torch.no_grad():
        return model(torch.ones(2, 4))


PLAIN: dict[str, tuple[Any, str]] = {
    "None": (None, "None"),
    "int": (3, "3"),
    "bool": (True, "True"),
    "float": (0.1, "0.1"),
    "nan": (float("nan"), "nan"),
    "complex": (complex(1, float("inf")), "(1+infj)"),
    "large int": (1 << 3000, "0x1" + "0" * 750),
    "string": ("h\u00e9\x1b\ud800", repr("h\u00e9\x1b\ud800")),
    "bytes": (b"\x00\xff", "bytes 00ff"),
    "list": ([1, [2]], "[1, [2]]"),
    "tuple": ((1,), "(1,)"),
    "dict": ({"a": 1}, "{'a': 1}"),
    "dict of numbers": ({1: "x"}, "{1: 'x'}"),
    "set": ({3, 1}, "{1, 3}"),
    "enum": (Colour.RED, f"{__name__}.Colour.RED"),
    "dataclass": (Output(None), "Output(logits=None, count=3)"),
    "named tuple": (Pair(1, 2), "Pair(left=1, right=2)"),
    "ordered": (OrderedDict(a=1), "OrderedDict(a=1)"),
    "deque": (deque([1]), "deque(0=1)"),
    "slots": (Slotted(), "Slotted(number=5)"),
    "dtype": (torch.bfloat16, '{"dtype": "bfloat16"}'),
    "size": (torch.Size([2, 3]), "Size(2, 3)"),
    "range": (range(3), '{"range": [0, 3, 1]}'),
    "class": (Output, f"{__name__}.Output"),
    "decimal": (Decimal("1.5"), "Decimal('1.5')"),
    "scalar": (np.float32(0.5), "float32 0.5"),
    "array": (np.arange(3), "numpy int64[3] [0, 1, 2]"),
    "words": (np.array(["a"]), "numpy str32[1]"),
}


@pytest.mark.parametrize(("value", "shown"), PLAIN.values(), ids=PLAIN)
def test_what_is_no_tensor_is_written_by_value(value: Any, shown: str) -> None:
    writer = TreeWriter()
    tree = json.loads(written(writer.tree(value)))["args"][0]
    call = Call("M", 0, Effect.RESULT.op, 0, 0, arguments=written(tree))
    assert shown_tree(call, 10_000) == shown
    assert not writer.found
    assert all(leaf.kind is not TreeLeafKind.OPEN for leaf in tree_of(call).leaves)


def test_what_is_too_large_is_told_by_a_digest() -> None:
    long = "x" * 10_000
    one, other = (TreeWriter().tree([text, [*range(5000), last]])
                  for text, last in ((long + "a", 1), (long + "b", 2)))  # fmt: skip
    assert one[0]["length"] == 10_001
    assert one[0]["str"] == other[0]["str"]
    assert one[0]["digest"] != other[0]["digest"]
    assert one[1][-1]["more"] == 5001 - written_trees.MOST_LISTED
    assert one[1][-1]["digest"] != other[1][-1]["digest"]


def test_there_is_an_end_to_what_is_written() -> None:
    shared: list[Any] = [1]
    for _ in range(40):
        shared = [shared, shared]
    assert "unrecorded" in TreeWriter().tree(shared)
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    assert "nested" in json.dumps(TreeWriter().tree(deep))
    circle: list[Any] = [1]
    circle.append({"again": circle})
    assert TreeWriter().tree(circle) == [1, {"dict": {"again": {"cycle": "output"}}}]


def test_what_has_no_value_is_named_without_its_address() -> None:
    one, other = TreeWriter().tree(object()), TreeWriter().tree(object())
    assert one == other
    assert one["opaque"] == "builtins.object"

    class Broken:
        __slots__ = ()

        def __repr__(self) -> str:
            raise KeyError("no")

    assert "Broken" in TreeWriter().tree(Broken())["opaque"]


@pytest.mark.parametrize("mode", MODES)
def test_tensors_are_told_by_the_slots_in_which_they_are(mode: str, tmp_path: Path) -> None:
    given = captured(tmp_path / "a", lambda y: {"y": y, "rest": (y, 3, Holder(y))}, mode=mode)
    (call,) = effects_of(tmp_path / "a")
    assert [leaf.path for leaf in tree_of(call).leaves] == [
        "result['y']", "result['rest'][0]", "result['rest'][1]", "result['rest'][2].tensor",
        "result['rest'][2].label",
    ]  # fmt: skip
    slots = [leaf.slot for leaf in tree_of(call).leaves if leaf.slot]
    assert slots == ["output.y", "output.rest.0", "output.rest.2.tensor"]
    archive = Archive(tmp_path / "a")
    own = archive[call.site.key("output.rest.2.tensor")]
    assert torch.equal(archive.tensor(own), given["y"])
    assert own.same_as is not None  # the bytes lie where the layer gave them
    assert not any(key.op.is_effect for key in archive)
    assert not any(site.op.is_effect for site in archive.calls)


@pytest.mark.parametrize("mode", MODES)
def test_a_lone_tensor_adds_no_value(mode: str, tmp_path: Path) -> None:
    captured(tmp_path / "a", lambda y: y, mode=mode)
    (call,) = effects_of(tmp_path / "a")
    assert shown_tree(call) == "tensor <root> output.0"
    assert not Archive(tmp_path / "a").effect_values_at(call.model, 0)


def test_what_is_not_selected_has_no_effects(tmp_path: Path) -> None:
    for name, options in {"layers": {"layers": "layer"}, "io": {"io": "input"}}.items():
        captured(tmp_path / name, lambda y: (y, 3), **options)
        assert not effects_of(tmp_path / name)


def test_large_arrays_are_values(tmp_path: Path) -> None:
    given = captured(tmp_path / "a", lambda y: y.numpy().repeat(20)[::-1])
    (call,) = effects_of(tmp_path / "a")
    held = Archive(tmp_path / "a").tensor(call.site.key("output.0"))
    assert np.array_equal(held.numpy(), given)


@pytest.mark.parametrize("mode", MODES)
def test_the_program_sees_the_exception_that_was_raised(mode: str, tmp_path: Path) -> None:
    own = ValueError("at 0x7f0011223344 and \x1b")

    class Raising(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x + 1
            raise own

    with dumpcmp.capture(None, tmp_path / "a", mode=mode), pytest.raises(ValueError) as caught:
        Raising()(torch.ones(3))
    assert caught.value is own
    (call,) = effects_of(tmp_path / "a", Effect.EXCEPTION)
    told = json.loads(call.arguments)["args"][0]
    assert told["exception"] == "builtins.ValueError"
    assert told["message"] == "at 0x... and \x1b"
    line = Raising.forward.__code__.co_firstlineno + 2
    assert told["place"].endswith(f"test_returned.py:{line}")
    assert call.source == told["place"]


def echoing(y: Tensor) -> Generator[Any, Any, str]:
    try:
        got = yield y
        while got != "end":
            got = yield got
    except KeyError as error:
        yield error.args[0]
    return "over"


@pytest.mark.parametrize("mode", ["eager", "aten"])  # dynamo runs a generator to its end
def test_a_generator_is_lazy_and_takes_what_it_is_sent(mode: str, tmp_path: Path) -> None:
    begun: list[int] = []

    def make(y: Tensor) -> Generator[Any, Any, Any]:
        def given() -> Generator[Any, Any, Any]:
            begun.append(1)
            return (yield from echoing(y))

        return given()

    sent = [1, 2]
    with dumpcmp.capture(model := Returning(make), tmp_path / "a", mode=mode), torch.no_grad():
        stream = model(torch.ones(2, 4))
        assert not begun
        assert stream.__name__ == "given"
        first = next(stream)
        assert stream.send(sent) is sent
        assert stream.throw(KeyError("key")) == "key"
        with pytest.raises(StopIteration) as stop:
            next(stream)
        assert stop.value.value == "over"
        closed = model(torch.ones(2, 4))
        next(closed)
        closed.close()
    calls = effects_of(tmp_path / "a", Effect.YIELDED)
    assert [shown_tree(call) for call in calls] == [
        "tensor output.0", "[1, 2]", "'key'", "returned(value='over')", "tensor output.0",
    ]  # fmt: skip
    held = Archive(tmp_path / "a").tensor(calls[0].site.key("output.0"))
    assert torch.equal(held, first)


def test_a_generator_that_the_program_holds_stays_itself(tmp_path: Path) -> None:
    kept: list[Any] = []

    def make(y: Tensor) -> Any:
        kept.append(echoing(y))
        return kept[0]

    assert captured(tmp_path / "a", make) is kept[0]
    (call,) = effects_of(tmp_path / "a")
    assert tree_of(call).leaves[0].kind is TreeLeafKind.OPEN


def test_nothing_that_is_returned_is_touched(tmp_path: Path) -> None:
    kept = [Holder(torch.ones(1)), [1, 2], object()]
    counts = [sys.getrefcount(each) for each in kept]
    assert captured(tmp_path / "a", lambda _: kept) is kept
    assert [sys.getrefcount(each) for each in kept] == counts
