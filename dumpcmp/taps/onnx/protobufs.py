"""Reads ONNX files as data: bounded, external data only beside them, nothing of them ever run."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dumpcmp.nouns.budgets import ONNX
from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.options import readable

if TYPE_CHECKING:  # it is an extra of this package
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

INSTALL = "pip install 'dumpcmp[onnx]'"


def check_installed(what: str = "--mode onnx") -> None:
    """Refuse where ONNX Runtime is not installed, which is an extra."""
    for name in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise CaptureError(f"{what} needs {name}", hint=INSTALL)


class OnnxFileError(CaptureError):
    """An ONNX file that cannot be read for what it says that it is."""


def read_model(path: Path) -> ModelProto:
    """The model at `path` without its external data, held to its bounds."""
    import onnx
    from google.protobuf.message import DecodeError

    _check_file(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (DecodeError, ValueError, RecursionError):
        raise OnnxFileError(
            f"{path} is no ONNX model: it cannot be read as a protobuf",
            hint="export it again, or give the file that torch.onnx.export wrote",
        ) from None
    if not model.graph.node or not model.opset_import:
        raise OnnxFileError(
            f"{path} is no ONNX model: it has no {'opset' if model.graph.node else 'nodes'}",
            hint="give the file that torch.onnx.export wrote",
        )
    _check_bounds(path, model)
    if not _is_text(model):
        raise OnnxFileError(
            f"{path} is no ONNX model: it has names that are no text (UTF-8)",
            hint="export it again: it is damaged",
        )
    return model


def _is_text(message: Any) -> bool:
    """Whether all that must be text is; of other bytes protobuf makes no words."""
    from google.protobuf.message import Message

    for field, value in message.ListFields():
        if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
            for each in [value] if isinstance(value, (str, bytes, Message)) else value:
                if isinstance(each, bytes) or not (isinstance(each, str) or _is_text(each)):
                    return False
    return True


def _check_file(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise OnnxFileError(f"{path}: {error.strerror}", hint="give an .onnx file") from None
    if not stat.S_ISREG(found.st_mode):
        raise OnnxFileError(f"{path} is not a file", hint="give an .onnx file")
    if found.st_size > ONNX.nbytes:
        raise OnnxFileError(
            f"{path} has {readable(found.st_size)}, and a protobuf at most {readable(ONNX.nbytes)}",
            hint="save its weights as external data",
        )


def _check_bounds(path: Path, model: ModelProto) -> None:
    """Refuse more nodes and deeper graphs than are read, and data that lies elsewhere."""
    count = 0
    for graph, depth in graphs_of(model):
        count += len(graph.node) + len(graph.initializer)
        if depth > ONNX.depth or count > ONNX.nodes:
            raise OnnxFileError(
                f"{path}: its graphs have more than {ONNX.nodes:,} nodes, or lie deeper than "
                f"{ONNX.depth}",
                hint="export a smaller part of it",
            )
        for tensor in tensors_of(graph):
            _check_external(path, tensor)


def graphs_of(model: ModelProto) -> Iterator[tuple[GraphProto, int]]:
    """The graphs of a model and of the bodies of its loops and branches, and how deep each lies."""
    waiting: list[tuple[GraphProto, int]] = [(model.graph, 0)]
    waiting += [(body, depth) for f in model.functions for body, depth in _inner(f.node, 0)]
    while waiting:
        graph, depth = waiting.pop()
        yield graph, depth
        if depth <= ONNX.depth:
            waiting += _inner(graph.node, depth)


def _inner(nodes: Any, depth: int) -> Iterator[tuple[GraphProto, int]]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g, depth + 1
            yield from ((graph, depth + 1) for graph in attribute.graphs)


def tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    """The tensors that a graph holds, those in the attributes of its nodes included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_external(path: Path, tensor: TensorProto) -> None:
    """Refuse external data that does not lie in the directory of the model."""
    from onnx import TensorProto

    if tensor.data_location != TensorProto.EXTERNAL:
        return
    told = {entry.key: entry.value for entry in tensor.external_data}
    location, room = Path(told.get("location", "")), path.parent.resolve()
    place = (room / location).resolve()
    if not told.get("location") or location.is_absolute() or not place.is_relative_to(room):
        raise OnnxFileError(
            f"{path}: {tensor.name or 'a tensor'} has its data at {str(location)!r}, outside of "
            "the directory of the model",
            hint="external data must lie beside the model",
        )
    if not place.is_file():
        raise OnnxFileError(
            f"{path}: the external data of {tensor.name or 'a tensor'} is not there: {place}",
            hint="copy it there: a model with external data is several files",
        )


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node, by name; those that are graphs are left out."""
    return {each.name: _attribute(each) for each in node.attribute if not _is_graph(each)}


def _is_graph(attribute: AttributeProto) -> bool:
    return attribute.HasField("g") or bool(attribute.graphs)


def _attribute(attribute: AttributeProto) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    kind = attribute.type
    if kind == onnx.AttributeProto.FLOAT:
        return plain_float(value)
    if kind == onnx.AttributeProto.FLOATS:
        return [plain_float(each) for each in value]
    if kind == onnx.AttributeProto.STRING:
        return value.decode(errors="replace")
    if kind == onnx.AttributeProto.STRINGS:
        return [each.decode(errors="replace") for each in value]
    if kind == onnx.AttributeProto.INTS:
        return list(value)
    return value


def plain_float(value: float) -> float:
    """The shortest number that float32 rounds to `value`, in which protobuf has attributes."""
    import numpy as np

    return float(str(np.float32(value)))


def attribute_tensors(node: NodeProto) -> Mapping[str, TensorProto]:
    """The attributes of a node that are tensors, by name."""
    return {each.name: each.t for each in node.attribute if each.HasField("t")}
