"""Runs the bodies of If, Loop and Scan node by node, as often as ONNX Runtime ran them.

A body becomes a model of its own: what it reads from the graphs around it are inputs, and all of
its values are outputs. Its runs are strung together as the specification of the op says. They hold
only if they end in the values that the op itself gave, bit for bit; else the op stays one call.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.tensor_bits import same_bits
from dumpcmp.taps.onnx.blocked_images import NCHWC, PlainImages
from dumpcmp.taps.onnx.graph_nodes import OnnxBody, OnnxNode, read_before
from dumpcmp.taps.onnx.sessions import OnnxSettings, open_session, run_session
from dumpcmp.taps.onnx.tensors import number_of_dtype, to_ort

if TYPE_CHECKING:
    from onnx import ModelProto

_MOST_BYTES = 1 << 31  # of values inside of one If, Loop or Scan
_MOST_ITERATIONS = 1 << 16

NamedValues = ChainMap[str, Tensor]


class UnrollingError(CaptureError):
    """A body whose nodes cannot be run one by one; the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeRun:
    """One run of a node, with what it took and gave; None: left out, or no tensor."""

    node: OnnxNode
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor | None]


@dataclass(eq=False)
class GraphUnroller:
    """Lists the runs of the nodes of `model`, those inside of bodies too; files go into `room`."""

    model: ModelProto
    settings: OnnxSettings
    room: Path
    filters: Callable[[], Mapping[str, Tensor]]  # of convolutions, as the file has them
    problems: dict[str, str] = field(default_factory=dict)  # nodes, and why they stay whole
    num_bodies: int = 0  # runs of nodes with bodies that were unrolled
    _sessions: dict[int, Any] = field(default_factory=dict)
    _nbytes: int = 0

    def runs(self, nodes: Sequence[OnnxNode], values: NamedValues) -> list[NodeRun]:
        """The runs of `nodes`, in order, those inside of bodies in place of what has the bodies.

        `values` then names what the bodies gave where it named the same values before.
        """
        inner = {id(node): self._unrolled(node, values) for node in nodes if node.bodies}
        block = self._put_in_order(nodes, values)
        found: list[NodeRun] = []
        for node in nodes:
            unrolled = inner.get(id(node))
            found += [_plain_run(node, values, block)] if unrolled is None else unrolled
        return found

    def _put_in_order(self, nodes: Sequence[OnnxNode], values: NamedValues) -> int:
        if not any(node.domain == NCHWC for node in nodes):
            return 0
        return PlainImages(values, self.filters()).put_in_order(nodes)

    def _unrolled(self, node: OnnxNode, values: NamedValues) -> list[NodeRun] | None:
        """The runs inside of `node`; None where they do not end in the values that it gave."""
        self._nbytes = 0
        try:
            unroll = {"If": self._if, "Loop": self._loop, "Scan": self._scan}.get(node.op)
            if unroll is None or node.domain != "onnx":
                raise UnrollingError(f"it is {node.function}")
            runs, outputs = unroll(node, values)
            for name, made in zip(node.outputs, outputs, strict=True):
                if name and (made is None or not _is_same(values.get(name), made)):
                    raise UnrollingError(f"its body, run alone, gives another {name}")
        except CaptureError as error:
            self.problems.setdefault(node.name or node.function, error.message)
            return None
        self.num_bodies += 1
        made_values = zip(node.outputs, outputs, strict=True)
        values.update({name: made for name, made in made_values if name and made is not None})
        return runs

    # The three ops

    def _if(
        self, node: OnnxNode, values: NamedValues
    ) -> tuple[list[NodeRun], Sequence[Tensor | None]]:
        condition = _scalar(values, node.inputs[0])
        body = node.bodies["then_branch" if condition else "else_branch"]
        return self._run(body, values, ())

    def _loop(
        self, node: OnnxNode, values: NamedValues
    ) -> tuple[list[NodeRun], Sequence[Tensor | None]]:
        body = node.bodies["body"]
        most = _scalar(values, node.inputs[0], _MOST_ITERATIONS)
        goes_on = torch.as_tensor(bool(_scalar(values, node.inputs[1], True)))
        state: list[Tensor | None] = [values.get(name) for name in node.inputs[2:]]
        runs: list[NodeRun] = []
        rows: list[list[Tensor | None]] = []
        while len(rows) < most and bool(goes_on):
            self._check_iterations(len(rows))
            number = torch.tensor(len(rows)).reshape(_sizes(body, 0))
            given = (number, goes_on.reshape(_sizes(body, 1)), *state)
            inner, made = self._run(body, values, given)
            runs += inner
            if made[0] is None:
                raise UnrollingError("its condition is no tensor")
            goes_on, state = made[0], list(made[1 : len(state) + 1])
            rows.append(list(made[len(state) + 1 :]))
        num_collected = len(node.outputs) - len(state)
        stacked, collected = self._stacked(node, rows, [(0, False)] * num_collected)
        return [*runs, *stacked], [*state, *collected]

    def _scan(
        self, node: OnnxNode, values: NamedValues
    ) -> tuple[list[NodeRun], Sequence[Tensor | None]]:
        body, count = node.bodies["body"], int(node.attributes["num_scan_inputs"])
        given = [values.get(name) for name in node.inputs]
        state, scanned = given[: len(given) - count], given[len(given) - count :]
        axes = list(node.attributes.get("scan_input_axes") or [0] * count)
        backwards = list(node.attributes.get("scan_input_directions") or [0] * count)
        if any(each is None for each in scanned):
            raise UnrollingError("what it goes through is no tensor")
        whole = [each for each in scanned if each is not None]
        length = whole[0].shape[axes[0]]
        runs: list[NodeRun] = []
        rows: list[list[Tensor | None]] = []
        for at in range(length):
            self._check_iterations(at)
            slices: list[Tensor | None] = []
            for each, axis, is_backward in zip(whole, axes, backwards, strict=True):
                index = torch.tensor(length - 1 - at if is_backward else at)
                one = each.select(axis, int(index)).contiguous()
                runs.append(_gathered(node, each, index, one, axis))
                slices.append(one)
            inner, made = self._run(body, values, (*state, *slices))
            runs += inner
            state = list(made[: len(state)])
            rows.append(list(made[len(state) :]))
        num_collected = len(node.outputs) - len(state)
        axes = list(node.attributes.get("scan_output_axes") or [0] * num_collected)
        turned = list(node.attributes.get("scan_output_directions") or [0] * num_collected)
        how = [(axis, bool(each)) for axis, each in zip(axes, turned, strict=True)]
        stacked, collected = self._stacked(node, rows, how)
        return [*runs, *stacked], [*state, *collected]

    # What they share

    def _check_iterations(self, count: int) -> None:
        if count >= _MOST_ITERATIONS:
            raise UnrollingError(f"it has more than {_MOST_ITERATIONS} iterations")
        if self._nbytes > _MOST_BYTES:
            raise UnrollingError(f"the values inside are more than {_MOST_BYTES >> 30} GiB")

    def _stacked(
        self,
        node: OnnxNode,
        rows: list[list[Tensor | None]],
        how: Sequence[tuple[int, bool]],
    ) -> tuple[list[NodeRun], list[Tensor | None]]:
        """What the iterations gave beside their state, in one tensor for each output.

        `how` says along which dim, and whether from the last iteration to the first.
        """
        if how and not rows:
            raise UnrollingError("it has no iteration, and nothing tells the shape of its output")
        runs: list[NodeRun] = []
        collected: list[Tensor | None] = []
        for at, parts in enumerate(zip(*rows, strict=True)):
            axis, is_backward = how[at]
            tensors = [each for each in parts if each is not None]
            shapes = {each.shape for each in tensors}
            if len(tensors) < len(parts) or len(shapes) > 1:
                raise UnrollingError("its iterations give tensors of several shapes")
            tensors = tensors[::-1] if is_backward else tensors
            made = torch.stack(tensors, axis)
            attributes = {"axis": axis} if node.op == "Scan" else {}
            runs.append(NodeRun(_part(node, node.op, attributes), tensors, [made]))
            collected.append(made)
        return runs, collected

    def _run(
        self, body: OnnxBody, outer: NamedValues, given: Sequence[Tensor | None]
    ) -> tuple[list[NodeRun], list[Tensor | None]]:
        """Run `body` once: the runs of its nodes, and its outputs."""
        here = outer.new_child({**body.constants})
        for name, value in zip(body.inputs, given, strict=True):
            if value is None:
                raise UnrollingError(f"{name} is no tensor")
            here[name] = value
        names = [name for name in (*body.inputs, *read_before(body.graph)) if name in here]
        tensors = {name: here[name] for name in names}
        if body.graph.node:
            session, wanted = self._session(body, tensors)
            feeds = {each.name: to_ort(tensors[each.name]) for each in session.get_inputs()}
            made = run_session(session, wanted, feeds)
            self._nbytes += sum(each.numel() * each.element_size() for each in made.values())
            here.update(made)
        runs = self.runs(body.nodes, here)
        return runs, [here.get(name) for name in body.outputs]

    def _session(self, body: OnnxBody, given: Mapping[str, Tensor]) -> tuple[Any, list[str]]:
        """A session of `body`, whose values are its outputs, with their names."""
        if id(body) not in self._sessions:
            wanted = [name for node in body.graph.node for name in node.output if name]
            at = self.room / f"body-{len(self._sessions)}.onnx"
            model = self._model_of(body, given, wanted)
            at.write_bytes(model.SerializeToString())
            session = open_session(at, self.settings, None, optimises=False)
            self._sessions[id(body)] = session, wanted
        found: tuple[Any, list[str]] = self._sessions[id(body)]
        return found

    def _model_of(
        self, body: OnnxBody, given: Mapping[str, Tensor], wanted: Sequence[str]
    ) -> ModelProto:
        """`body` as a model: what it reads from around it is an input, or a constant that it is."""
        import onnx

        model = onnx.ModelProto(ir_version=self.model.ir_version)
        model.opset_import.extend(self.model.opset_import)
        graph = model.graph
        graph.name = "body"
        graph.node.extend(body.graph.node)
        graph.initializer.extend(body.graph.initializer)
        constants = {each.name: each for each in self.model.graph.initializer}
        inputs = set(body.inputs)
        for name, tensor in given.items():
            if name in constants and name not in inputs:
                graph.initializer.append(constants[name])
                continue
            number = number_of_dtype(tensor.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, number, None))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
        return model


