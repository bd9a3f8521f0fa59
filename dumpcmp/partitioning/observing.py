"""Runs an op in parts inside one process: slices in, op per part, joined outputs, one backward.

Autograd goes through the slices and the joins, so that gradients of replicated inputs add up and
those of split inputs lie side by side, as they would on real ranks.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.partitioning.call import OpCall, Path, leaves, replaced
from dumpcmp.partitioning.configuration import PartitionError, TensorInfo
from dumpcmp.partitioning.inputs import cotangent, make_inputs
from dumpcmp.partitioning.partition import WHOLE, Partial, Partition, Share, Split
from dumpcmp.partitioning.rules.ruling import Domain
from dumpcmp.partitioning.signature import function_of


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of an op: small enough to be sent, since its tensors are made where it runs."""

    call: OpCall
    partition: Partition
    domains: tuple[Domain, ...]
    wanted: tuple[int, ...]  # leaves whose gradients are observed
    paths: Mapping[str, Path]  # parameter -> where its argument is
    seed: int = 0
    double: bool = False  # in float64
    backward: bool = True
    device: str = "cpu"
    noise: int = 0  # added to the seed of torch's generator, not to that of the inputs
    native: tuple[torch.dtype, ...] = ()  # dtypes of the outputs outside float64


@dataclass(frozen=True, slots=True)
class Joined:
    """What a run gave, whole: slot -> tensor; and slots that every part should have the same."""

    values: Mapping[str, Tensor]
    replicas: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)


LeafTensors = Sequence[Tensor | None]


def inputs_of(trial: Trial) -> list[Tensor | None]:
    """The whole inputs of `trial`, on its device."""
    stubs = tuple(
        leaf.value if isinstance(leaf.value, TensorInfo) else None for leaf in leaves(trial.call)
    )
    made = make_inputs(stubs, trial.domains, trial.seed)
    return [None if tensor is None else tensor.to(trial.device) for tensor in made]


def observe(trial: Trial, inputs: LeafTensors) -> Joined:
    """Run all parts of `trial` here, on slices of `inputs`, and join what they give."""
    try:
        with full_precision():
            return _observe(trial, inputs)
    except DumpcmpError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        what = f"{type(error).__name__}: {lines[0]}"
        raise PartFailedError(f"joining the parts or their backward raises {what}") from error


def _observe(trial: Trial, given: LeafTensors) -> Joined:
    sources = [_source(tensor, i in trial.wanted, trial.double) for i, tensor in enumerate(given)]
    locals_ = [_local(sources, trial.partition, part) for part in range(trial.partition.num)]
    with seeded(trial.seed + trial.noise, trial.device):
        results = _run_all(trial, locals_)
    outputs = [_tensors(result) for result in results]
    trial = replace(
        trial, partition=replace(trial.partition, outputs=placements(trial, len(outputs[0])))
    )
    joined = [
        _joined([mine[i] for mine in outputs], placement)
        for i, placement in enumerate(trial.partition.outputs)
    ]
    values = {f"output.{i}": value.detach() for i, value in enumerate(joined)}
    replicas = {
        f"output.{i}": [mine[i].detach() for mine in outputs]
        for i, placement in enumerate(trial.partition.outputs)
        if not isinstance(placement, Split | Partial) and trial.partition.num > 1
    }
    if trial.backward:
        values |= _gradients(trial, sources, outputs)
    for i in _mutated(trial, sources, locals_):
        mine = [part[i].detach() for part in locals_]  # type: ignore[union-attr]
        placement = trial.partition.inputs[i]
        values[f"mutated.{i}"] = _joined(mine, placement)
        if not isinstance(placement, Split) and trial.partition.num > 1:
            replicas[f"mutated.{i}"] = mine
    return Joined(values, replicas)


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 is float32 inside: TF32 would make the single run as wrong as a wrong partition."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Torch's generators start from `seed` inside, and go on as before after."""
    gpus = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


def widened(tensor: Tensor) -> Tensor:
    """Floats as float64, complex numbers as complex128, anything else as it is."""
    if tensor.is_floating_point():
        return tensor.double()
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor


def _source(tensor: Tensor | None, wanted: bool, double: bool) -> Tensor | None:
    if tensor is None:
        return None
    plain = widened(tensor.detach()) if double else tensor.detach()
    return plain.clone().requires_grad_() if wanted and plain.is_floating_point() else plain


def slice_of(tensor: Tensor, placement: Share, part: int) -> Tensor:
    """What `part` holds of `tensor`."""
    if isinstance(placement, Split):
        return tensor.narrow(placement.dim, placement.starts[part], placement.lengths[part])
    return tensor


def _local(sources: LeafTensors, partition: Partition, part: int) -> list[Tensor | None]:
    return [
        None
        if tensor is None
        else slice_of(tensor, placement, part).clone(memory_format=torch.contiguous_format)
        for tensor, placement in zip(sources, partition.inputs, strict=True)
    ]


