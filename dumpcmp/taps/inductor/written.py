"""What the kernels of a graph have written so far, read off Inductor's scheduler between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from dumpcmp.pytorch.names import private

_WORD = re.compile(r"\w+")
_NO_TENSOR = ("torch._inductor.ir:NoneLayout", "torch._inductor.ir:MultiOutputLayout")


@dataclass(frozen=True, slots=True)
class Written:
    """A value that the generated code has just computed."""

    variable: str  # the Python variable that holds it, "buf3"
    origin: fx.Node | None  # the node of the post-grad graph whose value it is, where known
    origins: tuple[fx.Node, ...]  # all nodes that were computed on the way
    kernel: str  # and which call of it: "cpp_fused_add_2#17", "extern_kernels.mm#buf4"
    is_readable: bool  # False: it never leaves the kernel, there is nothing to read

    @property
    def name(self) -> str:
        """The node whose value it is, or all that were computed on the way."""
        if self.origin is not None:
            return self.origin.name
        return "+".join(sorted(node.name for node in self.origins))


def lowering() -> Any:
    """The graph whose code is being generated, as Inductor holds it."""
    return private("torch._inductor.virtualized:V").graph


def is_outermost(graph: Any) -> bool:
    """Whether `graph` is no subgraph of a higher-order op: those we do not extend."""
    return not isinstance(graph, private("torch._inductor.graph:SubgraphLowering"))


def noting_kernel(original: Callable[..., Any], wrapper: Any, name: str, args: Any, *rest: Any,
                  **options: Any) -> Any:  # fmt: skip
    """Write a call of the kernel `name`, and remember for each of its buffers that it was last."""
    kernels = _noted("kernels", {})
    kernels[""] = call = f"{name}#{len(kernels)}"
    kernels.update(dict.fromkeys(_WORD.findall(" ".join(map(str, args))), call))
    return original(wrapper, name, args, *rest, **options)


def _noted(word: str, start: Any) -> Any:
    """What we remember of the graph whose code is being generated: it lies on the graph itself."""
    return lowering().__dict__.setdefault(f"dumpcmp_{word}", start)


def newly_written(scheduler: Any) -> Iterator[Written]:
    """What kernels computed since the last time."""
    seen: set[str] = _noted("seen", set())
    kernels: dict[str, str] = _noted("kernels", {})
    waiting = _waiting(scheduler)
    for group in _written_nodes(scheduler):
        members = [node for node in group.get_nodes() if node.get_name() not in seen]
        if any(node.get_name() in waiting for node in members):
            continue
        shared = _shared_kernel(members, kernels)
        for node in members:
            seen.add(node.get_name())
            for output in node.get_outputs():
                kernel = kernels.get(output.get_name(), shared)
                yield Written(
                    _variable(scheduler, output),
                    _origin(scheduler, node, output),
                    _origins(node),
                    _extern_call(node.node) if node.is_extern() else kernel,
                    _is_readable(scheduler, node, output),
                )


def _written_nodes(scheduler: Any) -> Iterator[Any]:
    """The scheduled nodes in order, up to the one whose code was written last."""
    current = scheduler.current_node
    for group in scheduler.nodes if current is not None else ():
        yield group
        if group is current:
            return


def _waiting(scheduler: Any) -> set[str]:
    """Nodes that the C++ backend has gathered into a kernel which it has not called yet."""
    cpp = private("torch._inductor.codegen.cpp:CppScheduling")
    groups = [b.kernel_group for b in scheduler.backends.values() if isinstance(b, cpp)]
    return {node.get_name() for group in groups for node in group.scheduled_nodes}


def _shared_kernel(nodes: Sequence[Any], kernels: dict[str, str]) -> str:
    """The kernel that `nodes` were fused into, known from those of its buffers that it stores."""
    named = [kernels.get(o.get_name(), "") for node in nodes for o in node.get_outputs()]
    return next((kernel for kernel in named if kernel), kernels.get("", ""))


def _variable(scheduler: Any, output: Any) -> str:
    """The buffer that holds `output`: itself, or the one that it changes in place."""
    name: str = output.get_name()
    return str(scheduler.mutation_real_name.get(name, name))


def _is_readable(scheduler: Any, node: Any, output: Any) -> bool:
    graph, name, variable = lowering(), output.get_name(), _variable(scheduler, output)
    removed, wrapper = graph.removed_buffers, graph.wrapper_code
    if name in removed or variable in removed:
        return False
    if name in graph.inplaced_to_remove or variable in wrapper.freed:
        return False
    if isinstance(output.node.get_output_spec(), tuple(map(private, _NO_TENSOR))):
        torchbind = private("torch._inductor.ir:TorchBindObject")
        return variable != name and not isinstance(output.node, torchbind)
    return variable in wrapper.allocated or variable != name or bool(node.is_extern())


def _extern_call(operation: Any) -> str:
    """The kernel that is called, and which call of it; one for all of its outputs."""
    if isinstance(operation, private("torch._inductor.ir:MultiOutput")):
        operation = operation.inputs[0]
    kernel = getattr(operation, "python_kernel_name", None) or type(operation).__name__
    return f"{kernel}#{operation.get_name()}"


def _origin(scheduler: Any, node: Any, output: Any) -> fx.Node | None:
    """The node whose value `output` is.

    Of a buffer that the same node changes in place later on (an accumulating scatter), only the
    last state is the node's value.
    """
    origin: fx.Node | None = node.node.get_origin_node()
    name = output.get_name()
    if name in scheduler.mutation_real_name:
        return origin or _mutated_origin(scheduler, node, name)
    if origin is None:
        return _argument_origin(scheduler, name)
    later = [n for n in _mutators(scheduler, name) if origin in n.node.origins]
    return None if later else origin


def _argument_origin(scheduler: Any, name: str) -> fx.Node | None:
    """The node whose value an op is given that Inductor calls as it stands: a copy of it is made.

    Its arguments are those of its node, in the same order.
    """
    buffer = scheduler.name_to_buf.get(name)
    called = private("torch._inductor.ir:FallbackKernel")
    for user in () if buffer is None else buffer.users:
        operation: Any = getattr(user.node, "node", None)
        node = operation.get_origin_node() if isinstance(operation, called) else None
        if node is None or operation.op_overload is not node.target:
            continue
        given = [each for each in pytree.tree_leaves((node.args, node.kwargs)) if _is_tensor(each)]
        names = [each.get_name() for each in operation.inputs]
        if len(names) == len(given) and name in names:
            origin: fx.Node = given[names.index(name)]
            return origin
    return None


def _is_tensor(argument: object) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), Tensor)


def _mutators(scheduler: Any, name: str) -> list[Any]:
    changed = {new for new, real in scheduler.mutation_real_name.items() if real == name}
    nodes = [n for group in scheduler.nodes for n in group.get_nodes()]
    return [n for n in nodes if any(o.get_name() in changed for o in n.get_outputs())]


def _mutated_origin(scheduler: Any, node: Any, name: str) -> fx.Node | None:
    """The node of a buffer whose last change is `node`, if the change is a part of that node."""
    real = scheduler.mutation_real_name[name]
    last = _mutators(scheduler, real)[-1:]
    buffer = scheduler.name_to_buf.get(real)
    if last != [node] or buffer is None:
        return None
    origin: fx.Node | None = buffer.node.get_origin_node()
    return origin if origin in node.node.origins else None


def _origins(node: Any) -> tuple[fx.Node, ...]:
    """The nodes that `node` computes. An extern kernel lists its inputs' nodes too: not those."""
    operation = node.node
    origin = operation.get_origin_node()
    if not node.is_extern():
        return tuple(operation.get_origins())
    if origin is not None:
        return (origin,)
    overload = getattr(operation, "op_overload", None)
    return tuple(n for n in operation.get_origins() if overload and n.target is overload)
