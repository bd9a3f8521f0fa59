"""Captures module calls: where each step begins and ends, and what every module took and gave."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row_ids import RowIds
from dumpcmp.nouns.selection import Level
from dumpcmp.pytorch.module_trees import modules_of
from dumpcmp.pytorch.names import (
    DisableTorchDispatch,
    DisableTorchFunction,
    PrivateName,
    check_names,
    patched,
    standing_in,
)
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.modes import callables
from dumpcmp.taps.modes.around import (
    After,
    Instead,
    RunPlan,
    around,
    handed_over_in_c,
    hide_from_dynamo,
)
from dumpcmp.taps.modes.call_door import CallDoor, module_calls
from dumpcmp.taps.modes.function_mode import (
    FunctionMode,
    enter_module,
    exit_module,
    off_the_stack,
)
from dumpcmp.taps.modes.replicas import Parallels
from dumpcmp.taps.modes.torch_conditions import overrides_as_uncaptured
from dumpcmp.taps.modes.warning_places import warnings_as_uncaptured
from dumpcmp.taps.recording.changed_inputs import (
    GivenArguments,
    given_to,
    named_arguments,
    put_changed,
)
from dumpcmp.taps.recording.end_state import put_state, put_state_of
from dumpcmp.taps.recording.gradients import Watches
from dumpcmp.taps.recording.grafts import Grafts
from dumpcmp.taps.recording.last_look import LastLook, ModuleWeights
from dumpcmp.taps.recording.models import Scope
from dumpcmp.taps.recording.precision import Precision
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.replays import Replays
from dumpcmp.taps.recording.returned import raised, returned
from dumpcmp.taps.recording.routine import Ticket
from dumpcmp.taps.recording.row_identity import RowTracker, put_rows, rows_of
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.step_kinds import recomputation_of
from dumpcmp.taps.recording.training import Training

if TYPE_CHECKING:
    from dumpcmp.taps.distributed.collectives import CollectiveMode


TRACED_ITSELF = (
    "the program traced itself (torch.jit.trace, make_fx or torch.fx): what ran meanwhile is not "
    "recorded"
)


UNRECORDED_BODIES = (
    "what the functions compute that torch.cond and other control flow ops take is not recorded "
    "where gradients are: capture in mode fx to see it"
)
UNSEEN_RESULTS = "what compiled functions return is not recorded: this torch does not show it"
_ENVIRONMENT = "torch._higher_order_ops.utils:setup_compilation_env"
_KEEPS_ENVIRONMENT = "torch.nn.attention.flex_attention"  # once imported; it is not meant


class _Calling(NamedTuple):
    """A call of a module that runs, of which the outputs are still to come."""

    depth: int  # scopes that were open before it
    scope: Scope
    module: nn.Module
    args: Any
    kwargs: Any
    call: Call | Ticket | None  # None: nothing of it is recorded


class _Rooted(NamedTuple):
    """The outermost call of a step that runs, and its arguments as they were before."""

    called: Any  # a module, or a compiled function
    args: Any
    kwargs: dict[str, Any]
    given: GivenArguments
    rows: RowIds | None = None  # which request and position each row of its input is


class _Doing(threading.local):
    """What this thread is in the middle of."""

    step: Step | None = None
    mode: Any = None  # that records functions on this thread
    latest: Step | None = None  # which collectives after its end belong to: those of backward
    muted: bool = False  # inside a step that is not selected, or a model that is not wanted


class ModuleCapture:
    """Captures steps on whatever thread they run: modules, and functions by `mode` inside them."""

    traces = False  # whether it has dynamo trace what it captures
    stands_for_eager = True  # the program is to run as if nothing traced it

    def __init__(
        self,
        recorder: Recorder,
        roots: Collection[nn.Module] = (),
        mode: Callable[[Step], AbstractContextManager[Any]] | None = FunctionMode,
    ) -> None:
        self.recorder = recorder
        self.watches = Watches()
        given = [layer for root in roots for layer in wrapped_in(root)]
        self._roots = {id(layer): weakref.ref(layer) for layer in given}
        self.mode = mode if recorder.tap.level is Level.FUNCTIONS else None
        self.precision: Precision | None = None
        self.grafts: Grafts | None = None
        self._here = _Doing()
        recorder.active = lambda: self._here.step
        self.replays = Replays(recorder, self.watches, recorder.graph_budget, lambda: self.compiles)
        self._parallels = Parallels(recorder)
        self._collectives: CollectiveMode | None = None  # of a run on several ranks
        self._num_ranks = 1
        self._training: Training | None = None  # while it runs, and after
        self._door: CallDoor | None = None
        self._trackers: dict[str, RowTracker] = {}  # of rows, by the names of models
        self._num_bodies = 0  # calls of torch.cond and its like that were not recorded
        self.compiles = False  # whether what the program compiles stays compiled
        self.enter = enter_module
        self.exit = exit_module
        self.begin: Callable[[nn.Module], Step | None] = self._begin
        self.end: Callable[[Step], None] = self._end

    @property
    def step(self) -> Step | None:
        """The step that this thread is in the middle of."""
        return self._here.step

    @property
    def is_muted(self) -> bool:
        """Whether this thread is inside of what is not recorded."""
        return self._here.muted

    def facts(self) -> dict[str, Any]:
        """What run.json says of the run once it has ended, besides what all runs say."""
        return {**self.replays.facts(), **(self._training.facts if self._training else {})}

    def more_effects(self) -> list[Effect]:
        """The effects that were recorded, of those that not every run can."""
        training = self._training.more_effects if self._training else []
        return [Effect.STATE, *training] if self._knows_state else training

    @property
    def _knows_state(self) -> bool:
        """Whether weights after the last step are what steps record of them."""
        return self._door is None or not distributed.keeps_flat(self._door.parallel)

    def _is_quiet(self) -> bool:
        """Whether nothing is being recorded on this thread, or into a CUDA graph."""
        return self._here.step is None and not self.recorder.is_taped

    def _look_once_more(self, step: Step, weights: ModuleWeights) -> None:
        """Record what a model became that is gone before the run ends."""
        if self._knows_state:
            put_state_of(self.recorder, step, weights)

    def finish(self) -> None:
        """Record what the run leaves behind, while the archive is still open."""
        if self.recorder.last_look is not None:
            self.recorder.last_look.close()
        if self._knows_state:
            put_state(self.recorder)
        if self._training is not None:
            self._training.put_end()

    def remarks(self) -> list[str]:
        """What the user must hear at the end."""
        unfinished = [] if self._collectives is None else self._collectives.remarks()
        bodies = [UNRECORDED_BODIES] if self._num_bodies else []
        traced = [TRACED_ITSELF] if self._door is not None and self._door.num_traced else []
        seen = [*self._parallels.remarks(), *self.replays.remarks(), *self.watches.remarks()]
        return [*unfinished, *traced, *bodies, *seen]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Capture while the block runs; compiled callables run eagerly meanwhile."""
        with module_calls(self._intercept) as self._door, ExitStack() as self._ends:
            self._ends.callback(self.watches.remove)
            if self.mode is not None:
                self._ends.enter_context(overrides_as_uncaptured(self.recorder.lacking))
                self._ends.enter_context(handed_over_in_c())
            if self.stands_for_eager:
                self._ends.enter_context(warnings_as_uncaptured())
            self._ends.enter_context(self._compiling())
            if not self.traces and PrivateName(_ENVIRONMENT, "").is_there:
                import_module(_KEEPS_ENVIRONMENT)
                self._ends.enter_context(patched(standing_in(_ENVIRONMENT, self._with_gradients)))
            self._ends.enter_context(self._partitioned())
            self._ends.enter_context(self.replays.watched())
            self._ends.enter_context(self._parallels.watched())
            if self.precision is not None:
                self._ends.callback(self.precision.restore)
            self.recorder.last_look = LastLook(self._is_quiet, self._look_once_more)
            self._training = Training(
                self.recorder, callables.is_traced, self._num_ranks, self._is_on_all_ranks
            )
            self._ends.enter_context(self._training.watched())
            yield

    @contextmanager
    def _partitioned(self) -> Iterator[None]:
        """What a run on several ranks needs while it is captured; nothing on a single one."""
        with distributed.captured() as here:
            if here.size == 1 or not torch.distributed.is_available():
                yield
                return
            self._num_ranks = here.size
            self.recorder.lacking += check_names("several ranks")
            from dumpcmp.taps.distributed.collectives import collectives

            seen = distributed.remembering(self.recorder.lacking, self.compiles)
            with seen, collectives(lambda: self._here.latest) as self._collectives:
                yield

    def _is_on_all_ranks(self, parameter: Tensor) -> bool:
        """Whether each rank is known to have the parameter, or a shard of it."""
        if self._num_ranks == 1:
            return True
        wrappers = () if self._door is None else tuple(self._door.parallel)
        return distributed.is_on_all_ranks(parameter, wrappers, self._num_ranks)

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Hear of compiled callables; have them run eagerly, unless this capture compiles."""
        with ExitStack() as ends:

            def listen() -> None:
                lacking = check_names("compiled functions")
                self.recorder.lacking += [*lacking, *check_names("compiled modules")]
                if not lacking:
                    hide_from_dynamo()
                    ends.enter_context(callables.compiled_calls(self._function_called))
                if not self.compiles:
                    ends.enter_context(torch.compiler.set_stance("force_eager"))

            ends.enter_context(callables.once_dynamo_is_there(listen))
            yield

    @contextmanager
    def _with_gradients(self, environment: Callable[[], Any]) -> Iterator[Any]:
        """Have torch.cond and its like compile what they run, where gradients need that.

        They trace what their functions close over. What these compute is not recorded then.
        """
        with ExitStack() as ends:
            if torch.is_grad_enabled() and not callables.is_traced():
                self._num_bodies += 1
                ends.enter_context(self._muting())
                ends.enter_context(torch.compiler.set_stance("default"))
                ends.enter_context(off_the_stack(self._here.mode))
            yield ends.enter_context(environment())

    def _function_called(self, call: callables.CompiledCall) -> callables.Leave:
        """Open a step for a compiled function, unless one is open; returns what closes it."""
        here, name = self._here, callables.function_name(call.function)
        if here.muted or here.step is not None or not name or is_recomputing():
            return lambda: None
        with HOLD:
            self._begin_training()
            with DisableTorchFunction(), DisableTorchDispatch():
                step = here.step = self.recorder.begin_function(name, not self._roots, self.begin)
                self.watches.begin(step, None)
            called = call.function, call.args, call.kwargs
            rooted = _Rooted(*called, self._given(step, *called), self._rows(step, *called))
            handled = sys.exception()  # by whoever calls the function
            ends = ExitStack()
            here.mode = ends.enter_context(self.mode(step)) if self.mode else None

        def leave() -> None:
            with HOLD:
                error = sys.exception()
                if error is handled:
                    error = None
                self._put_effects(step, rooted, call.result(), error)
                here.step = here.mode = None
                ends.close()
                for each in step.all_steps():
                    self.end(each)

        return leave

    def save(self, name: str, tensor: Tensor) -> None:
        if not self._here.muted and not HOLD.depth:
            with HOLD, DisableTorchFunction(), DisableTorchDispatch():
                (self.step or self.recorder.outside()).save(name, tensor)

    def _intercept(
        self,
        module: nn.Module,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> RunPlan:
        """What a call of `module` by `run` is to do while this captures."""
        here = self._here
        if here.muted or HOLD.depth or callables.is_compile_wrapper(module):
            return run, args, kwargs, None  # also what a finalizer calls in the middle of our work
        if self.recorder.is_inert and self.precision is None:
            return run, args, kwargs, None
        if here.step is None or here.step.is_function:
            return self._begin_root(module, run, args, kwargs)
        if isinstance(module, fx.GraphModule) and id(module) not in here.step.model.paths:
            return run, args, kwargs, None  # the body of a loop or a branch, which no program names
        routine = here.step.routine
        if routine is not None:
            return routine.door(module, run), args, kwargs, None
        return self._begin_module(here.step, module, run, args, kwargs)

    def _begin_root(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> RunPlan:
        """Begin what an outermost call is: a step, something that is run again, or nothing."""
        ends = ExitStack()
        try:
            with HOLD:
                plan = self._root_plan(ends, module, run, args, kwargs)
        except BaseException:  # of a handler of the program that has waited, say
            ends.__exit__(*sys.exc_info())
            raise
        *called, after = plan
        return *called, partial(self._end_root, ends, after)  # type: ignore[return-value]

    def _end_root(
        self, ends: ExitStack, after: After | None, result: Any, error: BaseException | None
    ) -> Instead | None:
        with HOLD:
            try:
                return None if after is None else after(result, error)
            finally:
                ends.__exit__(type(error) if error else None, error, None)

    def _root_plan(
        self, ends: ExitStack, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> RunPlan:
        """What to run, with the contexts that it is to run in entered into `ends`."""
        if is_recomputing():
            return self._recompute(ends, module, run, args, kwargs)
        if not self._is_root(module):
            return run, args, kwargs, None
        if isinstance(module, nn.DataParallel):
            ends.enter_context(self._parallels.replicas.spreading(module))
            return run, args, kwargs, None
        step = None if distributed.here.inferring else self.begin(module)
        if step is None:
            ends.enter_context(self._muting())
            return run, args, kwargs, None
        if self.precision is not None:
            self.precision.convert(module)
            args, kwargs = self.precision.inputs((args, kwargs))
            step.run_in(self.precision)
        if self.grafts is not None:
            step.graft(self.grafts)
        ends.enter_context(self._inside(step))
        given = self._given(step, module, args, kwargs)
        rows = self._rows(step, module, args, kwargs)
        run = self.root_run(module, run, args, kwargs)
        *called, after = self._begin_module(step, module, run, args, kwargs)
        ended = partial(self._end_step, step, _Rooted(module, args, kwargs, given, rows), after)
        return *called, ended  # type: ignore[return-value]

    def _given(self, step: Step, root: Any, args: Any, kwargs: Any) -> GivenArguments:
        try:
            return given_to(step, root, args, kwargs)
        except Exception as error:
            self.recorder.give_up(error)
            return {}

    def _rows(self, step: Step, root: Any, args: Any, kwargs: Any) -> RowIds | None:
        """Which rows a call of `root` has; nothing is read of a device that captures a graph."""
        if self.recorder.is_taped:
            return None
        tracker = self._trackers.setdefault(step.model.name, RowTracker())
        try:
            with DisableTorchFunction(), DisableTorchDispatch():
                return rows_of(dict(named_arguments(root, args, kwargs)), tracker)
        except Exception as error:
            self.recorder.note_lacking(f"which rows a step has is not recorded: {error}")
            return None

    def _end_step(
        self,
        step: Step,
        rooted: _Rooted,
        after: After | None,
        result: Any,
        error: BaseException | None,
    ) -> Instead | None:
        """Record the effects of a step, which has ended; says what the program is to have."""
        if after is not None:
            after(result, error)
        return self._put_effects(step, rooted, result, error)

    def _put_effects(
        self, step: Step, rooted: _Rooted, result: Any, error: BaseException | None
    ) -> Instead | None:
        if error is not None and not isinstance(error, Exception):
            return None  # who interrupts a run tells nothing of the model
        try:
            put_changed(step, *rooted[:4])
            put_rows(step, rooted.rows)
            if error is not None:
                raised(step, error)
                return None
            if result is callables.HIDDEN:
                self.recorder.note_lacking(UNSEEN_RESULTS)
                return None
            shown = returned(step, result)
        except Exception as trouble:
            self.recorder.give_up(trouble)
            return None
        return None if shown is result else (shown,)

    def _is_root(self, module: nn.Module) -> bool:
        """Whether a call of `module` that is inside of no other begins a step."""
        if not self._roots or id(module) in self._roots or self._parallels.replicas.has(module):
            return True
        return self._whole_of(module) is not None

    def _whole_of(self, module: nn.Module) -> nn.Module | None:
        """The model that `module` is a part of, of which alone a CUDA graph is captured now."""
        if not self.recorder.is_taped or self.traces or id(module) in self._roots:
            return None
        roots = [root for ref in self._roots.values() if (root := ref()) is not None]
        return next((root for root in roots if any(module is m for m in modules_of(root))), None)

    def _begin(self, module: nn.Module) -> Step | None:
        if not self._is_root(module):
            return None
        self._begin_training()
        original = self._parallels.replicas.original_of(module)
        whole = self._whole_of(original)
        try:
            with DisableTorchFunction(), DisableTorchDispatch():
                step = self.recorder.begin(whole or original, original if whole else None)
                if step is not None and original is not module:
                    step.model.learn(module)
                if step is not None:
                    self.watches.begin(step, whole or original)
        except Exception as error:
            self.recorder.give_up(error)
            return None
        return step

    def _begin_training(self) -> None:
        if self._training is not None:
            self._training.begin()

    def root_run(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[..., Any]:
        """What runs the outermost call of a step; other modes run it in their own way."""
        del module, args, kwargs
        return run

    def _begin_module(
        self, step: Step, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> RunPlan:
        """Record that `module` is called, and plan to record what it gives."""
        depth = step.scopes.depth
        try:
            with HOLD:
                try:
                    call = self.enter(step, module, args, kwargs)
                except Exception as error:
                    self.recorder.give_up(error)
                    call = None
        except BaseException:  # of a handler of the program that has waited
            step.scopes.close_to(depth)
            raise
        calling = _Calling(depth, step.scopes.here, module, args, kwargs, call)
        return run, args, kwargs, partial(self._end_module, step, calling)

    def _end_module(
        self, step: Step, calling: _Calling, result: Any, error: BaseException | None
    ) -> Instead | None:
        with HOLD:
            step.scopes.close_to(calling.depth)
            step.end_graft(calling.call)
            if error is not None or calling.call is None:
                return None
            own = result
            if step.grafts is not None and isinstance(calling.call, Call):
                result = step.grafts.of_module(calling.call, result)
            try:
                self.exit(step, calling.call, result)
                _, scope, module, args, kwargs, call = calling
                if step.routine is not None and isinstance(call, Call):
                    with DisableTorchFunction(), DisableTorchDispatch():
                        step.routine.learn_module(scope, module, args, kwargs, call, result)
            except Exception as trouble:
                self.recorder.give_up(trouble)
            return None if result is own else (result,)

    def _slowly(self, step: Step, module: nn.Module, run: Callable[..., Any]) -> Any:
        """What calls a module whose call is not known."""

        def begin(_: Any, args: Any, kwargs: Any) -> RunPlan:
            return self._begin_module(step, module, run, args, kwargs)

        return around(begin, module)

    def _recompute(
        self, ends: ExitStack, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> RunPlan:
        """Run a forward again, for checkpointing: its calls are marked, its values known."""
        step = self.recorder.step_with(module)
        if step is None:
            ends.enter_context(self._muting())
            return run, args, kwargs, None
        again = ends.enter_context(self._inside(recomputation_of(step)))
        return self._begin_module(again, module, run, args, kwargs)

    @contextmanager
    def _inside(self, step: Step) -> Iterator[Step]:
        outer, began = self._here.step, time.monotonic()
        _former = self._here.latest  # is freed when this step ends, while a device still works
        self._here.step = self._here.latest = step
        try:
            with self._recording(step):
                yield step
        finally:
            self._here.step = outer
            if outer is None:
                self.recorder.counts.seconds += time.monotonic() - began
            self.end(step)

    def _end(self, step: Step) -> None:
        with HOLD:
            try:
                with DisableTorchFunction(), DisableTorchDispatch():
                    step.put_rest()
            except Exception as error:
                self.recorder.give_up(error)
        if not self.recorder.tap.backward:
            self.recorder.finish(step, later=torch.is_grad_enabled())

    @contextmanager
    def _recording(self, step: Step) -> Iterator[None]:
        """Record functions in `step` by a mode: that of the function around it, if any."""
        here = self._here
        if self.enter is enter_module and not self.compiles:  # nothing of it is ever traced
            step.follow_routine(partial(self._slowly, step))
        if here.mode is not None or self.mode is None:
            with pointed_at(here.mode, step):
                yield
            return
        with self.mode(step) as here.mode:
            try:
                yield
            finally:
                here.mode.step = None  # a mode is a circle, and would keep the step
                here.mode = None

    def quietly(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run` with none of the functions that it calls recorded."""

        def quiet(*args: Any, **kwargs: Any) -> Any:
            with pointed_at(self._here.mode, None):
                return run(*args, **kwargs)

        return quiet

    @contextmanager
    def _muting(self) -> Iterator[None]:
        self._here.muted = True
        try:
            with pointed_at(self._here.mode, None):
                yield
        finally:
            self._here.muted = False


@contextmanager
def pointed_at(mode: Any, step: Step | None) -> Iterator[None]:
    """Have `mode` record in `step` while the block runs, or nowhere."""
    before = getattr(mode, "step", None)
    if mode is not None:
        mode.step = step
    try:
        yield
    finally:
        if mode is not None:
            mode.step = before


def wrapped_in(module: nn.Module) -> list[nn.Module]:
    """The model inside of `module`, and what compiles it or spreads its batch, ending with that."""
    if callables.is_compile_wrapper(module):
        return [*wrapped_in(module._orig_mod), module]  # type: ignore[arg-type]
    if distributed.is_parallel_wrapper(module):
        return [*wrapped_in(module.module), module]  # type: ignore[arg-type]
    return [module]


def is_recomputing() -> bool:
    """Whether a forward is being run again inside a backward pass."""
    return torch._C._current_autograd_node() is not None and torch.is_grad_enabled()
