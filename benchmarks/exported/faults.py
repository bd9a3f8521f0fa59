"""Faults planted into an exported graph, or into what a node of it gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

import dumpcmp
from benchmarks.exported.custom_ops import NUM_FAULTS, replaceable, use_custom_op
from dumpcmp.dumping.model_inputs import inputs_from

WORDS = ("attribute", "initialiser", "inputs", "axis", "cast", "kernel", "library")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_FACTORS = {"epsilon": 1000.0, "alpha": 1.25, "beta": 1.25}
_COMPUTING = ("Add", "Mul", "MatMul", "Gemm", "Conv", "Sigmoid", "Softmax")


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A fault: what it is, at which node, and which initialiser it changed, if it changed one."""

    word: str
    node: str
    said: str
    initialiser: str = ""


Change = Callable[[], PlantedFault]


def changes(model: Any, word: str) -> Iterator[Change]:
    """All faults of a kind that `model` can take; calling one plants it."""
    yield from _MAKERS[word](model.graph)


def _floats(graph: Any) -> dict[str, Any]:
    return {t.name: t for t in graph.initializer if t.data_type in _FLOATS}


def _attributes(graph: Any) -> Iterator[Change]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _FACTORS and attribute.f:
                yield partial(_scaled, node, attribute)
            elif node.op_type == "Gelu" and attribute.name == "approximate":
                yield partial(
                    _word, node, attribute, b"tanh" if attribute.s == b"none" else b"none"
                )
            elif attribute.name == "pads" and len(set(attribute.ints)) == 1 and attribute.ints[0]:
                yield partial(_shifted, node, attribute)
            elif node.op_type == "Transpose" and len(attribute.ints) == 4:
                yield partial(_permuted, node, attribute)


def _scaled(node: Any, attribute: Any) -> PlantedFault:
    attribute.f *= _FACTORS[attribute.name]
    return PlantedFault("attribute", node.name, f"{attribute.name} = {attribute.f:.3g}")


def _word(node: Any, attribute: Any, word: bytes) -> PlantedFault:
    attribute.s = word
    return PlantedFault("attribute", node.name, f"{attribute.name} = {word.decode()}")


def _shifted(node: Any, attribute: Any) -> PlantedFault:
    half = len(attribute.ints) // 2
    attribute.ints[0], attribute.ints[half] = 0, attribute.ints[half] + attribute.ints[0]
    return PlantedFault("attribute", node.name, f"pads = {list(attribute.ints)}")


def _permuted(node: Any, attribute: Any) -> PlantedFault:
    attribute.ints[1], attribute.ints[3] = attribute.ints[3], attribute.ints[1]
    return PlantedFault("attribute", node.name, f"perm = {list(attribute.ints)}")


def _initialisers(graph: Any) -> Iterator[Change]:
    for tensor in _floats(graph).values():
        node = next((n for n in graph.node if tensor.name in n.input), None)
        array = onnx.numpy_helper.to_array(tensor)
        if node is not None and array.size > 1 and np.abs(array).max() < 1e4:
            yield partial(_stale, node, tensor)


