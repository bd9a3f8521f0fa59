"""Where this process stands among the ranks, and how the values that it holds lie over the mesh."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.key import ROOT, Slot
from dumpcmp.nouns.layouts import (
    MICROBATCH,
    Coordinate,
    Coordinates,
    Layout,
    parse_coordinates,
    parse_layout,
)
from dumpcmp.pytorch.imports import once_imported
from dumpcmp.pytorch.names import Patch, check_names, patched
from dumpcmp.taps.distributed.dtensor import layout_of_spec, masked

_MACHINERY = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp")  # of torch.ops
_ENGINE = "_engine_run_backward"  # of torch.autograd: below it are the nodes of a graph
_REPLICATING, _FLATTENING = "DistributedDataParallel", "FullyShardedDataParallel"
_TENSOR, _PIPELINING = "torch.distributed.tensor", "torch.distributed.pipelining"
_BETWEEN = (
    *("dumpcmp.taps.", "torch.overrides", "torch._ops", "torch._utils", "torch.utils."),
    *("torch.autograd.", "torch.nn.parameter", "torch.nn.functional"),
    *("torch._dynamo.", "torch._compile"),  # what stands around hooks that are not to be compiled
)


@dataclass(frozen=True, slots=True)
class World:
    """One process among all processes of the run."""

    rank: int = 0
    size: int = 1
    coordinates: Coordinates = ()  # on the axes of the mesh, where the user stated it


class _State(threading.local):
    """What this thread is in the middle of."""

    microbatch: Coordinate | None = None
    stage: Any = None  # of a pipeline, the one that is running
    inferring: bool = False  # a pipeline is trying its stages out: the values are arbitrary


here = _State()
_working: list[tuple[Coordinate, Any]] = []  # microbatches and stages, for autograd's own threads
_begun: list[World] = []  # at most one: what this process was when its capture began
_stated: list[World] = []  # at most one: what set_rank was last told
_layouts: Any = WeakIdKeyDictionary()  # Layouts of plain tensors, by the tensor's identity
_heard: list[Callable[[Tensor], None]] = []  # told of each collective that a capture waited for
_origins: Any = WeakIdKeyDictionary()  # DTensors -> the plain tensors that they were made from
_schedules: list[dict[int, Callable[[], None]]] = []  # at most one: what to do after its step


def set_rank(rank: int, world_size: int, mesh: str = "") -> None:
    """State which rank this process is, for launchers that set neither RANK nor torch.distributed.

    `mesh` says where the rank is on each axis, such as ``"dp:0/2 tp:1/2"``. Call it before the
    capture begins.
    """
    if not 0 <= rank < world_size:
        raise CaptureError(f"rank {rank} is not one of {world_size} ranks", hint="count from 0")
    if any((begun.rank, begun.size) != (rank, world_size) for begun in _begun):
        raise CaptureError(
            f"the capture began as rank {_begun[0].rank} of {_begun[0].size}, not as rank {rank} "
            f"of {world_size}",
            hint="call set_rank before dumpcmp.capture; for dumpcmp dump set RANK and WORLD_SIZE",
        )
    coordinates = tuple(c.with_share(known=False) for c in parse_coordinates(mesh))
    _stated[:] = [World(rank, world_size, coordinates)]


def world() -> World:
    """Which rank this process is: as stated, as torch.distributed has it, or as launched."""
    if _stated:
        return _stated[0]
    if is_distributed():
        return World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and size.isdigit() and int(rank) < int(size)):
        raise CaptureError(
            f"RANK={rank!r} and WORLD_SIZE={size!r} name no rank",
            hint="unset them, or call dumpcmp.set_rank(rank, world_size)",
        )
    return World(int(rank), int(size))


def is_distributed() -> bool:
    """Whether the program has started torch.distributed."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


_AnyTensor = TypeVar("_AnyTensor", bound=Tensor)


def layout(tensor: _AnyTensor, text: str) -> _AnyTensor:
    """State how `tensor`, a plain tensor, lies over the mesh: ``dumpcmp.layout(x, "b s h[tp]")``.

    Returns the tensor itself, so that it can be written around an expression.
    """
    _layouts[tensor] = parse_layout(text)
    return tensor


def layout_of(tensor: Tensor) -> str:
    """What is known of a plain tensor's layout, as the text of its Record."""
    coordinates = _stated[0].coordinates if _stated else ()
    if not coordinates and not _layouts.data and _working_on()[0] is None:
        return ""
    known = _layouts.get(tensor, Layout())
    axes = {c.axis for c in known.coordinates}
    spoken = bool(known.dims or known.over)
    stated = tuple(c.with_share(known=spoken) for c in coordinates if c.axis not in axes)
    return str(_in_microbatch(replace(known, coordinates=(*known.coordinates, *stated))))


