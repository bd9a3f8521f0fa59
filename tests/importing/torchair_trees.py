"""Trees as torchair writes them: of FX mode, of GE, and what msit's converter leaves of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.importing.written import numbers

Array = NDArray[Any]
CODES = {"float32": 1, "float16": 2, "int8": 3, "int32": 7, "int64": 8, "bool": 11}
STAMP = 20_240_125_031_118_787_000  # of FX: twenty digits


@dataclass(frozen=True)
class Task:
    """One node of a small graph: its names in FX and in GE, what it takes and what it gives."""

    node: str
    target: str
    kind: str
    name: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


def program(token: int = 0, fault: str = "", scale: float = 1.01) -> list[Task]:
    """Three ops on seeded numbers; what the op `fault` gives is wrong by the factor `scale`."""
    x, w = numbers((4, 8), 10 + token), numbers((8, 8), 1)

    def given(name: str, value: Array) -> Array:
        return (value * scale).astype(np.float32) if name == fault else value.astype(np.float32)

    mm = given("mm", x @ w)
    add = given("add", mm + x)
    relu = given("relu", np.maximum(add, 0))
    return [
        Task("mm", "aten.mm.default", "MatMulV2", "MatMul", (x, w), (mm,)),
        Task("add_1", "aten.add.Tensor", "Add", "Add_2", (mm, x), (add,)),
        Task("relu", "aten.relu.default", "Relu", "Relu_4", (add,), (relu,)),
    ]


def write_fx(
    root: Path, tokens: Mapping[str, Sequence[Task]], *, days: int = 0, suffix: str = ""
) -> Path:
    """A tree of FX mode: the tasks of each directory below `root`, which names rank and token."""
    clock = STAMP + days * 1_000_000_000_000
    for directory, tasks in tokens.items():
        place = root / directory
        place.mkdir(parents=True)
        for task in tasks:
            clock += 1000
            for io, values in (("INPUT", task.inputs), ("OUTPUT", task.outputs)):
                for number, value in enumerate(values):
                    name = f"{task.node}-{task.target}.{io}.{number}.{clock}{suffix}.npy"
                    np.save(place / name, _extremes(value) if suffix else value)
    return root


def write_ge(
    root: Path, tokens: Mapping[str, Sequence[Task]], *, suffix: str = "", graph: bool = True
) -> Path:
    """A tree of GE with the text of its graph."""
    clock = 1_706_596_911_878_000
    for directory, tasks in tokens.items():
        place = root / directory
        place.mkdir(parents=True)
        for number, task in enumerate(tasks):
            clock += 100
            path = place / f"{task.kind}.{task.name}.{number}.6.{clock}"
            if suffix:
                inputs, outputs = ([*map(_extremes, each)] for each in (task.inputs, task.outputs))
                np.savez(f"{path}{suffix}.npz", inputs=inputs, outputs=outputs)
            else:
                path.write_bytes(ge_bytes(task.inputs, task.outputs))
    if graph:
        tasks = next(iter(tokens.values()))
        text = "".join(map(described, tasks))
        (root / "dynamo_original_graph_1_rank_0_pid_7_ts_1706.txt").write_text(text)
    return root


def _extremes(value: Array) -> Array:
    return np.array([value.min(), value.max()])


def described(task: Task) -> str:
    """A task in the text of a graph, with the FX node that it came from."""
    tensor = f"{task.node}-{task.target}.OUTPUT.0"
    return (
        f'op {{\n  name: "{task.name}"\n  type: "{task.kind}"\n  input: "x:0"\n  output_desc {{\n'
        f'    name: "y"\n    attr {{\n      key: "_fx_tensor_name"\n      value {{\n'
        f'        s: "{tensor}"\n      }}\n    }}\n  }}\n}}\n'
    )


def ge_bytes(
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    *,
    code: int = 0,
    format: int = 2,
    original: Sequence[int] = (),
    of_op: str = "",
) -> bytes:
    """A task's file; `code` is that of a type that numpy has not."""
    header = field(1, b"1.0") + field(2, 1706)
    for kind, values in ((4, inputs), (3, outputs)):
        for value in values:
            shape = b"".join(field(1, size) for size in value.shape)
            whole = b"".join(field(1, size) for size in original)
            told = field(1, code or CODES[value.dtype.name]) + field(2, format) + field(3, shape)
            if kind == 3:
                told += field(4, field(1, of_op.encode())) if of_op else b""
                told += field(6, value.nbytes) + (field(7, whole) if original else b"")
            else:
                told += field(5, value.nbytes) + (field(6, whole) if original else b"")
            header += field(kind, told)
    elements = b"".join(np.ascontiguousarray(value).tobytes() for value in (*inputs, *outputs))
    return len(header).to_bytes(8, "little") + header + elements


def field(number: int, content: int | bytes) -> bytes:
    """One field of a protobuf."""
    if isinstance(content, int):
        return bytes(_varint(number << 3)) + bytes(_varint(content))
    return bytes(_varint(number << 3 | 2)) + bytes(_varint(len(content))) + content


def _varint(number: int) -> Iterator[int]:
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number
