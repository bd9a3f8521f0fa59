"""From a function's signature, such as ``"torch.conv2d"``, to the function and its parameters."""

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from dumpcmp.partitioning.call import OpCall
from dumpcmp.partitioning.configuration import PartitionError, TensorInfo

# Signatures of nnScaler's own functions -> our functions with the same arguments.
_RUNTIME = (
    "accum cat conv2d conv3d einsum embedding fullslice identity index_select layer_norm multiref "
    "nndropout select_scatter setitem stack to"
)
EQUIVALENTS = {
    **{f"nnscaler.runtime.function.{name}": name for name in _RUNTIME.split()},
    "nnscaler.graph.function.wrapnn.wrap_batchnorm2d_func": "batchnorm2d",
    "nnscaler.graph.function.wrapnn.wrap_instancenorm2d_func": "instancenorm2d",
}
_AS_THEY_ARE = "abs add eq ge gt le lt matmul mul ne neg pow sub"
# Functions of Python's operator module -> the op that they are on tensors.
OPERATORS = {
    **{
        name: name
        for name in [
            "abs",
            "add",
            "eq",
            "ge",
            "gt",
            "le",
            "lt",
            "matmul",
            "mul",
            "ne",
            "neg",
            "pow",
            "sub",
        ]
    },
    "and_": "bitwise_and",
    "floordiv": "floor_divide",
    "getitem": "nnscaler.runtime.function.fullslice",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "mod": "remainder",
    "or_": "bitwise_or",
    "pos": "positive",
    "rshift": "bitwise_right_shift",
    "truediv": "div",
    "xor": "bitwise_xor",
}
_ATEN = "torch.ops.aten."


@dataclass(frozen=True, slots=True)
class Callee:
    """What runs, and how its parameters are called, in order."""

    run: Callable[..., Any]
    parameters: tuple[str, ...]
    variadic: str = ""  # the name under which it takes any number of further arguments


def canonical(fsig: str) -> str:
    """One spelling of each signature: ``aten.add.Tensor`` for ``torch.ops.aten.add.Tensor``."""
    if fsig.startswith("_operator."):
        return fsig[1:]
    return "aten." + fsig.removeprefix(_ATEN) if fsig.startswith(_ATEN) else fsig


def function_of(call: OpCall) -> Callee:
    """The function that `call` names, with parameter names that fit its arguments."""
    fsig = canonical(call.fsig)
    run = _resolve(fsig, call.imports)
    if fsig.removeprefix("operator.") in OPERATORS:
        return Callee(run, ("self", "exponent" if fsig == "operator.pow" else "other"))
    if isinstance(run, torch._ops.OpOverload):
        return Callee(run, _schema_names(run))
    try:
        return _inspected(run)
    except ValueError:  # a builtin of torch: its parameters are those of the aten op of that name
        return Callee(run, _builtin_names(call))


@cache
def _resolve(fsig: str, imports: str) -> Callable[..., Any]:
    namespace = imported(imports) if imports else {}
    if fsig in EQUIVALENTS:
        equivalents = import_module("dumpcmp.partitioning.equivalents")
        return getattr(equivalents, EQUIVALENTS[fsig])  # type: ignore[no-any-return]
    if fsig.startswith(("aten.", "torch.ops.")):
        return _overload(fsig)
    first, *rest = fsig.split(".")
    if first in namespace:
        return _attribute(namespace[first], rest, fsig)
    return resolved(fsig)


def _overload(fsig: str) -> torch._ops.OpOverload:
    """The op ``aten.relu.default``, or the first of ``aten.relu``: no other attribute is asked."""
    namespace, *words = fsig.removeprefix("torch.ops.").split(".")
    packet = getattr(getattr(torch.ops, namespace, None), words[0], None) if words else None
    if isinstance(packet, torch._ops.OpOverloadPacket) and len(words) < 3:
        overloads = packet.overloads()  # type: ignore[no-untyped-call]
        if words[1:] == [] or words[1] in overloads:
            return getattr(packet, (words[1:] or overloads)[0])  # type: ignore[no-any-return]
    raise PartitionError(f"no function {fsig!r}", hint="write it as aten.add.Tensor")


