"""Captures what reaches the dispatcher: aten ops, and in backward the forward op behind each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from dumpcmp.nouns.record import Phase
from dumpcmp.nouns.selection import Level
from dumpcmp.pytorch.names import private
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.modes import callables
from dumpcmp.taps.modes.around import OF_OPS, RunPlan, answer_in_c, carried_out, ops_given_in_c
from dumpcmp.taps.modes.function_mode import recorded
from dumpcmp.taps.modes.modules import ModuleCapture, is_recomputing
from dumpcmp.taps.recording.functions import NO_OP, Function
from dumpcmp.taps.recording.gradients import GraphReel
from dumpcmp.taps.recording.models import Scope
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.values import Shared

_NO_OPS = frozenset(("aten::_local_scalar_dense", "aten::equal", "aten::is_same_size"))
_WIDE = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_MOST_CLAIMS = 1 << 17
_BACKWARD = "backward."  # stands before the name of an op that autograd ran


@cache
def aten_function(func: OpOverload) -> Function:
    """Name an overload: ``aten::add_.Tensor`` is ``aten.add``."""
    schema = func._schema
    if schema.name in _NO_OPS or not any("Tensor" in str(r.type) for r in schema.returns):
        return NO_OP
    namespace, _, name = schema.name.partition("::")
    plain = name if name.startswith("_") else name.rstrip("_")
    return Function(
        f"{namespace}.{plain}",
        target=str(func),
        random=torch.Tag.nondeterministic_seeded in func.tags,
    )


@cache
def _in_backward(function: Function) -> Function:
    return Function(_BACKWARD + function.name, target=function.target, random=function.random)


@cache
def _written_at(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Where `func` takes what it writes to: by position and by name."""
    arguments = enumerate(func._schema.arguments)
    return tuple((at, one.name) for at, one in arguments if one.is_write)