def _plain_run(node: OnnxNode, values: Mapping[str, Tensor], block: int) -> NodeRun:
    """A run of `node` as a whole; images lie in blocks of so many channels."""
    if node.domain == NCHWC and node.op == "ReorderInput":
        node = replace(node, attributes={**node.attributes, "block": block})
    taken, made = ([values.get(name) if name else None for name in names]
                   for names in (node.inputs, node.outputs))  # fmt: skip
    return NodeRun(node, taken, made)


def _gathered(node: OnnxNode, x: Tensor, index: Tensor, made: Tensor, axis: int) -> NodeRun:
    """A slice that a Scan takes of an input, as the Gather that it stands for."""
    return NodeRun(_part(node, "Gather", {"axis": axis}), [x, index], [made])


def _part(node: OnnxNode, op: str, attributes: Mapping[str, Any]) -> OnnxNode:
    """What a Loop or Scan does itself beside running its body."""
    return OnnxNode(
        node.name, node.domain, op, node.version, (), (), attributes, node.place
    )  # fmt: skip


def _is_same(known: Tensor | None, made: Tensor) -> bool:
    return known is not None and same_bits(known, made)


def _scalar(values: Mapping[str, Tensor], name: str, default: float | None = None) -> float:
    if name and (found := values.get(name)) is not None:
        return float(found.reshape(-1)[0])
    if name or default is None:
        raise UnrollingError(f"{name or 'its condition'} is no tensor")
    return default


def _sizes(body: OnnxBody, at: int) -> tuple[int, ...]:
    """The shape of a number that a body takes: a scalar, or one element."""
    shape = body.graph.input[at].type.tensor_type.shape
    return (1,) * min(1, len(shape.dim))