def arguments_of(trial: Trial, mine: LeafTensors, part: int) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of one part: its tensors, and what the partition changes for it."""
    changes = dict(trial.partition.changes[part])
    tensors = {leaf.path: t for leaf, t in zip(leaves(trial.call), mine, strict=True)}

    def change(path: Path, value: Any) -> Any:
        tensor = tensors.get(path)
        if tensor is not None:
            return tensor
        value = changes.get(path, value)
        floats = isinstance(value, torch.dtype) and value.is_floating_point
        return torch.float64 if trial.double and floats else value

    return replaced(trial.call, change)


def started(trial: Trial, mine: LeafTensors, part: int) -> Any:
    """Run one part: its result, or, for a synchronised op, the generator that leads to it."""
    args, kwargs = arguments_of(trial, mine, part)
    if not trial.partition.synchronised:
        return function_of(trial.call).run(*args, **kwargs)
    home, _, name = trial.partition.synchronised.rpartition(".")
    given = {"args": args, "kwargs": kwargs}
    named = {n: given[str(side)][key] for n, (side, key, *_) in trial.paths.items()}  # type: ignore[index]
    return getattr(import_module(home), name)(**named)


def _run_all(trial: Trial, locals_: Sequence[LeafTensors]) -> list[Any]:
    results = []
    for part, mine in enumerate(locals_):
        try:
            results.append(started(trial, mine, part))
        except Exception as error:
            raise _failed(part, trial.partition.num, error) from error
    return _together(results) if trial.partition.synchronised else results


class PartFailedError(PartitionError):
    """The op raised an error on a part."""


def _failed(part: int, num: int, error: Exception) -> PartFailedError:
    where = f"part {part} of {num}" if num > 1 else "the op itself"
    lines = str(error).strip().splitlines() or [""]
    return PartFailedError(f"{where} raises {type(error).__name__}: {lines[0]}")


def _together(parts: Sequence[Generator[Tensor, Tensor, Any]]) -> list[Any]:
    """Run generators in step, sending each the sum of what all of them yield."""
    results: list[Any] = [None] * len(parts)
    sent: list[Tensor | None] = [None] * len(parts)
    while True:
        yielded = []
        for i, part in enumerate(parts):
            try:
                yielded.append(part.send(sent[i]))  # type: ignore[arg-type]
            except StopIteration as stop:
                results[i] = stop.value
        if not yielded:
            return results
        if len(yielded) != len(parts):
            raise PartitionError("the parts of a synchronised op do not exchange equally often")
        sent = [torch.stack(yielded).sum(0)] * len(parts)


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def placements(trial: Trial, found: int) -> tuple[Share, ...]:
    """How the outputs come together; an annotation with more or fewer than `found` is refused."""
    if trial.partition.num == 1:
        return (WHOLE,) * found
    if found != len(trial.partition.outputs):
        raise PartitionError(
            f"{trial.call.fsig} gives {found} tensors, "
            f"its annotation has {len(trial.partition.outputs)}",
            hint="write one shape for each output",
        )
    return trial.partition.outputs


def _joined(parts: Sequence[Tensor], placement: Share) -> Tensor:
    if isinstance(placement, Split) and len(parts) > 1:
        return torch.cat(list(parts), placement.dim)
    if isinstance(placement, Partial):
        return _sum(parts)
    return parts[0]


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _gradients(
    trial: Trial, sources: LeafTensors, outputs: Sequence[Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Gradients of the wanted inputs under a random cotangent of every differentiable output."""
    targets, arriving = [], []
    for i, placement in enumerate(trial.partition.outputs):
        parts = [mine[i] for mine in outputs]
        if not any(part.requires_grad for part in parts):
            continue
        mean = not isinstance(placement, Split | Partial)
        whole = _sum(parts) / len(parts) if mean and len(parts) > 1 else _joined(parts, placement)
        targets.append(whole)
        arriving.append(arriving_at(trial, i, whole))
    tensors = [(i, t) for i in trial.wanted if (t := sources[i]) is not None and t.requires_grad]
    if not targets or not tensors:
        return {}
    found = torch.autograd.grad(targets, [t for _, t in tensors], arriving, allow_unused=True)
    return {
        f"grad_input.{i}": grad.detach()
        for (i, _), grad in zip(tensors, found, strict=True)
        if grad is not None
    }


def arriving_at(trial: Trial, index: int, like: Tensor) -> Tensor:
    """The cotangent of output `index`; in float64 it is the same numbers."""
    native = trial.native[index] if trial.native else like.dtype
    made = cotangent(tuple(like.shape), native, index, trial.seed)
    return made.to(device=like.device, dtype=like.dtype)


def _mutated(trial: Trial, sources: LeafTensors, locals_: Sequence[LeafTensors]) -> list[int]:
    """Leaves that any part has written to."""
    return [
        i
        for i, source in enumerate(sources)
        if source is not None
        and any(
            was_written(mine[i], slice_of(source, trial.partition.inputs[i], part))
            for part, mine in enumerate(locals_)
        )
    ]


def was_written(tensor: Tensor | None, before: Tensor) -> bool:
    """Whether an op wrote to its copy of `before`; norms do so without counting a version."""
    if tensor is None:
        return False
    return tensor.shape != before.shape or not torch.equal(tensor.detach(), before.detach())