def written_by(func: OpOverload, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that `func` writes to: torch counts that only when its mode is through."""
    found = [args[at] if at < len(args) else kwargs.get(name) for at, name in _written_at(func)]
    each = [one for some in found for one in (some if isinstance(some, (list, tuple)) else [some])]
    return [one for one in each if isinstance(one, Tensor)]


@cache
def _tensor_places(func: OpOverload) -> tuple[int, ...]:
    """The positions at which `func` takes a tensor and no number in place of it."""
    if private("torch._C:_should_allow_numbers_as_tensors")(func._schema.name.partition("::")[2]):
        return ()
    arguments = enumerate(func._schema.arguments)
    return tuple(at for at, one in arguments if str(one.type) == "Tensor")


def with_tensors(func: OpOverload, args: Any) -> Any:
    """`args` as they were before torch made numbers of tensors that stand for numbers."""
    for at in _tensor_places(func):
        if at < len(args) and type(args[at]) in (bool, int, float, complex):
            args = (
                *args[:at],
                torch.as_tensor(args[at], dtype=_WIDE[type(args[at])]),
                *args[at + 1 :],
            )
    return args


@cache
def _writes_to_shared(func: OpOverload) -> int | None:
    """How often `func` writes to its first argument, whose memory it gives out; None: it does not.

    What gives out a view of it writes to nothing.
    """
    aliases = [
        (at, one.is_write) for at, one in enumerate(func._schema.arguments) if one.alias_info
    ]
    gives = any(one.alias_info for one in func._schema.returns)
    return int(aliases[0][1]) if gives and len(aliases) == 1 and aliases[0][0] == 0 else None


def shared_by(func: OpOverload, args: Any) -> Shared | None:
    """The tensor whose memory `func` gives out, and how often it writes to it, if it is one."""
    num_writes = _writes_to_shared(func) if args and isinstance(args[0], Tensor) else None
    return None if num_writes is None else (args[0], num_writes)


class AtenMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each op of the dispatcher in the step, or the backward pass, that it belongs to."""

    supports_higher_order_operators = True

    def __init__(self, capture: AtenCapture) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture = capture
        answer_in_c(self, "__torch_dispatch__", OF_OPS, follows=False)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work as it would without this mode."""
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Where there is no C."""
        kwargs = kwargs or {}
        if callables.traces_itself():
            return func(*args, **kwargs)
        return carried_out(self.begin(func, args, kwargs))

    def begin(
        self, func: OpOverload | HigherOrderOperator, args: Any, kwargs: dict[str, Any]
    ) -> RunPlan:
        """Record that `func` is called, and plan to record what it gives."""
        if isinstance(func, HigherOrderOperator):
            bodies = {name: self._recorded_body(one) for name, one in kwargs.items()}
            return func, tuple(map(self._recorded_body, args)), bodies, None
        args, function = with_tensors(func, args), aten_function(func)
        step = None if self.capture.is_muted else self.capture.step
        if not function.name or distributed.is_machinery(func):
            return func, args, kwargs, partial(self._written_only, step, func, args, kwargs)
        if step is not None:
            self.capture.claim(step)
            written, shared = written_by(func, args, kwargs), shared_by(func, args)
            return recorded(step, function, func, args, kwargs, True, written, shared)
        return self.capture.backward_op(function, func, args, kwargs)

    def _recorded_body(self, argument: Any) -> Any:
        """A function that an op such as torch.cond takes, with what it computes recorded."""
        if not callable(argument):
            return argument

        def body(*args: Any, **kwargs: Any) -> Any:
            with self:
                return argument(*args, **kwargs)

        return body

    def _written_only(
        self, step: Step | None, func: OpOverload, args: Any, kwargs: Any, *told: object
    ) -> None:
        """What is not recorded has run; it may write to memory that nobody had written to."""
        if step is not None and told[1] is None:
            for tensor in written_by(func, args, kwargs):
                step.values.written_somewhere(tensor)


class AtenCapture(ModuleCapture):
    """Captures modules, and inside them the ops of the dispatcher in place of torch functions."""

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots, mode=None)
        self._op_mode = AtenMode(self)
        # who made an autograd node: the step, its scope, and the CUDA graph it is in, if any
        self._claims: dict[int, tuple[Step, Scope, GraphReel | None]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Capture while the block runs; for backward ops the mode stays on between steps."""
        tap = self.recorder.tap
        with super().running(), ops_given_in_c(), ExitStack() as ends:
            if tap.level is Level.FUNCTIONS and tap.backward:
                ends.enter_context(self._op_mode)
            elif tap.level is Level.FUNCTIONS:
                self.mode = lambda _: self._op_mode
            yield

    def claim(self, step: Step) -> None:
        """Remember in which scope the autograd node that was made last was made."""
        if self.recorder.tap.backward and torch.is_grad_enabled():
            latest, reel = torch._C._autograd._get_sequence_nr() - 1, self.watches.reel
            scope = step.scopes.here
            if reel is not None and latest not in self._claims:
                scope = reel.scope_beside(scope)
            self._claims.setdefault(latest, (step, scope, reel))
            if len(self._claims) > _MOST_CLAIMS:  # the oldest graph is long gone
                del self._claims[next(iter(self._claims))]

    def backward_op(
        self, function: Function, func: OpOverload, args: Any, kwargs: dict[str, Any]
    ) -> RunPlan:
        """RunPlan an op outside of any step; one of autograd belongs to a forward op's scope."""
        node = torch._C._current_autograd_node()
        owner = None if node is None or is_recomputing() else self._claims.get(node._sequence_nr())
        if owner is None:
            return func, args, kwargs, None
        step, scope, reel = owner
        ends = ExitStack()
        returning = nullcontext(step.values) if reel is None else self.watches.returning(reel, step)
        values = ends.enter_context(returning)
        if values is None:
            ends.close()
            return func, args, kwargs, None
        written, shared = written_by(func, args, kwargs), shared_by(func, args)
        ends.enter_context(step.aside_in(scope, Phase.BACKWARD, values))
        behind = _in_backward(function)
        *called, after = recorded(step, behind, func, args, kwargs, False, written, shared)

        def ended(result: Any, error: BaseException | None) -> None:
            with ends:
                if after is not None:
                    after(result, error)

        return *called, ended  # type: ignore[return-value]
