"""Reads the ops of a ``torch.export`` program (``.pt2``)."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dumpcmp.nouns.errors import ProgramFileError
from dumpcmp.partitioning.call import Candidate, OpCall, rebuilt, shape_of
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.rules.ruling import NoRule
from dumpcmp.pytorch.packages import load_graph

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def read_exported(path: Path) -> list[Candidate]:
    """The ops of the program at `path`. Nothing but its graph is loaded, and that checked."""
    try:
        return ops_of(load_graph(path))
    except ProgramFileError as error:
        raise PartitionError(error.message, hint=error.hint) from error


def ops_of(program: torch.export.ExportedProgram) -> list[Candidate]:
    """The ops of `program`, those of its inner graphs included."""
    return [
        _candidate(node, f"{path}.{node.name}" if path else node.name)
        for path, module in program.graph_module.named_modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]


def _candidate(node: fx.Node, name: str) -> Candidate:
    op, source, reason = str(node.target), _source(node), ""
    is_op = isinstance(node.target, torch._ops.OpOverload)
    fsig = op if op.startswith("aten.") or not is_op else f"torch.ops.{op}"
    if not is_op:
        reason = "no op of a tensor: structure of the graph"
    elif not _gives_tensor(node):
        reason = "gives no tensor: nothing to compare"
    elif not any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes):
        reason = "takes no tensor: nothing to partition"
    call = OpCall(fsig)
    try:
        if not reason:
            call = OpCall(fsig, *map(_value, (tuple(node.args), dict(node.kwargs))))
    except NoRule as error:
        return Candidate(call, node=name, source=source, reason=str(error))
    return Candidate(call, node=name, source=source, reason=reason, computes=not reason)


def _value(argument: Any) -> Any:
    """An argument of a node as a plain value; tensors as their shapes."""
    if isinstance(argument, fx.Node):
        return _example(argument.meta.get("val"), argument.name)
    return _number(rebuilt(argument, _value))


def _example(val: Any, name: str) -> Any:
    if isinstance(val, torch.Tensor):
        shape = tuple(_number(size) for size in val.shape)
        return shape_of(shape, val.dtype)
    if val is None or isinstance(val, list | tuple):
        raise NoRule(f"argument {name!r} is no single tensor")
    return _number(val)


def _number(value: Any) -> Any:
    """A symbolic size as the number that the program was exported with."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    hint = value.node.hint
    if hint is None:
        raise NoRule(f"size {value} has no example value")
    return hint


def _gives_tensor(node: fx.Node) -> bool:
    val = node.meta.get("val")
    several = val if isinstance(val, list | tuple) else [val]
    return any(isinstance(each, torch.Tensor) for each in several)


def _source(node: fx.Node) -> str:
    """The user's line: the innermost frame that is not torch's own."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""
