"""A library of custom ops, compiled by the system's C compiler; what its ops should compute."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor

import dumpcmp

DOMAIN = "custom"
NUM_FAULTS = 4  # of each op; 0 stands for none
_SOURCE = Path(__file__).with_name("custom_kernels.c")
_OPS: dict[str, Callable[..., Tensor]] = {
    "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Erf": torch.erf,
    "Gelu": F.gelu, "Add": torch.add, "Mul": torch.mul,
}  # fmt: skip


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return shutil.which(os.environ.get("CC", "cc"))


def library(room: Path) -> Path:
    """The library, compiled into `room`; what its ops compute is registered."""
    found = compiler()
    assert found is not None, "there is no C compiler"
    path = room / "custom_kernels.so"
    if not path.exists():
        words = [found, "-O2", "-shared", "-fPIC", "-o", str(path), str(_SOURCE), "-lm"]
        subprocess.run(words, check=True)
    for name, compute in _OPS.items():
        dumpcmp.reference(f"{DOMAIN}::{name}")(partial(_right, compute))
    return path


def _right(compute: Callable[..., Tensor], *given: Tensor, fault: int = 0) -> Tensor:
    del fault
    return compute(*given)


def replaceable(model: Any) -> Iterator[Any]:
    """The nodes of `model` that the library has an op for."""
    shapes = _shapes(model)
    for node in model.graph.node:
        known = [shapes.get(name) for name in (*node.input, *node.output)]
        is_plain = node.domain == "" and not (node.op_type == "Gelu" and node.attribute)
        if node.op_type not in _OPS or not is_plain or None in known:
            continue
        first, second, made = known[0], known[-2], known[-1]
        if first == made and made and second == made[len(made) - len(second or ()) :]:
            yield node


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the float32 values of a model, where they are known."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    found = {each.name: tuple(each.dims) for each in inferred.initializer if each.data_type == 1}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        kind = value.type.tensor_type
        if kind.elem_type == onnx.TensorProto.FLOAT and kind.HasField("shape"):
            found[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return {name: shape for name, shape in found.items() if all(shape) or not shape}


def use_custom_op(node: Any, fault: int) -> None:
    """Have the library's op compute `node`, with a fault or none; see `import_domain`."""
    node.domain = DOMAIN
    node.attribute.append(onnx.helper.make_attribute("fault", fault))


def import_domain(model: Any) -> None:
    """Have `model` say that it uses the library's ops."""
    if not any(each.domain == DOMAIN for each in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
