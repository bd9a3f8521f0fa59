"""Captures FX graphs: dynamo traces each root module, an interpreter runs it node by node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from dumpcmp.taps.modes.functions import FunctionMode
from dumpcmp.taps.modes.modules import CallDoor, ModuleCapture, is_compile_wrapper, pointed_at
from dumpcmp.taps.recording.lines import traced_line
from dumpcmp.taps.recording.models import FunctionModel, Model
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.scopes import Scope, Scopes
from dumpcmp.taps.recording.step import Step

_BODY_RUNNERS = ("tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint")


_STEP: Any = ModuleCapture.step


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` without dynamo looking at what it does."""
    hidden: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return hidden


def untraced_mode(step: Step) -> FunctionMode:
    """The mode that records functions in `step`, with dynamo looking past it."""
    mode = FunctionMode(step)
    mode.run = untraced(mode.recorded)
    return mode


# Our own frames that surround the user's: dynamo must not trace them, but what they call.
UNTRACED: tuple[Any, ...] = (
    FunctionMode.__init__,
    FunctionMode.__torch_function__,
    untraced,
    untraced_mode,
    CallDoor.__get__,
    ModuleCapture._intercept,
    ModuleCapture._root_call,
    ModuleCapture._module_call,
    ModuleCapture._inside.__wrapped__,  # type: ignore[attr-defined]
    ModuleCapture._muting.__wrapped__,  # type: ignore[attr-defined]
    ModuleCapture._recording.__wrapped__,  # type: ignore[attr-defined]
    ModuleCapture.run_root,
    pointed_at.__wrapped__,  # type: ignore[attr-defined]
    is_compile_wrapper,
    Step.leave,
    Scopes.close,
)


