"""Captures FX graphs: dynamo traces each root module, an interpreter runs it node by node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from inspect import iscoroutinefunction, isgeneratorfunction
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx, nn

from dumpcmp.handlers import HOLD, SWALLOWING, Deferring, Undisturbed, apart, called_apart_by
from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.module_trees import modules_of
from dumpcmp.pytorch.names import DisableTorchFunction, patched, private, standing_in
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.taps.modes import callables
from dumpcmp.taps.modes.around import Around, RunPlan, carried_out, deeper, hide, show, work
from dumpcmp.taps.modes.call_door import CallDoor
from dumpcmp.taps.modes.function_mode import FunctionMode
from dumpcmp.taps.modes.left_to_python import PythonOnly
from dumpcmp.taps.modes.modules import ModuleCapture, pointed_at
from dumpcmp.taps.modes.torch_conditions import (
    has_other_modes,
    is_overriding,
    tracing_as_uncaptured,
)
from dumpcmp.taps.modes.traced import NodeHome, Spots, homes_of, runs_body
from dumpcmp.taps.modes.warning_places import place_of, traced_in_silence
from dumpcmp.taps.recording.gradients import Watches
from dumpcmp.taps.recording.models import Model, Scope
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step

_NEW = (nn.UninitializedParameter, nn.UninitializedBuffer)
_FRAMES = 2  # that torch.compile and `calling` put around the program's
_CONVERT = "torch._dynamo.convert_frame:ConvertFrame.__call__"
_DISPATCH = "__torch_dispatch__"  # of classes of tensors: what the dispatcher asks


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` without dynamo looking at what it does."""
    hidden: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return hidden


def _call(run: Callable[..., Any], *args: Any) -> Any:
    return run(*args)


def _unrecorded(function: Callable[..., Any], *args: Any) -> Any:
    with DisableTorchFunction():
        return function(*args)


_HANDED_OUT = "dumpcmp: a number handed out"


def _past_modes(function: Callable[..., Any], number: Any, tracer: Any, dtype: Any) -> Any:
    """Trace `function` as if no mode were there: under one, what it makes is lost (torch 2.13)."""
    state = tracer.symbolic_torch_function_state
    before, state.torch_function_mode_enabled = state.torch_function_mode_enabled, False
    try:
        tensor = function(number, tracer, dtype)
    finally:
        state.torch_function_mode_enabled = before
    tensor.as_proxy().node.meta[_HANDED_OUT] = True
    return tensor


@contextmanager
def tracing_undisturbed() -> Iterator[None]:
    """Hold signal handlers back while dynamo traces: one that calls a module would break it.

    What they raise in one of its guards would only make the guard fail. One that runs between two
    graphs is not traced: its calls would be part of a graph, and of no module. A number that dynamo
    found to change goes into its graph and comes out of it as a tensor: making that is no call of
    the program.
    """
    dynamo: Any = private("torch._dynamo.callback:callback_handler")
    SWALLOWING.update((private("torch._dynamo.guards").__file__, ("<string>", "guard")))
    begin, end = HOLD.begin_tracing, HOLD.end_tracing

    def hear() -> None:
        dynamo.register_start_callback(begin)
        dynamo.register_end_callback(end)

    def cleared(original: Any, handler: Any) -> None:
        original(handler)
        hear()

    hear()
    clear = "torch._dynamo.callback:CompilationCallbackHandler.clear"
    reset = standing_in(clear, cleared)  # by a program that resets dynamo
    taken = standing_in("torch:_as_tensor_fullprec", _unrecorded)
    given = standing_in("torch._dynamo.variables.tensor:SymNodeVariable.as_tensor", _past_modes)
    try:
        with called_apart_by(untraced(_call)), patched(taken, given, reset):
            yield
    finally:
        dynamo.remove_start_callback(begin)
        dynamo.remove_end_callback(end)


# Our own frames that surround the user's: dynamo must not trace them, but what they call.
UNTRACED: tuple[Any, ...] = (
    FunctionMode.__init__,
    FunctionMode.__torch_function__,
    untraced,
    CallDoor.__get__,
    Around.__init__,
    Around.__call__,
    carried_out,
    work,
    hide,
    show,
    callables.is_traced,
    callables.traces_itself,
    apart,
    Deferring.__call__,
    Undisturbed.__enter__,
    Undisturbed.__exit__,
)


