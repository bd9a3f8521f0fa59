"""Captures FX graphs: dynamo traces each root module, an interpreter runs it node by node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from dumpcmp.capture.functions import FunctionMode
from dumpcmp.capture.lines import traced_line
from dumpcmp.capture.models import Model
from dumpcmp.capture.modules import CallDoor, ModuleCapture, is_compile_wrapper
from dumpcmp.capture.recorder import Recorder, Scope, Step

_BODY_RUNNERS = ("tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint")


# Our own frames that surround the user's: dynamo must not trace them, but what they call.
UNTRACED: tuple[Any, ...] = (
    FunctionMode.__torch_function__,
    CallDoor.__get__,
    ModuleCapture._intercept,
    ModuleCapture._root_call,
    ModuleCapture._module_call,
    ModuleCapture.run_root,
    is_compile_wrapper,
    Step.leave,
)


_STEP: Any = ModuleCapture.step


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` without dynamo looking at what it does."""
    hidden: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return hidden


def _untraced_mode(step: Step) -> FunctionMode:
    mode = FunctionMode(step)
    mode.run = untraced(mode.recorded)
    return mode


class GraphCapture(ModuleCapture):
    """Runs every root module under dynamo and records the functions of its graphs.

    What dynamo leaves outside of its graphs, before and after graph breaks, runs eagerly and is
    recorded as in eager mode; the nodes inside get their module from the graph.
    """

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots, mode=_untraced_mode)
        self.enter = untraced(self.enter)
        self.exit = untraced(self.exit)
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
        with super().running(), config.patch(**limits, suppress_errors=False):
            yield

    def _intercept(self, module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
        if is_compile_wrapper(module) and self.step is None:  # traced for us, not for its backend
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
        """Run `module` under dynamo, whatever it was compiled with before."""
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
        places = places_of(graph, step.model, step.scope.path)

        def run(*args: Any) -> Any:
            now = self.step
            if now is None:
                return graph.forward(*args)
            return Run(graph, places, now).run(*args)

        return run


def calling(module: nn.Module) -> Callable[..., Any]:
    """A call of `module` as a function, since dynamo begins in no frame of torch's own modules."""
    run: Any = module._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__code__ = call.__code__.replace()  # its own, as dynamo remembers by code what to skip
    return call


class Place:
    """Where a node stands: its module, as seen from the module that the graph began in."""

    __slots__ = ("instance", "line", "path", "relative")

    def __init__(self, path: str, relative: bool, instance: str, line: str) -> None:
        self.path = path
        self.relative = relative
        self.instance = instance  # tells two calls of one module apart: "id@1"
        self.line = line

    def under(self, base: str) -> str:
        """The module's path when the graph runs for the module `base`."""
        return f"{base}.{self.path}".strip(".") if self.relative else self.path


def places_of(graph: fx.GraphModule, model: Model, base: str) -> dict[fx.Node, Place]:
    """The places of the nodes of `graph`, which was traced just now in the module at `base`.

    After a graph break one graph can serve several modules of a class, so that a path is kept
    relative to the module that was being called.
    """
    return {node: _place(node, base, model) for node in graph.graph.nodes}


def _place(node: fx.Node, base: str, model: Model) -> Place:
    stack = node.meta.get("nn_module_stack") or {}
    line = traced_line(node.meta.get("stack_trace"))
    if not stack:
        return Place("", True, "", line)
    instance = next(reversed(stack))
    path = model.paths.get(int(instance.partition("@")[0]), base)
    if path == base:
        return Place("", True, "", line)
    inside = not base or path.startswith(base + ".")
    return Place(path.removeprefix(base).lstrip(".") if inside else path, inside, instance, line)


class Run(fx.Interpreter):
    """One run of a graph: each node runs in the scope of its module, where its mode records it."""

    def __init__(self, graph: fx.GraphModule, places: dict[fx.Node, Place], step: Step) -> None:
        super().__init__(graph)
        self.places = places
        self.step = step
        self.base = step.scope
        self.scopes: dict[str, Scope] = {}
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        place = self.places.get(n)
        if place is None or n.op not in ("call_function", "call_method", "call_module"):
            return super().run_node(n)
        self.step.scope = self._scope(place)
        self.step.line = place.line
        try:
            return super().run_node(n)
        finally:
            self.step.scope = self.base
            self.step.line = None

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; the body of a checkpointed region is run node by node."""
        if getattr(target, "__name__", "") in _BODY_RUNNERS and isinstance(args[0], fx.GraphModule):
            inner = Run(args[0], places_of(args[0], self.step.model, self.base.path), self.step)
            inner.base, inner.scopes = self.base, self.scopes
            return inner.run(*args[1:])
        return super().call_function(target, args, kwargs)

    def _scope(self, place: Place) -> Scope:
        if not place.instance:
            return self.base
        scope = self.scopes.get(place.instance)
        if scope is None:
            scope = self.step.new_scope(place.under(self.base.path))
            self.scopes[place.instance] = scope
        return scope