def _stale(node: Any, tensor: Any) -> PlantedFault:
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[..., : max(1, array.shape[-1] // 2)] *= 1.05
    array.reshape(-1)[0] += 0.05
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return PlantedFault("initialiser", node.name, tensor.name, tensor.name)


def _swapped(graph: Any) -> Iterator[Change]:
    for node in graph.node:
        if node.op_type in ("Sub", "Div", "Pow", "MatMul") and len(node.input) == 2:
            yield partial(_swap, node)


def _swap(node: Any) -> PlantedFault:
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return PlantedFault("inputs", node.name, "swapped")


def _axes(graph: Any) -> Iterator[Change]:
    for node in graph.node:
        for attribute in node.attribute:
            is_free = node.op_type in (
                "Softmax",
                "LogSoftmax",
                "TopK",
                "Concat",
                "Gather",
                "ArgMax",
            )
            if attribute.name == "axis" and is_free and attribute.i != 0:
                yield partial(_other_axis, node, attribute)


def _other_axis(node: Any, attribute: Any) -> PlantedFault:
    attribute.i = attribute.i - 1 if attribute.i != 1 else 0
    return PlantedFault("axis", node.name, f"axis = {attribute.i}")


def _casts(graph: Any) -> Iterator[Change]:
    """Where a cast to whole numbers is in excess, as where one to floats is missing."""
    known = {name for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in _COMPUTING and node.input[0] in known:
            yield partial(_rounded, graph, node)


def _rounded(graph: Any, node: Any) -> PlantedFault:
    """Through int32 and back: what a cast in a wrong place does."""
    before, name = node.input[0], f"{node.name}_cast"
    made = [
        onnx.helper.make_node("Cast", [before], [f"{name}_0"], f"{name}_0", to=6),
        onnx.helper.make_node("CastLike", [f"{name}_0", before], [f"{name}_1"], f"{name}_1"),
    ]
    at = list(graph.node).index(node)
    node.input[0] = f"{name}_1"
    for offset, each in enumerate(made):
        graph.node.insert(at + offset, each)
    return PlantedFault("cast", f"{name}_0", f"{before} by way of int32")


def _custom_ops(graph: Any) -> Iterator[Change]:
    """Where an op of a library computes a node, and wrongly."""
    model = onnx.ModelProto(graph=graph, ir_version=10)
    model.opset_import.append(onnx.helper.make_opsetid("", 20))
    names = {node.name for node in replaceable(model)}
    for node in graph.node:
        if node.name in names:
            for fault in range(1, NUM_FAULTS + 1):
                yield partial(_wrong_custom_op, node, fault)


def _wrong_custom_op(node: Any, fault: int) -> PlantedFault:
    use_custom_op(node, fault)
    return PlantedFault("library", node.name, f"{node.op_type} with fault {fault}")


_MAKERS: dict[str, Callable[[Any], Iterator[Change]]] = {
    "attribute": _attributes, "initialiser": _initialisers, "inputs": _swapped, "axis": _axes,
    "cast": _casts, "library": _custom_ops,
}  # fmt: skip


# Wrong kernels


def dump_with_wrong_kernel(
    golden: Path, model: Path, path: Path, draws: random.Random
) -> PlantedFault:
    """Dump `model` as if one of its nodes gave other numbers, with which the rest goes on."""
    (given,) = inputs_from(golden)
    with dumpcmp.capture_onnx(model, path, overwrite=True) as run, torch.no_grad():
        tapping = run.model.tapping
        plain = tapping.run
        chosen: list[PlantedFault] = []

        def altered(inputs: Any) -> Any:
            outputs, values = plain(inputs)
            node, name = draws.choice(_computing(tapping.graph.graph, values))
            wrong = _wrong(values[name], draws)
            chosen.append(PlantedFault("kernel", node.name, name))
            rest = _after(tapping, inputs, name, wrong)
            values = {**values, **rest, name: wrong}
            return {each: values.get(each, outputs[each]) for each in outputs}, values

        tapping.run = altered  # type: ignore[method-assign]
        run.model(*given.args, **(given.kwargs or {}))
    return chosen[0]


def _computing(graph: Any, values: dict[str, Tensor]) -> list[tuple[Any, str]]:
    return [
        (node, node.output[0]) for node in graph.node
        if node.output[0] in values and values[node.output[0]].is_floating_point()
        and values[node.output[0]].numel() > 8
        and node.op_type not in ("Reshape", "Transpose", "Cast", "Squeeze", "Unsqueeze", "Flatten")
    ]  # fmt: skip


def _wrong(right: Tensor, draws: random.Random) -> Tensor:
    wrong = right.clone()
    how = draws.choice(("scale", "row", "shift"))
    if how == "scale":
        return wrong * 1.01
    if how == "shift":
        return wrong + 0.02 * wrong.abs().mean()
    flat = wrong.reshape(-1, wrong.shape[-1])
    flat[0] *= 1.2
    return flat.reshape(right.shape)


def _after(tapping: Any, inputs: Any, name: str, wrong: Tensor) -> dict[str, Tensor]:
    """What the nodes behind a value give if it is `wrong`."""
    from dumpcmp.taps.onnx.sessions import open_session, run_session
    from dumpcmp.taps.onnx.tensors import to_ort

    cut = onnx.ModelProto()
    cut.CopyFrom(tapping.graph)
    maker = next(node for node in cut.graph.node if name in node.output)
    maker.output[list(maker.output).index(name)] = f"{name}_right"
    number = onnx.helper.np_dtype_to_tensor_dtype(wrong.numpy().dtype)
    cut.graph.input.append(onnx.helper.make_tensor_value_info(name, number, list(wrong.shape)))
    names = [value for turn in tapping.turns for value in turn.values if value != name]
    cut.graph.output.extend(onnx.ValueInfoProto(name=each) for each in names)
    is_output = [each for each in cut.graph.output if each.name == name]
    for each in is_output:
        cut.graph.output.remove(each)
    at = tapping.room / "cut.onnx"
    at.write_bytes(cut.SerializeToString())
    session = open_session(at, tapping.settings, tapping.room / "cut-saved.onnx", optimises=False)
    feeds = {each: to_ort(tensor) for each, tensor in {**inputs, name: wrong}.items()}
    wanted = [*names, *(each for each in tapping.outputs if each != name)]
    return run_session(session, wanted, feeds)
