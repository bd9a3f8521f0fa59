"""The FX capture as a torch.compile backend, which sees graphs and must find their step itself."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import fx, nn

from dumpcmp.taps.modes.callables import WRAPPER, function_name
from dumpcmp.taps.modes.functions import FunctionMode
from dumpcmp.taps.modes.graph import NodeHome, NodeRunner, homes_of
from dumpcmp.taps.modes.modules import is_compile_wrapper
from dumpcmp.taps.recording.gradients import Watches
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.scopes import Scope
from dumpcmp.taps.recording.step import Step


class _Outermost(threading.local):
    """The outermost compiled call that this thread is in, and its step."""

    outermost: FrameType | None = None
    step: Step | None = None

    def __init__(self) -> None:
        self.scopes: list[tuple[FrameType, Scope]] = []


class GraphBackend:
    """Records each graph that it is given, node by node, whenever it runs.

    A step is one outermost call of a compiled callable. The stack says which call it is: all
    graphs that run below the same frame of torch.compile belong to one step, and below the same
    call of a module to one scope.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.watches = Watches()
        self._here = _Outermost()
        self._numbers: dict[str, itertools.count[int]] = {}
        self._closed = False

    def __call__(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Compile `graph`: keep it as text, and return what runs and records it."""
        model, base = self._model_and_base()
        number = next(self._numbers.setdefault(model.name, itertools.count()))
        text = graph.print_readable(print_output=False)
        self.recorder.sink.text(model.name, f"graph-{number}.txt", text)
        homes = homes_of(graph, model, base)
        return lambda *args: self._run(graph, homes, args)

    def facts(self) -> dict[str, Any]:
        """What run.json says of the run once it has ended, besides what all runs say."""
        return {}

    def close(self) -> None:
        """Remove the hooks that have not fired, and forget where the threads are."""
        self._closed = True
        self.watches.remove()
        self._here = _Outermost()

    def _run(self, graph: fx.GraphModule, homes: dict[fx.Node, NodeHome], args: Any) -> Any:
        step = None if self._closed else self._step()
        if step is None:
            return graph.forward(*args)
        step.stand_in(self._scope(step))
        with FunctionMode(step) as mode:
            return NodeRunner(graph, homes, step, mode).run(*args)

    def _model_and_base(self) -> tuple[Model, str]:
        root, called = root_of(outermost_call()), innermost_module()
        names = self.recorder
        model = names.function_model(root) if isinstance(root, str) else names.model_of(root)
        return model, model.paths.get(id(called[1]), "") if called else ""

    def _step(self) -> Step | None:
        """The step of the outermost call; a new one where that call is new."""
        here, frame = self._here, outermost_call()
        if frame is None or frame is not here.outermost:
            here.outermost, here.scopes = frame, []
            root = root_of(frame)
            here.step = self._begin(root) if isinstance(root, nn.Module) else self._function(root)
        return here.step

    def _begin(self, root: nn.Module) -> Step | None:
        step = self.recorder.begin(root)
        if step is not None:
            self.watches.begin(step, root)
        return step

    def _function(self, name: str) -> Step:
        step = self.recorder.begin_function(name, True, self._begin)
        self.watches.begin(step, None)
        return step

    def _scope(self, step: Step) -> Scope:
        """The scope of the module call that is running; the frame of that call identifies it."""
        called = innermost_module()
        path = step.model.paths.get(id(called[1]), "") if called else ""
        if not called or not path:
            return step.root_scope
        frame = called[0]
        for known, scope in self._here.scopes:
            if known is frame:
                return scope
        scope = step.new_scope(path)
        self._here.scopes.append((frame, scope))
        return scope


def outermost_call() -> FrameType | None:
    """The frame in which torch.compile was entered first on this thread."""
    found, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == WRAPPER:
            found = frame
        frame = frame.f_back  # type: ignore[assignment]
    return found


def root_of(frame: FrameType | None) -> nn.Module | str:
    """What was compiled: a module, or the name of a function."""
    if frame is None:
        return "compiled"
    above = frame.f_back
    wrapper = above.f_locals.get("self") if above is not None else None
    if isinstance(wrapper, nn.Module) and is_compile_wrapper(wrapper):
        inner: nn.Module = wrapper._orig_mod  # type: ignore[assignment]
        return inner
    function = frame.f_locals.get("fn")
    owner = getattr(function, "__self__", None)
    name = function_name(function)
    return owner if isinstance(owner, nn.Module) and not name else name or "compiled"


def innermost_module() -> tuple[FrameType, nn.Module] | None:
    """The call of a module that is running, below the outermost compiled call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != WRAPPER:
        if frame.f_code is nn.Module._call_impl.__code__:
            return frame, frame.f_locals["self"]
        frame = frame.f_back
    return None