def resolved(fsig: str) -> Callable[..., Any]:
    """The function at the dotted path `fsig`."""
    words = fsig.split(".")
    for length in range(len(words) - 1, 0, -1):
        try:
            module = import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        return _attribute(module, words[length:], fsig)
    raise PartitionError(
        f"no function {fsig!r}", hint="import it in import_customized_func, or write its full path"
    )


def _attribute(thing: Any, words: list[str], fsig: str) -> Callable[..., Any]:
    for word in words:
        if not hasattr(thing, word):
            raise PartitionError(f"no function {fsig!r}: {thing!r} has no {word!r}")
        thing = getattr(thing, word)
    if isinstance(thing, torch._ops.OpOverloadPacket):
        thing = getattr(thing, thing.overloads()[0])  # type: ignore[no-untyped-call]
    if not callable(thing):
        raise PartitionError(f"{fsig!r} is not a function, but {thing!r}")
    return thing  # type: ignore[no-any-return]


def imported(statements: str) -> dict[str, Any]:
    """The names that the import `statements` bind. Anything but an import is refused, unexecuted.

    The statements are read as a syntax tree and carried out by the import system; the text itself
    never runs.
    """
    try:
        tree = ast.parse(statements)
    except SyntaxError as error:
        raise PartitionError(
            f"import_customized_func {statements!r} is not Python: {error}"
        ) from None
    nodes: list[ast.Import | ast.ImportFrom] = []
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "level", None):
            raise PartitionError(
                f"import_customized_func holds {ast.unparse(node)!r}, which is not an import",
                hint="write 'import package' or 'from package import function' lines only",
            )
        nodes.append(node)
    return dict(pair for node in nodes for pair in _bound(node))


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Any]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, _member(node.module or "", alias.name)
        elif alias.asname:
            yield alias.asname, _module(alias.name)
        else:  # "import a.b" binds a, and brings b
            _module(alias.name)
            top = alias.name.split(".")[0]
            yield top, _module(top)


def _member(module: str, name: str) -> Any:
    home = _module(module)
    return getattr(home, name) if hasattr(home, name) else _module(f"{module}.{name}")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise PartitionError(f"import_customized_func: cannot import {name!r}: {error}") from None


def _schema_names(op: torch._ops.OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in op._schema.arguments)


def _inspected(run: Callable[..., Any]) -> Callee:
    parameters = inspect.signature(run).parameters.values()
    several = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = tuple(p.name for p in placed)
    return Callee(run, named, several[0] if several else "")


def _builtin_names(call: OpCall) -> tuple[str, ...]:
    packet = getattr(torch.ops.aten, call.fsig.split(".")[-1], None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet else []
    fitting = [op for op in overloads if _fits(op, call)]
    if fitting or overloads:
        return _schema_names((fitting or overloads)[0])
    return tuple(f"arg{i}" for i in range(len(call.args)))


def _fits(op: torch._ops.OpOverload, call: OpCall) -> bool:
    """Whether `op` takes as many arguments, under these names, and tensors where there are some."""
    parameters = op._schema.arguments
    rest = {parameter.name for parameter in parameters[len(call.args) :]}
    if len(call.args) > len(parameters) or not set(call.kwargs) <= rest:
        return False
    return all(
        isinstance(arg, TensorInfo) == ("Tensor" in str(parameter.type))
        for arg, parameter in zip(call.args, parameters, strict=False)
        if arg is not None and not isinstance(arg, list | tuple)
    )


def folded(call: OpCall) -> OpCall:
    """`call` with the sizes of a method, given one by one as in ``x.view(2, 3)``, as a list.

    ``_stacklevel``, where a softmax of torch.nn.functional would warn, says nothing here.
    """
    if "_stacklevel" in call.kwargs:
        kwargs = {name: value for name, value in call.kwargs.items() if name != "_stacklevel"}
        call = OpCall(call.fsig, call.args, kwargs, call.imports)
    first, *rest = call.args or (None,)
    sizes = rest and all(isinstance(size, int) for size in rest)
    method = call.fsig.removeprefix("torch.Tensor.")
    if not sizes or method not in ("view", "reshape", "expand", "repeat", "permute"):
        return call
    return OpCall(call.fsig, (first, list(rest)), call.kwargs, call.imports)