def has_stated() -> bool:
    """Whether the user has said where in the mesh this process is."""
    return bool(_stated)


def stated_layouts() -> dict[Any, Any]:
    """The Layouts of plain tensors that are known now; what comes is in it, too."""
    stated: dict[Any, Any] = _layouts.data
    return stated


def unwrapped(tensor: Tensor) -> tuple[Tensor, str] | None:
    """The tensor that this rank holds of a wrapper of torch.distributed, and its layout.

    Runs no collective and leaves the wrapper as it is. None for any other tensor.
    """
    if is_dtensor(tensor):
        held: Any = tensor
        local = masked(_waited(held._local_tensor), held._spec)
        return local, str(_in_microbatch(layout_of_spec(held._spec)))
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        return _waited(tensor), layout_of(tensor)
    return None


def is_dtensor(tensor: object) -> bool:
    """Whether `tensor` is a DTensor; imports nothing."""
    kind = getattr(sys.modules.get(_TENSOR), "DTensor", None)  # none in the middle of its import
    return kind is not None and isinstance(tensor, kind)


def is_parallel_wrapper(module: torch.nn.Module) -> bool:
    """Whether `module` only wraps another for data parallelism, and has no op of its own."""
    return type(module).__name__ in (_REPLICATING, _FLATTENING) and (
        type(module).__module__.startswith("torch.")
    )


def is_on_all_ranks(
    parameter: torch.Tensor, wrappers: Iterable[torch.nn.Module], num_ranks: int
) -> bool:
    """Whether each rank has `parameter` or a shard of it: as a DTensor, or as a replica of DDP."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        return bool(mesh.size() == num_ranks)
    replicated = (
        one for one in wrappers if type(one).__name__ == _REPLICATING
        and one.process_group.size() == num_ranks  # type: ignore[operator]
    )  # fmt: skip
    return any(parameter is own for one in replicated for own in one.parameters())


def keeps_flat(wrappers: Iterable[torch.nn.Module]) -> bool:
    """Whether ranks have flat shards of parameters between steps, and not what a step records."""
    return any(type(one).__name__ == _FLATTENING for one in wrappers)


def is_machinery(func: Any) -> bool:
    """Whether torch.distributed itself calls `func`: how it moves values is no op of the model."""
    if not is_distributed():
        return False
    if (getattr(func, "__module__", "") or "").startswith("torch.distributed"):
        return True  # recorded as a collective
    return getattr(func, "namespace", "") in _MACHINERY or _caller().startswith("torch.distributed")


def handed_on(tensor: Tensor) -> Tensor:
    """`tensor` as a view of itself, by which an autograd.Function hands its input on as it is.

    What is recorded of the view is `tensor`'s, its gradient above all.
    """
    view = tensor.view_as(tensor)
    _origins[view] = tensor
    return view


def _caller() -> str:
    """The module whose code called the torch function that is being recorded.

    None where a backward pass runs it: who began the pass is not who wrote the function.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != _ENGINE:
        name: str = frame.f_globals.get("__name__", "")
        if not name.startswith(_BETWEEN):
            return name
        frame = frame.f_back
    return ""


