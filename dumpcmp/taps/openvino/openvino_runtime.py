"""A model as OpenVINO compiles it, and compiled once more with values of it as outputs.

The compiled model tells its kernels, each with the layers of the model that it was made of. Only
what a kernel gives in the end is in memory: that is tapped. A tapped model holds if it has the
kernels of the untapped one, and its outputs bit for bit.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.tensor_bits import same_bits
from dumpcmp.taps.onnx.tensors import from_array

INSTALL = "pip install openvino onnx"
_MOVING = ("Input", "Output", "Const", "Reorder", "Memory")  # kernels that a tap may add
_WITHOUT = {"bf16": torch.bfloat16}  # dtypes that numpy has no word for


def check_openvino() -> None:
    """Refuse where OpenVINO is not installed."""
    for name in ("openvino", "onnx"):
        if importlib.util.find_spec(name) is None:
            raise CaptureError(f"--mode openvino needs {name}", hint=INSTALL)


@dataclass(frozen=True, slots=True)
class OpenVinoKernel:
    """A kernel of a compiled model: what it is called, and the layers that it was made of."""

    name: str
    kind: str  # "FullyConnected"
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TappedModel:
    """A compiled model that gives some values besides its outputs."""

    compiled: Any
    values: tuple[str, ...]


@dataclass(eq=False)
class OpenVinoTapping:
    """A model in OpenVINO, tapped; the first run settles in how many compiled models."""

    path: Path
    device: str = "CPU"
    options: Mapping[str, str] = field(default_factory=dict)
    turns: list[TappedModel] | None = None
    untapped: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    num_outputs: int = 0

    def __post_init__(self) -> None:
        import openvino

        self._core = openvino.Core()
        try:
            self.model = self._core.read_model(str(self.path))
        except Exception as error:
            raise CaptureError(
                f"OpenVINO cannot load {self.path}: {_first_line(error)}",
                hint="see if openvino.Core().read_model takes it without dumpcmp",
            ) from None
        self._plain = self._compiled(self.model)
        self.kernels = kernels_of(self._plain)
        self.outputs = [output.get_any_name() for output in self.model.outputs]
        self.layers, self.forms, self._leaves = _values_of(self.model)
        self._named = frozenset(self.layers.values())

    def _compiled(self, model: Any) -> Any:
        try:
            return self._core.compile_model(model, self.device, dict(self.options))
        except Exception as error:
            raise CaptureError(f"OpenVINO cannot compile it: {_first_line(error)}") from None

    def kernel_of_layer(self) -> dict[str, OpenVinoKernel]:
        """The kernel that computes a layer, by its name."""
        return {layer: kernel for kernel in self.kernels for layer in kernel.layers}

    def in_memory(self) -> list[str]:
        """The values that a kernel gives in the end, by name."""
        last = {kernel.layers[-1] for kernel in self.kernels if kernel.layers}
        known = {*self.outputs, *self._leaves}
        return [name for name, layer in self.layers.items() if layer in last and name not in known]

    def plain_run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of the untapped model."""
        found = _infer(self._plain, given)
        return dict(zip(self.outputs, found, strict=True))

    def run(self, given: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The outputs of the untapped model, and all values that are tapped."""
        outputs = self.plain_run(given)
        self.num_outputs += len(outputs)
        if self.turns is None:
            return outputs, self._settle(outputs, given)
        found: dict[str, Tensor] = {}
        for turn in self.turns:
            values, why = self._tapped(turn, outputs, given)
            self.problems += [why] if why else []
            found |= values
        return outputs, found

    def _settle(
        self, outputs: Mapping[str, Tensor], given: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Tap all values at once, or those that disturb the run in turns of half as many."""
        self.turns, found = [], dict[str, Tensor]()
        waiting = [self.in_memory()]
        while waiting:
            names = waiting.pop(0)
            turn, why = self._turn(names)
            values: dict[str, Tensor] = {}
            if turn is not None:
                values, why = self._tapped(turn, outputs, given)
            if turn is not None and not why:
                self.turns.append(turn)
                found |= values
            elif len(names) > 1:
                waiting += [names[: len(names) // 2], names[len(names) // 2 :]]
            elif names:
                self.untapped[names[0]] = why
            else:
                self.problems.append(why)
        return found

    def _turn(self, names: Sequence[str]) -> tuple[TappedModel | None, str]:
        """A compiled model with `names` tapped; or why there is none."""
        tapped = self.model.clone()
        try:
            if names:
                tapped.add_outputs(list(names))
            compiled = self._compiled(tapped)
        except CaptureError as error:
            return None, error.message
        except Exception as error:  # of OpenVINO's own
            return None, _first_line(error)
        other = first_other_kernel(self.kernels, kernels_of(compiled), self._named)
        if other:
            return None, f"with it tapped, {other}"
        return TappedModel(compiled, tuple(names)), ""

    def _tapped(
        self, turn: TappedModel, outputs: Mapping[str, Tensor], given: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], str]:
        """The values of a tapped run; or which output is not that of the untapped one."""
        found = _infer(turn.compiled, given)
        for (name, plain), tapped in zip(outputs.items(), found, strict=False):
            if not same_bits(plain, tapped):
                return {}, f"output {name} is not that of the untapped model"
        return dict(zip(turn.values, found[len(outputs) :], strict=True)), ""


def _values_of(
    model: Any,
) -> tuple[dict[str, str], dict[str, tuple[str, tuple[int, ...] | None]], set[str]]:
    """Of each value of a model its layer, its dtype and shape, and those that no layer computes."""
    layers: dict[str, str] = {}
    leaves: set[str] = set()
    forms: dict[str, tuple[str, tuple[int, ...] | None]] = {}
    for op in model.get_ordered_ops():
        for output in op.outputs():
            shape = output.get_partial_shape()
            sizes = tuple(int(size) for size in shape.to_shape()) if shape.is_static else None
            dtype = _dtype_of(output.get_element_type())
            for name in output.get_names():
                layers[name] = op.get_friendly_name()
                forms[name] = dtype, sizes
                leaves |= {name} if op.get_type_name() in ("Parameter", "Constant") else set()
    return layers, forms, leaves


def _dtype_of(kind: Any) -> str:
    """Torch's name of an element type of OpenVINO; empty for what it has not."""
    word = str(kind.get_type_name()) if hasattr(kind, "get_type_name") else str(kind)
    known = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
             "boolean": "bool", **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
             **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)}}  # fmt: skip
    return known.get(word, "")