class GraphCapture(ModuleCapture):
    """Runs every root module under dynamo and records the functions of its graphs.

    What dynamo leaves outside of its graphs, before and after graph breaks, runs eagerly and is
    recorded as in eager mode; the nodes inside get their module from the graph.
    """

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots, mode=untraced_mode)
        self.enter = untraced(self.enter)
        self.exit = untraced(self.exit)
        self.begin = untraced(self.begin)
        self._compiled: dict[int, Callable[..., Any]] = {}
        self._numbers: dict[str, itertools.count[int]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Capture while the block runs; what the program compiles itself is traced as it is."""
        from torch._dynamo import config, eval_frame

        for function in (*UNTRACED, GraphCapture._intercept, _STEP.fget):
            eval_frame.skip_code(function.__code__)
        self.compiles = True
        limits = {"recompile_limit": 1 << 16, "accumulated_recompile_limit": 1 << 16}
        forced = torch.compiler.set_stance("default", force_backend=self.backend)
        with super().running(), config.patch(**limits, suppress_errors=False), forced:
            yield

    def _intercept(self, module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
        step = self.step
        outermost = step is None or step.is_function
        if is_compile_wrapper(module) and outermost:  # traced for us, not for its backend
            module = module._orig_mod  # type: ignore[assignment]
            run = module._call_impl
        return super()._intercept(module, run)

    def run_root(
        self,
        step: Step,
        module: nn.Module,
        run: Callable[..., Any],  # noqa: ARG002
        args: Any,
        kwargs: Any,
    ) -> Any:
        """NodeRunner `module` under dynamo, whatever it was compiled with before."""
        compiled = self._compiled.get(id(module))
        if compiled is None:
            compiled = torch.compile(calling(module), backend=self.backend)
            self._compiled[id(module)] = compiled
        return super().run_root(step, module, compiled, args, kwargs)

    def backend(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """The torch.compile backend: what it returns runs `graph` and records it."""
        step = self.step
        if step is None:
            return graph.forward
        number = next(self._numbers.setdefault(step.model.name, itertools.count()))
        text = graph.print_readable(print_output=False)
        self.recorder.sink.text(step.model.name, f"graph-{number}.txt", text)
        homes = homes_of(graph, step.model, step.scope.path)

        def run(*args: Any) -> Any:
            now = self.step
            if now is None:
                return graph.forward(*args)
            return NodeRunner(graph, homes, now, self._here.mode).run(*args)

        return run


def calling(module: nn.Module) -> Callable[..., Any]:
    """A call of `module` as a function, since dynamo begins in no frame of torch's own modules."""
    run: Any = module._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__code__ = call.__code__.replace()  # its own, as dynamo remembers by code what to skip
    return call


def _runs_body(target: object) -> bool:
    return getattr(target, "__name__", "") in _BODY_RUNNERS


def body_of(node: fx.Node) -> fx.GraphModule | None:
    """The graph of the checkpointed region that `node` runs, if it runs one."""
    first = node.args[0] if node.args and _runs_body(node.target) else None
    if not isinstance(first, fx.Node) or first.op != "get_attr":
        return None
    body = getattr(node.graph.owning_module, str(first.target))
    return body if isinstance(body, fx.GraphModule) else None


@dataclass(frozen=True, slots=True)
class NodeHome:
    """Where a node stands: its module, as seen from the module that the graph began in."""

    path: str
    relative: bool
    instance: str  # tells two calls of one module apart: "id@1"
    line: str
    root: Callable[[], nn.Module | None] | None = None  # that a function calls
    root_instance: str = ""
    owner: str = ""  # the name of the root's model

    def under(self, base: str) -> str:
        """The module's path when the graph runs for the module `base`."""
        return f"{base}.{self.path}".strip(".") if self.relative else self.path


def homes_of(graph: fx.GraphModule, model: Model, base: str) -> dict[fx.Node, NodeHome]:
    """The homes of the nodes of `graph`, which was traced just now in the module at `base`.

    After a graph break one graph can serve several modules of a class, so that a path is kept
    relative to the module that was being called.
    """
    return {node: _home(node, base, model) for node in graph.graph.nodes}


def _home(node: fx.Node, base: str, model: Model) -> NodeHome:
    stack = node.meta.get("nn_module_stack") or {}
    line = traced_line(node.meta.get("stack_trace"))
    if not stack:
        return NodeHome("", True, "", line)
    if isinstance(model, FunctionModel):
        return _home_in_function(stack, line, model)
    instance = next(reversed(stack))
    path = model.paths.get(int(instance.partition("@")[0]), base)
    if path == base:
        return NodeHome("", True, "", line)
    inside = not base or path.startswith(base + ".")
    return NodeHome(path.removeprefix(base).lstrip(".") if inside else path, inside, instance, line)


def _home_in_function(stack: dict[str, Any], line: str, function: FunctionModel) -> NodeHome:
    """The home of a node that a compiled function's module computes; its root begins a step."""
    outermost, instance = next(iter(stack)), next(reversed(stack))
    root = function.root_with(_id_of(outermost))
    module = root()
    assert module is not None
    model = function.model_of(module)
    path = model.paths.get(_id_of(instance), "")
    return NodeHome(path, False, instance if path else "", line, root, outermost, model.name)


def _id_of(instance: str) -> int:
    return int(instance.partition("@")[0])


class Spots:
    """The steps and scopes of the module calls that one run of a graph stands for."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.base = step.scope
        self._scopes: dict[str, Scope] = {}
        self._steps: dict[str, Step | None] = {}

    def step_of(self, home: NodeHome) -> Step | None:
        """The step of an op at `home`, with its scope set; None where it is not selected."""
        step = self._step(home)
        if step is not None:
            base = self.base if step is self.step else step.root_scope
            step.stand_in(self._scope(step, home, base), home.line)
        return step

    def leave(self) -> None:
        """Go back to where the run of the graph began."""
        for step in self._steps.values():
            if step is not None:
                step.stand_in(step.root_scope)
        self.step.stand_in(self.base)

    def _step(self, home: NodeHome) -> Step | None:
        if home.root is None:
            return self.step
        if home.root_instance not in self._steps:
            root = home.root()
            inner = self.step.begin_inner(root) if root is not None else None
            self._steps[home.root_instance] = inner
        return self._steps[home.root_instance]

    def _scope(self, step: Step, home: NodeHome, base: Scope) -> Scope:
        if not home.instance:
            return base
        if home.instance not in self._scopes:
            self._scopes[home.instance] = step.new_scope(home.under(base.path))
        return self._scopes[home.instance]


class NodeRunner(fx.Interpreter):
    """One run of a graph: each node runs in the scope of its module, where `mode` records it."""

    def __init__(
        self, graph: fx.GraphModule, homes: dict[fx.Node, NodeHome], step: Step, mode: Any = None
    ) -> None:
        super().__init__(graph)
        self.homes = homes
        self.mode = mode  # is pointed at each step, since a function's graph has several
        self.spots = Spots(step)
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        home = self.homes.get(n)
        if home is None or n.op not in ("call_function", "call_method", "call_module"):
            return super().run_node(n)
        step = self.spots.step_of(home)
        if step is None:
            with pointed_at(self.mode, None):
                return super().run_node(n)
        try:
            with pointed_at(self.mode, step):
                return super().run_node(n)
        finally:
            self.spots.leave()

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """NodeRunner a function; the body of a checkpointed region is run node by node."""
        if _runs_body(target) and isinstance(args[0], fx.GraphModule):
            step, base = self.spots.step, self.spots.base
            inner = NodeRunner(args[0], homes_of(args[0], step.model, base.path), step, self.mode)
            inner.spots = self.spots
            return inner.run(*args[1:])
        return super().call_function(target, args, kwargs)