def of_model(op: str, found: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Of the values of `op` those that the whole model has too.

    What a pipeline stage takes from the one before it, or gives to the next, is no input or
    output of the model: the modules inside the stage and the sends and receives have it.
    """
    stage = _working_on()[1]
    if op != ROOT or stage is None:
        return found
    kept = {"input": stage.is_first, "output": stage.is_last}
    return [(slot, tensor) for slot, tensor in found if kept.get(Slot(slot).kind, True)]


def origins() -> dict[Any, Any]:
    """What `origin_of` looks in; while it is empty, each tensor is its own origin."""
    found: dict[Any, Any] = _origins.data
    return found


def origin_of(tensor: Tensor) -> Tensor:
    """The tensor that a DTensor or view was made from, whose gradient is that of all its uses."""
    origin: Tensor = _origins.get(tensor, tensor) if _origins else tensor
    return origin


def after_backward(parameter: Tensor, put: Callable[[], None]) -> None:
    """Run `put` when the backward pass, with its reductions of gradients, has ended.

    DistributedDataParallel queues its own end from inside the pass; queueing twice lets it go
    first. A pipeline adds up the gradients of its microbatches and scales them at the end of its
    step: what `parameter` has then is its gradient.
    """
    if _schedules:
        _schedules[-1][id(parameter)] = put
        return
    after_pass(put)


def after_pass(run: Callable[[], None]) -> None:
    """Run `run` when the backward pass that this thread is in has ended, and what torch adds."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(run))


@contextmanager
def captured() -> Iterator[World]:
    """Hold on to which rank this process is while the block, a capture, runs."""
    _begun[:] = [world()]
    try:
        yield _begun[0]
    finally:
        _begun.clear()


@contextmanager
def remembering(lacking: list[str], is_traced: bool = False) -> Iterator[None]:
    """Remember, while the block runs, the layouts of what leaves DTensors, and microbatches.

    Torch's modules for these take seconds to import: they are patched once the program has done so.
    What this torch lacks for it is added to `lacking`. Where the program `is_traced`, `from_local`
    stays as it is: dynamo knows it by identity.
    """
    with ExitStack() as ends:

        def know_layouts() -> None:
            lacking.extend(check_names("DTensors"))
            ends.enter_context(patched(*_tensor_patches(is_traced)))

        def know_microbatches() -> None:
            missing = check_names("pipelines")
            lacking.extend(missing)
            ends.enter_context(patched(*(() if missing else _pipeline_patches())))

        ends.enter_context(once_imported(_TENSOR, know_layouts))
        ends.enter_context(once_imported(_PIPELINING, know_microbatches))
        yield


@contextmanager
def hearing(heard: Callable[[Tensor], None]) -> Iterator[None]:
    """Tell `heard`, while the block runs, of each result that the capture itself waited for."""
    _heard.append(heard)
    try:
        yield
    finally:
        _heard.remove(heard)


def _waited(tensor: Tensor) -> Tensor:
    """The tensor behind an AsyncCollectiveTensor, once it is there."""
    if type(tensor).__name__ != "AsyncCollectiveTensor":
        return tensor
    held: Any = tensor
    plain: Tensor = held.wait()
    for heard in _heard:
        heard(plain)
    return plain


def _in_microbatch(known: Layout) -> Layout:
    microbatch = _working_on()[0]
    if microbatch is None:
        return known
    return replace(known, coordinates=(*known.coordinates, microbatch))


def _remembering_layout(to_local: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        local = to_local(self, *args, **kwargs)
        _layouts[local] = layout_of_spec(self._spec)
        return local

    return call


def _remembering_origin(from_local: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(local: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = from_local(local, *args, **kwargs)
        _origins[made] = local
        return made

    return call


def _working_on() -> tuple[Coordinate | None, Any]:
    """The microbatch and the stage that this thread works on.

    What lies on a GPU autograd does in a thread of its own, while the one that asked for it waits.
    """
    is_asked = here.microbatch is None and torch._C._current_graph_task_id() != -1
    return _working[-1] if is_asked and _working else (here.microbatch, here.stage)


def _tensor_patches(is_traced: bool) -> list[Patch]:
    from torch.distributed.tensor import DTensor

    leaving: Patch = (DTensor, "to_local", _remembering_layout)
    return [leaving] if is_traced else [leaving, (DTensor, "from_local", _remembering_origin)]


def _pipeline_patches() -> list[Patch]:
    from torch.distributed.pipelining import schedules, stage

    chunks = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
    kinds = (stage.PipelineStage, stage._PipelineStage)
    steps = (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti)
    return [
        *((kind, "step", _scheduled) for kind in steps),
        *((stage._PipelineStageBase, name, _numbered) for name in chunks),
        *((kind, "_prepare_forward_infra", _inferring) for kind in kinds),
    ]


def _numbered(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a stage's work on one microbatch, so that its values say which one it is."""

    def call(self: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
        with microbatch(chunk, of=self.chunks, stage=self):
            return run(self, chunk, *args, **kwargs)

    return call


@contextmanager
def microbatch(number: int, *, of: int, stage: Any = None) -> Iterator[None]:
    """Say that a model which is called in the block gets share `number` of `of` of its batch.

    A run whose batch is divided compares with one that has it whole: shares are put together
    along whichever dimension gives golden's values.

        for number, share in enumerate(batch.chunk(4)):
            with dumpcmp.microbatch(number, of=4):
                losses.append(model(share))

    Pipelines of torch say it themselves, and so does DataParallel. `stage` is a pipeline's.
    """
    if not 0 <= number < of:
        raise CaptureError(
            f"a batch in {of} shares has no share {number}",
            hint="number the shares from 0, and give how many there are as `of`",
        )
    before = here.microbatch, here.stage
    here.microbatch, here.stage = Coordinate(MICROBATCH, number, of, known=False), stage
    _working.append((here.microbatch, stage))
    try:
        yield
    finally:
        _working.pop()
        here.microbatch, here.stage = before


def _scheduled(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step of a pipeline's schedule: gradients of parameters are whole when it has ended."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _schedules.append({})
        try:
            result = run(self, *args, **kwargs)
        finally:
            waiting = _schedules.pop()
        for put in waiting.values():
            put()
        return result

    return call


def _inferring(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the trial of a stage that finds out its shapes: it is not a step of the model."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        here.inferring = True
        try:
            return run(self, *args, **kwargs)
        finally:
            here.inferring = False

    return call
