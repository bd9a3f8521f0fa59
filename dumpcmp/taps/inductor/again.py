"""Writes the code of a graph a second time, with more of its values stored: its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import fx

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.names import private


def lowered_again(
    graph: Any, codegen: Callable[..., Any], stored: Iterable[fx.Node]
) -> tuple[str, tuple[int, ...]]:
    """The code of Inductor's `graph` with `stored` nodes copied out.

    Beside it, which arguments the code of the first time writes to.
    """
    handlers = private("torch._inductor.virtualized:V")
    twin = type(graph)(
        graph.module,
        example_inputs=graph.example_inputs,
        shape_env=graph._shape_env,
        graph_id=graph.graph_id,
        is_inference=graph.is_inference,
        is_backward=graph.is_backward,
        inputs_to_check=graph.inputs_to_check,
    )
    with (
        _copying(twin, set(stored)),
        handlers.set_graph_handler(twin),
        handlers.set_extern_kernel_nodes([]),
    ):
        twin.run(*graph.example_inputs)
        code = codegen(twin)[0].value
    if not set(twin.constants) <= set(graph.constants):
        raise CaptureError("the twin of a graph has constants that the graph does not have")
    donated = graph.bw_donated_idxs or ()
    return code, tuple(sorted({*graph.mutated_input_idxs, *donated}))


@contextmanager
def _copying(twin: Any, nodes: set[fx.Node]) -> Iterator[None]:
    """Have `twin` store a copy of the value of each of `nodes`, which nothing else reads.

    The expressions that other nodes are computed by stay as they are: to store the value
    itself would have them read it back, rounded to its dtype.
    """
    run_node, copies = twin.run_node, list[str]()

    def copying(node: fx.Node) -> Any:
        result = run_node(node)
        if node in nodes:
            copies.extend(_stored_copy(node, result))
        return result

    def eliminating(original: Callable[..., Any], scheduler: Any) -> None:
        scheduling = private("torch._inductor.scheduler")
        for name in copies:
            reader = scheduling.OutputNode(scheduling.StarDep(name))
            scheduler.name_to_buf[name].users.append(scheduling.NodeUser(reader))
        original(scheduler)

    twin.run_node = copying
    with (
        private("torch._inductor.config:patch")(inplace_buffers=False),
        standing_in("torch._inductor.scheduler:Scheduler.dead_node_elimination", eliminating),
    ):
        yield


def _stored_copy(node: fx.Node, value: Any) -> Iterator[str]:
    """The name of a new buffer that holds what `node` was lowered to."""
    ir = private("torch._inductor.ir")
    if isinstance(value, ir.TensorBox):
        with ir.IRNode.current_origins({node}):
            copy = private("torch._inductor.lowering:clone")(value)
            copy.data.data._post_init_setattr("origin_node", node)
            yield copy.realize() or copy.get_name()


def load_code(code: str, constants: Mapping[str, Any]) -> Any:
    """The module of generated `code`; of its `constants`, those that it leaves open are set."""
    module = private("torch._inductor.codecache:PyCodeCache").load(code)
    for name in [name for name, value in vars(module).items() if value is None]:
        if constants.get(name) is not None:
            setattr(module, name, constants[name])
    return module


def standing_in(path: str, ours: Callable[..., Any]) -> Any:
    """A block in which `ours` is called for what `path` names, and is given that first."""

    def around(original: Any) -> Any:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return ours(original, *args, **kwargs)

        return stand_in

    return replaced(path, around)


@contextmanager
def replaced(path: str, changed: Callable[[Any], Any]) -> Iterator[None]:
    """Have what `path` names replaced by what `changed` makes of it, while the block runs."""
    module, _, attribute = path.partition(":")
    holder, _, name = attribute.rpartition(".")
    owner = private(f"{module}:{holder}" if holder else module)
    original = owner.__dict__[name]
    setattr(owner, name, changed(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