def kernels_of(compiled: Any) -> list[OpenVinoKernel]:
    """The kernels that a compiled model runs."""
    found = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        details = op.get_rt_info()
        kind, layers = (str(details[key].value) if key in details else "" for key in
                        ("layerType", "originalLayersNames"))  # fmt: skip
        names = tuple(name for name in layers.split(",") if name)
        found.append(OpenVinoKernel(op.get_friendly_name(), kind, names))
    return found


def first_other_kernel(
    one: Sequence[OpenVinoKernel], other: Sequence[OpenVinoKernel], named: Collection[str]
) -> str:
    """In what the kernels of two compiled models differ, but for those that move data.

    Layers that are not `named` in the model are made as it is compiled, with other names each time.
    """
    ours, theirs = (
        Counter(
            (each.kind, tuple(layer for layer in each.layers if layer in named))
            for each in kernels
            if each.kind not in _MOVING
        )
        for kernels in (one, other)
    )
    for (kind, layers), _ in sorted(((ours - theirs) + (theirs - ours)).items()):
        name = layers[-1] if layers else ""
        return f"kernel {kind} {name!r} is {'gone' if ours[kind, layers] else 'new'}"
    return ""


def _infer(compiled: Any, given: Mapping[str, Tensor]) -> list[Tensor]:
    """What a compiled model gives, in the order of its outputs."""
    arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in given.items()}
    request = compiled.create_infer_request()
    try:
        request.infer(arrays, share_inputs=False, share_outputs=False)
    except Exception as error:
        raise CaptureError(f"OpenVINO stopped: {_first_line(error)}") from None
    found = []
    for at in range(len(compiled.outputs)):
        tensor = request.get_output_tensor(at)
        dtype = _WITHOUT.get(str(tensor.get_element_type().get_type_name()))
        array = np.array(tensor.data)
        found.append(from_array(array) if dtype is None else torch.from_numpy(array).view(dtype))
    return found


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
