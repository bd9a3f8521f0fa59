"""Captures collectives as ops of their own: what each rank gave, to which group, and got."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import AFTER
from dumpcmp.nouns.record import Call, Phase
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.pytorch.imports import once_imported
from dumpcmp.pytorch.names import patched
from dumpcmp.taps.distributed.ranks import after_pass, hearing
from dumpcmp.taps.recording.functions import Function
from dumpcmp.taps.recording.models import Scope
from dumpcmp.taps.recording.step import Step

_DOOR = "__torch_dispatch__"
_WRAPPERS = ("DTensor", "AsyncCollectiveTensor")


# Collectives of the c10d namespace, and the arguments of its schema that hold what this rank gives
# and, afterwards, what it gets.
_IN_PLACE = {
    "allreduce_": (Collective.ALL_REDUCE, "tensors", "tensors"),
    "broadcast_": (Collective.BROADCAST, "tensors", "tensors"),
    "reduce_": (Collective.REDUCE, "tensors", "tensors"),
    "allgather_": (Collective.ALL_GATHER, "input_tensors", "output_tensors"),
    "_allgather_base_": (Collective.ALL_GATHER, "input_tensor", "output_tensor"),
    "allgather_into_tensor_coalesced_": (Collective.ALL_GATHER, "inputs", "outputs"),
    "allgather_coalesced_": (Collective.ALL_GATHER, "input_list", "output_lists"),
    "reduce_scatter_": (Collective.REDUCE_SCATTER, "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": (Collective.REDUCE_SCATTER, "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": (Collective.REDUCE_SCATTER, "inputs", "outputs"),
    "alltoall_": (Collective.ALL_TO_ALL, "input_tensors", "output_tensors"),
    "alltoall_base_": (Collective.ALL_TO_ALL, "input", "output"),
    "gather_": (Collective.GATHER, "input_tensors", "output_tensors"),
    "scatter_": (Collective.SCATTER, "input_tensors", "output_tensors"),
    "send": (Collective.SEND, "tensors", ""),
    "recv_": (Collective.RECV, "", "tensors"),
}
_FUNCTIONAL = {  # DTensor and torch.compile use these; their result is ready after wait_tensor
    "all_reduce": Collective.ALL_REDUCE,
    "all_reduce_": Collective.ALL_REDUCE,
    "all_gather_into_tensor": Collective.ALL_GATHER,
    "reduce_scatter_tensor": Collective.REDUCE_SCATTER,
    "all_to_all_single": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
}
# Words of a schema that say what a collective does, as they appear in Call.arguments.
_WORDS = ("root_rank", "src", "dst", "tag", "number", "output_split_sizes", "input_split_sizes")


@dataclass(slots=True)
class _Pending:
    """A collective that has begun: its outputs are recorded when they are there."""

    step: Step
    call: Call
    outputs: list[Tensor]
    work: Any = None  # of a functional collective: none, its result is waited for
    waited: bool = False  # some works never say that they are completed
    is_promised: bool = False  # on this stream, where it waits for the work's


class CollectiveMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records collectives that run in a step or its backward pass. Never waits for one itself."""

    def __init__(self, step_here: Callable[[], Step | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._step_here = step_here
        self._reduction = "sum"  # of the collective that is being called
        self._pending: list[_Pending] = []
        self._numbers: defaultdict[tuple[Any, ...], itertools.count[int]]
        self._numbers = defaultdict(itertools.count)
        self._scopes = weakref.WeakKeyDictionary[Step, dict[str, Scope]]()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tell dynamo to compile as if the mode were not there."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            return self._in_place(func, args, kwargs)
        if func.namespace == "_c10d_functional":
            return self._functional(func, args, kwargs)
        if any(kind.__name__ in _WRAPPERS for kind in types):
            return NotImplemented  # the wrapper runs, and the collectives inside it come here
        return func(*args, **kwargs)

    def _in_place(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        known = _IN_PLACE.get(func._schema.name.removeprefix("c10d::"))
        if known is None:
            return func(*args, **kwargs)
        (name, given, got), bound = known, _bound(func, args, kwargs)
        self._count(name, bound)
        step = self._step_here()
        if step is None:
            return func(*args, **kwargs)
        call = self._begin(step, name, _flat(bound.get(given)), bound)
        result = func(*args, **kwargs)
        outputs = _flat(bound.get(got))
        if call is not None and outputs:
            work = result[-1] if isinstance(result, tuple) else result
            self._pending.append(_Pending(step, call, outputs, dist.Work.unbox(work)))
            if _is_backward():  # torch waits where Python sees nothing, and uses a bucket again
                after_pass(self._pass_ended)
        return result

    def _count(self, name: Collective, bound: dict[str, Any]) -> None:
        """Number sends and receives with each peer from the first on: so they find each other."""
        if name.is_letter:
            peer = (name, bound.get("dst", bound.get("src")), bound["tag"], str(_ranks(bound)))
            bound["number"] = next(self._numbers[peer])

    def _functional(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        word = func._schema.name.removeprefix("_c10d_functional::")
        if word == "wait_tensor":
            result = func(*args, **kwargs)
            self.finish(result)
            return result
        step = self._step_here() if word in _FUNCTIONAL else None
        if step is None:
            return func(*args, **kwargs)
        bound = _bound(func, args, kwargs)
        call = self._begin(step, _FUNCTIONAL[word], [bound["input"]], bound)
        result = func(*args, **kwargs)
        if call is not None:
            self._pending.append(_Pending(step, call, [result]))
        return result

    def finish(self, result: Tensor) -> None:
        """Record the functional collective whose result was just waited for."""
        for one in self._pending:
            if one.outputs[0].data_ptr() == result.data_ptr():
                one.waited = True
        self.record_finished()

    def _pass_ended(self) -> None:
        """Record what torch waited for by its future: a work may say so later that it is done.

        Gloo completes the future first, NCCL only when the device is through with it; and the next
        pass writes into the same bucket.
        """
        for one in self._pending:
            one.is_promised = one.is_promised or _is_done(one.work)
        self.record_finished()

    def record_finished(self) -> None:
        for one in list(self._pending):
            if one.waited or one.is_promised or (one.work and one.work.is_completed()):
                self._pending.remove(one)
                if not one.waited and one.outputs[0].is_cuda:
                    one.work.synchronize()  # this stream with that of the result
                one.step.rewritten(one.call, one.outputs)
                single = len(one.outputs) == 1
                one.step.outputs(one.call, one.outputs[0] if single else one.outputs)

    def remarks(self) -> list[str]:
        """What the user must hear at the end: of collectives that nobody has waited for."""
        self.record_finished()
        if not self._pending:
            return []
        first, count = self._pending[0], len(self._pending)
        what, it = counted(count, "collective"), plural(count, "it", "they")
        return [
            f"{what} had not finished when the capture ended, and what {it} gave was not recorded: "
            f"{first.call.op}, step {first.step.number}"
        ]

    def waited(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap Work.wait: what it waited for is recorded before the program can change it."""

        def call(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            for one in self._pending:
                one.waited = one.waited or one.work is work
            self.record_finished()
            return result

        return call

    def reducing(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a reduction of ProcessGroup: the dispatcher hides which reduction it is."""

        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            options = next((a for a in (*args, *kwargs.values()) if hasattr(a, "reduceOp")), None)
            self._reduction = options.reduceOp.op.name.lower() if options else "sum"
            try:
                return run(group, *args, **kwargs)
            finally:
                self._reduction = "sum"

        return call

    def _begin(
        self, step: Step, name: Collective, given: Sequence[Tensor], bound: dict[str, Any]
    ) -> Call | None:
        self.record_finished()
        function = Function(name, target=name.target)
        words = {word: bound[word] for word in _WORDS if word in bound}
        if "reduce_op" in bound:
            op = bound["reduce_op"]
            words["op"] = op if isinstance(op, str) else self._reduction
        words["group"] = _ranks(bound)
        words |= {"axis": axis} if (axis := _axis(bound)) else {}
        with self._placed(step):
            return step.function(function, tuple(given), words)

    @contextmanager
    def _placed(self, step: Step) -> Iterator[None]:
        """The scope for a collective: its module's, or its own after the model's forward pass."""
        if step.scopes.is_open:
            yield
            return
        mark, phase = (AFTER, Phase.FORWARD)
        if _is_backward():
            mark, phase = ("@backward", Phase.BACKWARD)
        scopes = self._scopes.setdefault(step, {})
        with step.aside_in(scopes.setdefault(mark, step.scopes.beside(mark)), phase):
            yield


@contextmanager
def collectives(step_here: Callable[[], Step | None]) -> Iterator[CollectiveMode]:
    """Record collectives while the block runs; `step_here` says which step this thread is in."""
    mode = CollectiveMode(step_here)
    names = [n for n in dir(dist.ProcessGroup) if "reduce" in n and not n.startswith("__")]
    reducing = [(dist.ProcessGroup, name, mode.reducing) for name in names]
    with patched((dist.Work, "wait", mode.waited), *reducing):
        try:
            with _plain_without_dynamo(), hearing(mode.finish), mode:
                yield mode
        finally:
            mode.record_finished()


@contextmanager
def _plain_without_dynamo() -> Iterator[None]:
    """Have the mode run unwrapped until dynamo is there: torch's wrapper imports it, for seconds.

    The wrapper keeps dynamo out of the mode, which it need not before the program has imported it.
    """
    wrapped = getattr(CollectiveMode, _DOOR)
    setattr(CollectiveMode, _DOOR, unwrap(wrapped))
    try:
        with once_imported("torch._dynamo", lambda: setattr(CollectiveMode, _DOOR, wrapped)):
            yield
    finally:
        setattr(CollectiveMode, _DOOR, wrapped)


def _is_done(work: Any) -> bool:
    """Whether the future of `work` is: what it promises is there for whoever waits on a stream."""
    if work is None:
        return False
    try:
        return bool(work.get_future().done())
    except RuntimeError:  # works of this backend have none, and torch could not wait for it either
        return False


def _is_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _bound(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _flat(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return [tensor for one in tensors or () for tensor in _flat(one)]


def _group(bound: dict[str, Any]) -> dist.ProcessGroup:
    group = bound.get("process_group", bound.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        return dist.ProcessGroup.unbox(group)
    if isinstance(group, str):
        resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]
        group = resolve(group)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _ranks(bound: dict[str, Any]) -> list[int]:
    """The global ranks of the group, in its order."""
    return list(dist.get_process_group_ranks(_group(bound)))


def _axis(bound: dict[str, Any]) -> str:
    """The axis of a mesh that the group was made for; empty where it was not."""
    made_for, _, axis = str(_group(bound).group_desc).partition("_")
    return axis if made_for == "mesh" and axis != "default" else ""
