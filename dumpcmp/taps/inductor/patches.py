"""All that dumpcmp touches of Inductor's private names, checked once before the first use."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from dumpcmp.nouns.errors import CaptureError

# Module -> the names of it that the tap replaces or reads. `check_names` looks for each.
_NAMES = {
    "torch._inductor.scheduler": (
        "NodeUser",
        "OutputNode",
        "StarDep",
        "Scheduler.dead_node_elimination",
        "Scheduler.free_buffers",
        "Scheduler.can_buffer_be_removed_through_fusion",
    ),
    "torch._inductor": ("aoti_load_package",),
    "torch._inductor.graph": ("GraphLowering.codegen", "GraphLowering.run"),
    "torch._inductor.codecache": ("PyCodeCache.load",),
    "torch._inductor.compile_fx": ("compile_fx",),
    "torch._inductor.config": (
        "patch",
        "cpp_wrapper",
        "post_grad_custom_pre_pass",
        "post_grad_custom_post_pass",
    ),
    "torch._inductor.custom_graph_pass": ("CustomGraphPass",),
    "torch._inductor.virtualized": ("V",),
    "torch._inductor.codegen.wrapper": ("PythonWrapperCodegen.generate_kernel_call",),
    "torch._inductor.codegen.cpp": ("CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM",),
    "torch._dynamo.eval_frame": ("skip_code",),
    "torch._C._dynamo.eval_frame": ("get_eval_frame_callback",),
    "torch._guards": ("TracingContext.try_get",),
    "torch._subclasses.functional_tensor": ("FunctionalTensor",),
    "torch.fx.experimental.proxy_tensor": ("get_proxy_mode", "get_proxy_slot"),
    "torch.fx.experimental.symbolic_shapes": ("PropagateUnbackedSymInts.run_node",),
    "torch.compiler.config": ("patch", "cache_key_tag"),
}

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Written:
    """A value that the generated code has just computed."""

    variable: str  # the Python variable that holds it, "buf3"
    origin: fx.Node | None  # the node of the post-grad graph whose value it is, where known
    origins: tuple[fx.Node, ...]  # all nodes that were computed on the way
    kernel: str  # and which call of it: "cpp_fused_add_2#17", "extern_kernels.mm#buf4"
    alive: bool  # False: it never leaves the kernel, there is nothing to read


@dataclass(frozen=True, slots=True)
class Twin:
    """Code of a graph that was written a second time, with more of its nodes stored."""

    code: str
    changed: tuple[int, ...]  # the arguments that the code of the first time writes to


Again = Callable[[Iterable[fx.Node]], Twin]


class Watcher(Protocol):
    """What the tap wants to be told while a graph is compiled."""

    def wants(self) -> bool:
        """Whether the graph that is about to be compiled is to be tapped."""
        ...

    def compiling(self, graph: fx.GraphModule) -> None:
        """Dynamo's `graph` is about to be compiled."""
        ...

    def compiled(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run` is what was made of the graph; returns what is run in its place."""
        ...

    def is_body(self, nodes: fx.Graph) -> bool:
        """Whether `nodes` are those of a checkpointed region in the graph being traced."""
        ...

    def tracing(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        """AOTAutograd is about to trace `node` of dynamo's graph on these values."""
        ...

    def traced(self, node: fx.Node, result: object) -> None:
        """AOTAutograd traced `node`, which gave `result`."""
        ...

    def written(self, values: Sequence[Written]) -> list[str]:
        """Kernels were written that compute `values`; returns the lines to add after them."""
        ...

    def generated(self, graph: fx.GraphModule, code: str, again: Again) -> str:
        """All `code` of post-grad `graph` was written; returns what to add at its end.

        `again` writes the code of the same graph with some of its nodes stored as well.
        """
        ...


def check_names() -> None:
    """Fail now, and clearly, if this torch lacks a name that the tap needs."""
    missing = [
        f"{module}.{name}" for module, names in _NAMES.items() for name in names
        if not _present(module, name)
    ]  # fmt: skip
    if missing:
        raise CaptureError(
            f"torch {torch.__version__} has no {', '.join(missing)}, which --mode compiled needs",
            hint="use torch 2.11 to 2.13, or --mode boundary --backend inductor, which needs none",
        )


def _present(module: str, name: str) -> bool:
    try:
        found: Any = import_module(module)
    except ImportError:
        return False
    for word in name.split("."):
        if not hasattr(found, word):
            return False
        found = getattr(found, word)
    return True


def unwrapped(error: BaseException) -> BaseException:
    """Our own error out of the one that dynamo wraps around what its backend raises."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, CaptureError) else error


def traced_node(tensor: Tensor) -> fx.Node | None:
    """The node of the graph being traced whose value `tensor` now is; None outside of tracing."""
    proxies = import_module("torch.fx.experimental.proxy_tensor")
    functional = import_module("torch._subclasses.functional_tensor").FunctionalTensor
    mode = proxies.get_proxy_mode()
    if mode is None:
        return None
    if isinstance(tensor, functional):
        unwrap: Any = torch
        unwrap._sync(tensor)
        tensor = unwrap._from_functional_tensor(tensor.elem)
    proxy = proxies.get_proxy_slot(tensor, mode.tracer, None, lambda slot: slot.proxy)
    return None if proxy is None else proxy.node


def sequence_number() -> int:
    """How many autograd nodes this thread has made."""
    autograd: Any = torch.autograd
    return int(autograd._get_sequence_nr())


def compile_context() -> object | None:
    """What stands for the graph that is being compiled, the same for its backward."""
    return import_module("torch._guards").TracingContext.try_get()  # type: ignore[no-any-return]


def compiled_by_inductor(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """What Inductor makes of dynamo's `graph`."""
    compiler = import_module("torch._inductor.compile_fx")
    compiled: Callable[..., Any] = compiler.compile_fx(graph, inputs)
    return compiled


def inside_compiled_callable() -> bool:
    """Whether this code was called by something that torch.compile made."""
    frames = import_module("torch._C._dynamo.eval_frame")
    return callable(frames.get_eval_frame_callback())


def skip_code(functions: Iterable[Any]) -> None:
    """Have dynamo run the frames of `functions` as they are, and trace what they call."""
    frames = import_module("torch._dynamo.eval_frame")
    for function in functions:
        frames.skip_code(function.__code__)


def is_backward() -> bool:
    """Whether the code that is being generated is of a backward graph."""
    return bool(_graph().is_backward)


def size_expression(number: object) -> str:
    """A symbolic size as Python code over the variables of the generated code."""
    graph = _graph()
    expression = number.node.expr if isinstance(number, torch.SymInt) else number
    return str(graph.wrapper_code.codegen_python_sizevar(graph.sizevars.simplify(expression)))


def _graph() -> Any:
    return import_module("torch._inductor.virtualized").V.graph


@dataclass(frozen=True, slots=True)
class Options:
    """How a tapped graph is compiled. `tag` keeps its code apart from untapped code in caches."""

    tag: str
    identity: Callable[[], str]  # names the graph in compilation, so that caches tell twins apart
    rewriting: Callable[[fx.Graph], None]  # told of each post-grad graph before passes change it
    realize: Callable[[fx.Graph], Iterable[fx.Node]]  # which nodes of it must be materialised
    unfused: bool = False
    materialized: bool = False  # what is realised is also stored, if only one kernel uses it


@contextmanager
def compilation_watched(watcher: Watcher, options: Options) -> Iterator[None]:
    """Tell `watcher` what is compiled, and compile as `options` say, while the block runs."""
    check_names()
    scheduler = import_module("torch._inductor.scheduler").Scheduler
    wrapper = import_module("torch._inductor.codegen.wrapper").PythonWrapperCodegen
    lowering = import_module("torch._inductor.graph").GraphLowering
    compiler = import_module("torch._inductor.compile_fx")
    shapes = import_module("torch.fx.experimental.symbolic_shapes")
    with ExitStack() as patches:
        for owner, name, around in (
            (scheduler, "free_buffers", _free_buffers),
            (wrapper, "generate_kernel_call", _generate_kernel_call),
            (lowering, "run", partial(_lower, options)),
            (lowering, "codegen", _codegen),
            (shapes.PropagateUnbackedSymInts, "run_node", _run_node),
            (fx.Interpreter, "run_node", _run_body_node),
            (compiler, "compile_fx", partial(_compile_fx, options)),
        ):
            patches.enter_context(_replaced(owner, name, around(watcher, getattr(owner, name))))
        inductor = import_module("torch._inductor")
        patches.enter_context(_replaced(inductor, "aoti_load_package", _refuse_package))
        if options.materialized:
            keep = "can_buffer_be_removed_through_fusion"
            patches.enter_context(_replaced(scheduler, keep, lambda *_: False))
        if options.unfused:
            cpp = import_module("torch._inductor.codegen.cpp").CppScheduling
            patches.enter_context(_replaced(cpp, "MAX_FUSED_KERNEL_ARGS_NUM", -1))
        patches.enter_context(_cache_tagged(options.tag))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _cache_tagged(tag: str) -> Iterator[None]:
    config = import_module("torch.compiler.config")
    with config.patch(cache_key_tag=f"{config.cache_key_tag}{tag}"):
        yield


Replace = Callable[..., Any]


def _free_buffers(watcher: Watcher, original: Replace) -> Replace:
    """Inductor frees what it no longer needs after each kernel: the moment to read values."""

    def free_buffers(scheduler: Any) -> None:
        if _watched(_graph()):
            for line in watcher.written(_new_values(scheduler)):
                _graph().wrapper_code.writeline(line)
        original(scheduler)

    return free_buffers


def _watched(graph: Any) -> bool:
    """Whether `graph` is one whose code we extend: no subgraph of a higher-order op."""
    return hasattr(graph, "wrapper_code") and getattr(graph, "parent", None) is None


def _new_values(scheduler: Any) -> list[Written]:
    """What kernels computed since the last call; `dumpcmp_seen` on the graph remembers."""
    graph = _graph()
    seen: set[str] = graph.__dict__.setdefault("dumpcmp_seen", set())
    kernels: dict[str, str] = graph.__dict__.setdefault("dumpcmp_kernels", {})
    waiting = _waiting(scheduler)
    found = []
    for group in _written_nodes(scheduler):
        members = [n for n in group.get_nodes() if n.get_name() not in seen]
        if any(n.get_name() in waiting for n in members):
            continue
        shared = _shared_kernel(members, kernels)
        for node in members:
            seen.add(node.get_name())
            found += _values_of(scheduler, node, kernels, shared)
    return found


def _written_nodes(scheduler: Any) -> Iterator[Any]:
    """The scheduled nodes in order, up to the one whose code was written last."""
    current = scheduler.current_node
    for group in scheduler.nodes if current is not None else ():
        yield group
        if group is current:
            return


def _waiting(scheduler: Any) -> set[str]:
    """Nodes that the C++ backend has gathered into a kernel which it has not called yet."""
    groups = [getattr(b, "kernel_group", None) for b in scheduler.backends.values()]
    return {n.get_name() for g in groups if g is not None for n in g.scheduled_nodes}


def _shared_kernel(nodes: Sequence[Any], kernels: dict[str, str]) -> str:
    """The kernel that `nodes` were fused into, known from those of its buffers that it stores."""
    named = [kernels.get(o.get_name(), "") for node in nodes for o in node.get_outputs()]
    return next((kernel for kernel in named if kernel), kernels.get("", ""))


def _values_of(scheduler: Any, node: Any, kernels: dict[str, str], shared: str) -> list[Written]:
    found = []
    for output in node.get_outputs():
        name = output.get_name()
        kernel = _extern_call(node) if _is_extern(node) else kernels.get(name, shared)
        found.append(
            Written(
                _variable(scheduler, output),
                _origin(scheduler, node, output),
                _origins(node),
                kernel,
                _readable(scheduler, node, output),
            )
        )
    return found


def _variable(scheduler: Any, output: Any) -> str:
    """The buffer that holds `output`: itself, or the one that it changes in place."""
    name: str = output.get_name()
    return str(scheduler.mutation_real_name.get(name, name))


def _readable(scheduler: Any, node: Any, output: Any) -> bool:
    graph, name = _graph(), output.get_name()
    wrapper, variable = graph.wrapper_code, _variable(scheduler, output)
    if name in graph.removed_buffers or name in graph.inplaced_to_remove:
        return False
    if variable in graph.removed_buffers or variable in wrapper.freed:
        return False
    if type(output.node.get_output_spec()).__name__ in ("NoneLayout", "MultiOutputLayout"):
        return variable != name and not _is_none(output)
    return variable in wrapper.allocated or variable != name or _is_extern(node)


def _is_none(output: Any) -> bool:
    return type(output.node).__name__ == "TorchBindObject"


def _is_extern(node: Any) -> bool:
    return bool(node.is_extern())


def _extern_call(node: Any) -> str:
    """The kernel that is called, and which call of it; one for all of its outputs."""
    operation = node.node
    if type(operation).__name__ == "MultiOutput":
        operation = operation.inputs[0]
    kernel = getattr(operation, "python_kernel_name", None) or type(operation).__name__
    return f"{kernel}#{operation.get_name()}"


def _origin(scheduler: Any, node: Any, output: Any) -> fx.Node | None:
    """The node whose value `output` is.

    Of a buffer that the same node changes in place later on (an accumulating scatter), only the
    last state is the node's value.
    """
    origin = node.node.get_origin_node()
    name = output.get_name()
    if name in scheduler.mutation_real_name:
        return origin or _mutated_origin(scheduler, node, name)
    later = [n for n in _mutators(scheduler, name) if origin in n.node.origins]
    return None if later else origin


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
    origin = buffer.node.get_origin_node()
    return origin if origin in node.node.origins else None


def _origins(node: Any) -> tuple[fx.Node, ...]:
    """The nodes that `node` computes. An extern kernel lists its inputs' nodes too: not those."""
    operation = node.node
    origin = operation.get_origin_node()
    if not _is_extern(node):
        return tuple(operation.get_origins())
    if origin is not None:
        return (origin,)
    overload = getattr(operation, "op_overload", None)
    return tuple(
        n for n in operation.get_origins() if overload is not None and n.target is overload
    )


def _generate_kernel_call(_: Watcher, original: Replace) -> Replace:
    """Remember which kernel each buffer was passed to last."""

    def generate_kernel_call(self: Any, name: str, args: Any, *rest: Any, **options: Any) -> Any:
        kernels = _graph().__dict__.setdefault("dumpcmp_kernels", {})
        kernels[""] = call = f"{name}#{len(kernels)}"
        for word in _WORD.findall(" ".join(map(str, args))):
            kernels[word] = call
        return original(self, name, args, *rest, **options)

    return generate_kernel_call


def _codegen(watcher: Watcher, original: Replace) -> Replace:
    def codegen(lowering: Any) -> Any:
        if getattr(lowering, "aot_mode", False):
            _refuse_package()
        wrapper, kernels = original(lowering)
        if hasattr(wrapper, "value") and _watched(lowering):
            again = partial(_written_again, original, lowering)
            wrapper.value += watcher.generated(lowering.module, wrapper.value, again)
        return wrapper, kernels

    return codegen


def _written_again(codegen: Replace, lowering: Any, stored: Iterable[fx.Node]) -> Twin:
    """Lower the graph of `lowering` once more, with `stored` materialised."""
    handlers = import_module("torch._inductor.virtualized").V
    twin = type(lowering)(
        lowering.module,
        example_inputs=lowering.example_inputs,
        shape_env=lowering._shape_env,
        graph_id=lowering.graph_id,
        is_inference=lowering.is_inference,
        is_backward=lowering.is_backward,
        inputs_to_check=lowering.inputs_to_check,
    )
    with (
        _copying(twin, set(stored)),
        handlers.set_graph_handler(twin),
        handlers.set_extern_kernel_nodes([]),
    ):
        twin.run(*lowering.example_inputs)
        code = codegen(twin)[0].value
    if not set(twin.constants) <= set(lowering.constants):
        raise CaptureError("the twin of a graph has constants that the graph does not have")
    donated = lowering.bw_donated_idxs or ()
    return Twin(code, tuple(sorted({*lowering.mutated_input_idxs, *donated})))


@contextmanager
def _copying(lowering: Any, nodes: set[fx.Node]) -> Iterator[None]:
    """Have `lowering` store a copy of the value of each of `nodes`, which nothing else reads.

    The expressions that other nodes are computed by stay as they are: to store the value
    itself would have them read it back, rounded to its dtype.
    """
    scheduling = import_module("torch._inductor.scheduler")
    eliminate, run_node = scheduling.Scheduler.dead_node_elimination, lowering.run_node
    copies: list[str] = []

    def copying(node: fx.Node) -> Any:
        result = run_node(node)
        if node in nodes:
            copies.extend(_stored_copy(node, result))
        return result

    def eliminating(scheduler: Any) -> None:
        for name in copies:
            reader = scheduling.OutputNode(scheduling.StarDep(name))
            scheduler.name_to_buf[name].users.append(scheduling.NodeUser(reader))
        eliminate(scheduler)

    lowering.run_node = copying
    with (
        import_module("torch._inductor.config").patch(inplace_buffers=False),
        _replaced(scheduling.Scheduler, "dead_node_elimination", eliminating),
    ):
        yield


def _stored_copy(node: fx.Node, value: Any) -> Iterator[str]:
    """The name of a new buffer that holds what `node` was lowered to."""
    ir = import_module("torch._inductor.ir")
    clone = import_module("torch._inductor.lowering").clone
    if not isinstance(value, ir.TensorBox):
        return
    with ir.IRNode.current_origins({node}):
        copy = clone(value)
        copy.data.data._post_init_setattr("origin_node", node)
        yield copy.realize() or copy.get_name()


def load_code(code: str, constants: Mapping[str, Any]) -> Any:
    """The module of generated `code`; of its `constants`, those that it leaves open are set."""
    cache = import_module("torch._inductor.codecache").PyCodeCache
    module = cache.load(code)
    for name in [name for name, value in vars(module).items() if value is None]:
        if constants.get(name) is not None:
            setattr(module, name, constants[name])
    return module


def _refuse_package(*_: Any, **__: Any) -> None:
    raise CaptureError(
        "an AOTInductor package has no Python code to tap",
        hint="dump the program that it was made of, under torch.compile, with --mode compiled",
    )


def _run_node(watcher: Watcher, original: Replace) -> Replace:
    """AOTAutograd traces dynamo's graph by running it node by node, and bodies in it as well."""

    def run_node(interpreter: Any, node: fx.Node) -> Any:
        if node.op not in ("placeholder", "output", "get_attr"):
            args, kwargs = interpreter.fetch_args_kwargs_from_env(node)
            watcher.tracing(node, args, kwargs)
        result = original(interpreter, node)
        watcher.traced(node, result)
        return result

    return run_node


def _run_body_node(watcher: Watcher, original: Replace) -> Replace:
    watched = _run_node(watcher, original)

    def run_node(interpreter: Any, node: fx.Node) -> Any:
        plain = type(interpreter) is fx.Interpreter and watcher.is_body(node.graph)
        return (watched if plain else original)(interpreter, node)

    return run_node


def _compile_fx(options: Options, watcher: Watcher, original: Replace) -> Replace:
    """The door of Inductor. It calls itself with `config_patches` in force, which we let pass."""
    config = import_module("torch._inductor.config")
    inner = inspect.signature(original).parameters["inner_compile"].default

    def compile_fx(model: Any, inputs: Any, inner_compile: Any = inner, **rest: Any) -> Any:
        if rest.get("config_patches") or not watcher.wants():
            return original(model, inputs, inner_compile, **rest)
        refuse_cpp_wrapper()
        watcher.compiling(model)
        patches = _config_patches(options)
        with config.patch(patches):
            run = original(model, inputs, config.patch(patches)(inner_compile), **rest)
        return watcher.compiled(run)

    return compile_fx


def refuse_cpp_wrapper() -> None:
    """Raise if Inductor is set to write C++ instead of the Python code that the tap extends."""
    config = import_module("torch._inductor.config")
    for setting in ("cpp_wrapper", "fx_wrapper"):
        if getattr(config, setting, False):
            raise CaptureError(
                f"torch._inductor.config.{setting} is on: Inductor writes no Python code to tap",
                hint=f"turn {setting} off for this dump (unset TORCHINDUCTOR_{setting.upper()}), "
                "or use --mode boundary --backend inductor",
            )


def _config_patches(options: Options) -> dict[str, Any]:
    config = import_module("torch._inductor.config")
    patches: dict[str, Any] = {
        "post_grad_custom_pre_pass": _around(
            config.post_grad_custom_pre_pass, options, before=options.rewriting
        ),
        "post_grad_custom_post_pass": _around(
            config.post_grad_custom_post_pass, options, after=partial(_mark_realized, options)
        ),
    }
    if options.materialized:  # patterns put several ops into one call, such as mm and add
        patches |= {"inplace_buffers": False, "pattern_matcher": False}
    if options.unfused:
        patches["max_fusion_size"] = 1
    patches["triton.cudagraphs"] = False  # a replayed CUDA graph runs none of the tap's lines
    return patches


def _mark_realized(options: Options, graph: fx.Graph) -> None:
    for node in options.realize(graph):
        node.meta["inductor_realize_to_strides"] = True


def _lower(options: Options, _: Watcher, original: Replace) -> Replace:
    """Some passes run after all custom ones: what they made is marked before it is lowered."""

    def run(lowering: Any, *args: Any) -> Any:
        if options.unfused and getattr(lowering, "parent", None) is None:
            _mark_realized(options, lowering.module.graph)
        return original(lowering, *args)

    return run


def _nothing(_: fx.Graph) -> None: ...


def _around(
    theirs: Any,
    options: Options,
    before: Callable[[fx.Graph], None] = _nothing,
    after: Callable[[fx.Graph], None] = _nothing,
) -> Any:
    """The user's own passes with ours around them, which only look and mark.

    Its uuid is a part of cache keys; code that is cached belongs to the graph that it names.
    """
    base: Any = import_module("torch._inductor.custom_graph_pass").CustomGraphPass
    if hasattr(theirs, "dumpcmp_options"):
        return theirs
    users = list(theirs) if isinstance(theirs, (list, tuple)) else [theirs] if theirs else []

    class Pass(base):  # type: ignore[misc]
        dumpcmp_options = options

        def __call__(self, graph: fx.Graph) -> None:
            for each in (before, *users, after):
                each(graph)

        def uuid(self) -> str | None:
            named = [user.uuid() if isinstance(user, base) else None for user in users]
            return None if None in named else f"{options.tag}{options.identity()}{named}"

    return Pass()