class GraphCapture(ModuleCapture):
    """Runs every root module under dynamo and records the functions of its graphs.

    What dynamo leaves outside of its graphs, before and after graph breaks, runs eagerly and is
    recorded as in eager mode; the nodes inside get their module from the graph.
    """

    traces = True

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots)
        self._compiled: dict[int, Any] = {}
        self._compiled_by_program: set[int] = set()  # root modules
        self._failed: list[CodeType] = []  # of frames that dynamo cannot trace
        self._python_only = PythonOnly(self._traces_for_us)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Capture while the block runs; what the program compiles itself is traced as it is."""
        from torch._dynamo import config, eval_frame

        for function in UNTRACED:
            eval_frame.skip_code(function.__code__)
        self.compiles = True
        limits = {"recompile_limit": 1 << 16, "accumulated_recompile_limit": 1 << 16}
        forced = torch.compiler.set_stance("default", force_backend=self.backend)
        with (
            super().running(),
            config.patch(**limits, suppress_errors=False),
            forced,
            tracing_undisturbed(),
            tracing_as_uncaptured(self._traces_for_us),
            patched(standing_in(_CONVERT, self._converted)),
            self._python_only.watched(),
        ):
            try:
                yield
            finally:
                self._forget()

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), **self._python_only.facts()}

    def _traces_for_us(self) -> bool:
        """Whether this thread traces what would not be traced without a capture."""
        step = self.step
        if step is None or step.is_function or not self.stands_for_eager:
            return False
        return id(step.model.root) not in self._compiled_by_program

    def _converted(self, convert: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Have dynamo trace a frame; one that it fails at runs as it is, recorded as in eager mode.

        The program would not be traced without a capture, and must not hear of it. What is wrong
        with the program itself, it then hears from its own code. What answers the dispatcher is
        beneath the functions that are recorded, and is not traced.
        """
        code, mode = args[1].f_code, self._here.mode
        if code.co_name == _DISPATCH and self._traces_for_us():
            self._failed.append(code)
            return _left_to_python(is_deep=True)
        try:
            with (
                nullcontext() if mode is None else mode.in_python(),
                traced_in_silence() if self._traces_for_us() else nullcontext(),
            ):
                return convert(*args, **kwargs)
        except Exception as error:
            causes = list(_causes(error))
            if not self._traces_for_us() or any(isinstance(e, CaptureError) for e in causes):
                raise
            is_deep = any(isinstance(e, RecursionError) for e in causes)
        self._failed.append(code)
        return _left_to_python(is_deep)

    def _forget(self) -> None:
        """Let go of the models: dynamo keeps what it compiled by the code that it compiled."""
        codes = [compiled.__wrapped__.__code__ for compiled in self._compiled.values()]
        for code in (*codes, *self._failed, *self._python_only.codes):
            private("torch._dynamo.eval_frame:reset_code")(code)
        self._compiled.clear()
        self._failed.clear()
        self._python_only.codes.clear()

    def _intercept(
        self,
        module: nn.Module,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> RunPlan:
        step = self.step
        outermost = step is None or step.is_function
        if callables.is_compile_wrapper(module) and outermost:  # traced for us, not for its backend
            module = module._orig_mod  # type: ignore[assignment]
            run = module._call_impl
            self._compiled_by_program.add(id(module))
        return super()._intercept(module, run, args, kwargs)

    def root_run(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[..., Any]:
        """What runs `module` under dynamo, whatever it was compiled with before."""
        del run
        if self._is_watched(module, args, kwargs):
            return module._call_impl
        if id(module) not in self._compiled:
            self._compiled[id(module)] = torch.compile(calling(module), backend=self.backend)
        return deeper(self._compiled[id(module)], _FRAMES)

    def _is_watched(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether the program would see dynamo: by a mode, a class of tensors, or new weights."""
        if not self.stands_for_eager or id(module) in self._compiled_by_program:
            return False
        if isgeneratorfunction(module.forward) or iscoroutinefunction(module.forward):
            return True  # dynamo would run all of it at once
        kinds = _types_of(module, args, kwargs)
        if any(issubclass(kind, _NEW) for kind in kinds):
            return True  # dynamo would give the random numbers back that its weights begin with
        return has_other_modes() or any(map(is_overriding, kinds))

    def backend(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """The torch.compile backend: what it returns runs `graph` and records it."""
        self._python_only.stop_if_warned()
        step = self.step
        if step is None:
            return graph.forward
        self.recorder.keep_graph(step.model, graph)
        homes = homes_of(graph, step.model, step.scopes.here.path)

        def run(*args: Any) -> Any:
            now = self.step
            if now is None:
                return graph.forward(*args)
            return NodeRunner(graph, homes, now, self._here.mode).run(*args)

        return run


def _types_of(module: nn.Module, args: Any, kwargs: Any) -> set[type]:
    """The types of all tensors that a call of `module` takes, and that are in it."""
    given = {type(tensor) for _, tensor in slots_of("", (args, kwargs))}
    inside = (each for m in modules_of(module) for each in (m._parameters, m._buffers))
    return given | {type(tensor) for table in inside for tensor in table.values()}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error of dynamo, and those that it was made of."""
    while error is not None:
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__


def _left_to_python(is_deep: bool) -> Any:
    """What tells dynamo to run a frame as it is; where `is_deep`, all that it calls, too."""
    action = private("torch._C._dynamo.eval_frame:_FrameAction")
    inner = action.SKIP if is_deep else action.DEFAULT
    strategy = private("torch._C._dynamo.eval_frame:_FrameExecStrategy")(action.SKIP, inner)
    returned: Any = private("torch._dynamo.types:ConvertFrameReturn")
    return returned(frame_exec_strategy=strategy)


def calling(module: nn.Module) -> Callable[..., Any]:
    """A call of `module` as a function, since dynamo begins in no frame of torch's own modules."""
    run: Any = module._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__code__ = call.__code__.replace()  # its own, as dynamo remembers by code what to skip
    return call


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
        self.place: Callable[..., Any] | None = None  # of the node that runs

    def run_node(self, n: fx.Node) -> Any:
        self.place = place_of(n.meta.get("stack_trace"))
        home = self.homes.get(n)
        if home is None or n.op not in ("call_function", "call_method", "call_module"):
            return super().run_node(n)
        step = None if _HANDED_OUT in n.meta else self.spots.step_of(home)
        if step is None:
            with pointed_at(self.mode, None):
                return super().run_node(n)
        try:
            with pointed_at(self.mode, step):
                return super().run_node(n)
        finally:
            self.spots.leave()

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; the body of a checkpointed region is run node by node."""
        if runs_body(target) and isinstance(args[0], fx.GraphModule):
            step, base = self.spots.step, self.spots.base
            inner = NodeRunner(args[0], homes_of(args[0], step.model, base.path), step, self.mode)
            inner.spots = self.spots
            return inner.run(*args[1:])
        return self._placed(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        return self._placed(getattr(tensor, target), tuple(rest), kwargs)

    def _placed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function from the program's line."""
        return self.place(function, args, kwargs) if self.place else function(*args, **kwargs)


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
        self._closed = False

    def __call__(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Compile `graph`: keep it as text, and return what runs and records it."""
        model, base = self._model_and_base()
        self.recorder.keep_graph(model, graph)
        homes = homes_of(graph, model, base)
        return lambda *args: self._run(graph, homes, args)

    def facts(self) -> dict[str, Any]:
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
        root, called = callables.root_of(callables.outermost_call()), callables.innermost_module()
        names = self.recorder
        model = names.function_model(root) if isinstance(root, str) else names.model_of(root)
        return model, model.paths.get(id(called[1]), "") if called else ""

    def _step(self) -> Step | None:
        """The step of the outermost call; a new one where that call is new."""
        here, frame = self._here, callables.outermost_call()
        if frame is None or frame is not here.outermost:
            here.outermost, here.scopes = frame, []
            root = callables.root_of(frame)
            here.step = self._begin(root) if isinstance(root, nn.Module) else self._function(root)
        return here.step

    def _begin(self, root: nn.Module) -> Step | None:
        step = self.recorder.begin(root)
        if step is not None:
            step.put_rest()
            self.watches.begin(step, root)
        return step

    def _function(self, name: str) -> Step:
        step = self.recorder.begin_function(name, True, self._begin)
        self.watches.begin(step, None)
        return step

    def _scope(self, step: Step) -> Scope:
        """The scope of the module call that is running; the frame of that call identifies it."""
        called = callables.innermost_module()
        path = step.model.paths.get(id(called[1]), "") if called else ""
        if not called or not path:
            return step.scopes.root
        frame = called[0]
        for known, scope in self._here.scopes:
            if known is frame:
                return scope
        scope = step.scopes.next_of(path)
        self._here.scopes.append((frame, scope))
        return scope
