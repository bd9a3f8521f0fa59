"""Runs an op in parts: what one part does, wherever it runs, and all parts in one process.

A part is a generator. Wherever it needs the others it yields what it has, and is sent what all of
them have together: in one process parts take turns (`observe`), ranks use collectives (`rank.py`).
The last thing that it yields is what it found.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.partitioning.call import OpCall, Path, leaves, replaced
from dumpcmp.partitioning.configuration import PartitionError, TensorInfo
from dumpcmp.partitioning.inputs import cotangent, make_tensor
from dumpcmp.partitioning.partition import Everywhere, Partition, Share, Split
from dumpcmp.partitioning.rules.ruling import Domain
from dumpcmp.partitioning.signature import function_of, resolved
from dumpcmp.pytorch.trees import tensors_in


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


LeafTensors = Sequence[Tensor | None]  # for each leaf of the call, None where it is no tensor
SlotTensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Joined:
    """What a run gave, whole; and what every part gave where all should give the same."""

    values: Mapping[str, Tensor]
    replicas: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)

    @property
    def outputs(self) -> list[Tensor]:
        """The op's outputs, without gradients and what was written in place."""
        return [value for slot, value in self.values.items() if slot.startswith("output.")]


class Runner(Protocol):
    """Runs the parts of a trial."""

    def observe(self, trial: Trial, inputs: LeafTensors) -> Joined:
        """Run `trial`; a runner inside this process may use its whole `inputs`."""
        ...


class PartFailedError(PartitionError):
    """The op raised an error on a part."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part's share of a value, to be sent the whole."""

    tensor: Tensor
    share: Share


@dataclass(frozen=True, slots=True)
class Backward:
    """Outputs, what arrives at them, and the leaves whose gradients are to be sent."""

    outputs: list[Tensor]
    arriving: list[Tensor]
    leaves: list[Tensor]


@dataclass(frozen=True, slots=True)
class Done:
    """What a part has found: whole values, and what this part replicates."""

    values: SlotTensors
    replicas: SlotTensors


# A tensor asks for the sum over all parts, through which gradients flow; a bool whether it is so
# anywhere.
Request = Tensor | bool | Piece | Backward | Done


def inputs_of(trial: Trial) -> list[Tensor | None]:
    """The whole inputs of `trial`, on its device."""
    return [
        make_tensor(leaf.value, domain, trial.seed + 31 * index).to(trial.device)
        if isinstance(leaf.value, TensorInfo)
        else None
        for index, (leaf, domain) in enumerate(zip(leaves(trial.call), trial.domains, strict=True))
    ]


def run_part(trial: Trial, inputs: LeafTensors, part: int) -> Generator[Request, Any, None]:
    """Run `part` on its slices of the whole `inputs`: outputs, gradients, what was written to."""
    shares = trial.partition.inputs
    mine = [
        None if tensor is None else _leaf(trial, i, slice_of(tensor, shares[i], part))
        for i, tensor in enumerate(inputs)
    ]
    working = [None if tensor is None else tensor.clone() for tensor in mine]
    result = _started(trial, working, part)
    if trial.partition.synchronised:
        result = yield from result
    outputs = list(tensors_in(result).values())
    given = _shares(trial, len(outputs))
    pieces = {f"output.{i}": Piece(t.detach(), given[i]) for i, t in enumerate(outputs)}
    if trial.backward:
        pieces |= yield from _gradients(trial, mine, outputs, given, part)
    for i, (tensor, before) in enumerate(zip(working, mine, strict=True)):
        if tensor is not None and before is not None and (yield _was_written(tensor, before)):
            pieces[f"mutated.{i}"] = Piece(tensor.detach(), shares[i])
    values = {}
    for slot, piece in pieces.items():
        values[slot] = yield piece
    yield Done(
        values, {slot: p.tensor for slot, p in pieces.items() if p.share is Everywhere.WHOLE}
    )


def slice_of(tensor: Tensor, share: Share, part: int) -> Tensor:
    """What `part` holds of `tensor`."""
    if isinstance(share, Split):
        return tensor.narrow(share.dim, share.starts[part], share.lengths[part])
    return tensor


def _leaf(trial: Trial, index: int, tensor: Tensor) -> Tensor:
    """A part's own copy of an input, in float64 where the trial is; it may ask for a gradient."""
    given = tensor.detach()
    wide = torch.complex128 if given.is_complex() else torch.float64
    is_number = given.is_complex() or given.is_floating_point()
    dtype = wide if trial.double and is_number else given.dtype
    own = given.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return own.requires_grad_(index in trial.wanted and own.is_floating_point())


def _started(trial: Trial, mine: LeafTensors, part: int) -> Any:
    """Run one part: its result, or, for a synchronised op, the generator that leads to it."""
    changes = dict(trial.partition.changes[part])
    tensors = {leaf.path: t for leaf, t in zip(leaves(trial.call), mine, strict=True)}

    def change(path: Path, value: Any) -> Any:
        if (tensor := tensors.get(path)) is not None:
            return tensor
        value = changes.get(path, value)
        floats = isinstance(value, torch.dtype) and value.is_floating_point
        return torch.float64 if trial.double and floats else value

    args, kwargs = replaced(trial.call, change)
    if not trial.partition.synchronised:
        return function_of(trial.call).run(*args, **kwargs)
    given: dict[Any, Any] = {"args": args, "kwargs": kwargs}
    named = {name: given[side][key] for name, (side, key, *_) in trial.paths.items()}
    return resolved(trial.partition.synchronised)(**named)


def _shares(trial: Trial, found: int) -> tuple[Share, ...]:
    """How the outputs come together; an annotation with more or fewer than `found` is refused."""
    shares = trial.partition.outputs
    if trial.partition.num == 1:
        return (Everywhere.WHOLE,) * found
    if found != len(shares):
        raise PartitionError(
            f"{trial.call.fsig} gives {found} tensors, its annotation has {len(shares)}",
            hint="write one shape for each output",
        )
    return shares


def _gradients(
    trial: Trial, mine: LeafTensors, outputs: list[Tensor], given: Sequence[Share], part: int
) -> Generator[Backward, Any, dict[str, Piece]]:
    """Gradients of the wanted inputs under a random cotangent of every differentiable output.

    Those of replicated inputs add up over the parts, those of split inputs lie side by side.
    """
    targets = [(i, output) for i, output in enumerate(outputs) if output.requires_grad]
    sources = [(i, t) for i in trial.wanted if (t := mine[i]) is not None and t.requires_grad]
    if not targets or not sources:
        return {}
    arriving = [_arriving(trial, i, output, given[i], part) for i, output in targets]
    grads = yield Backward([t for _, t in targets], arriving, [t for _, t in sources])
    shares = trial.partition.inputs
    return {
        f"grad_input.{i}": Piece(
            grad, shares[i] if isinstance(shares[i], Split) else Everywhere.PARTIAL
        )
        for (i, _), grad in zip(sources, grads, strict=True)
        if grad is not None
    }


def _arriving(trial: Trial, index: int, output: Tensor, share: Share, part: int) -> Tensor:
    """What arrives at this part of the cotangent of the whole output; the same in float64."""
    shape = list(output.shape)
    if isinstance(share, Split):
        shape[share.dim] = sum(share.lengths)
    native = trial.native[index] if trial.native else output.dtype
    whole = cotangent(tuple(shape), native, index, trial.seed)
    arriving = slice_of(whole.to(device=output.device, dtype=output.dtype), share, part)
    return arriving / trial.partition.num if share is Everywhere.WHOLE else arriving


def _was_written(tensor: Tensor, before: Tensor) -> bool:
    """Whether an op wrote to its copy of `before`; norms do so without counting a version."""
    return tensor.shape != before.shape or not torch.equal(tensor.detach(), before.detach())


def gradients(request: Backward) -> tuple[Tensor | None, ...]:
    """Run the backward that `request` asks for."""
    return torch.autograd.grad(request.outputs, request.leaves, request.arriving, allow_unused=True)


def collected(parts: Sequence[Done]) -> Joined:
    """What all parts have found: the first one's whole values, and the replicas of each."""
    first = parts[0]
    each = {slot: [part.replicas[slot] for part in parts] for slot in first.replicas}
    return Joined(first.values, each if len(parts) > 1 else {})


class InProcess:
    """All parts in this process, taking turns."""

    def observe(self, trial: Trial, inputs: LeafTensors) -> Joined:
        """Run `trial` on slices of `inputs`."""
        return observe(trial, inputs)


def observe(trial: Trial, inputs: LeafTensors) -> Joined:
    """Run all parts of `trial` here, on slices of `inputs`, and join what they give."""
    num = trial.partition.num
    parts = [run_part(trial, inputs, part) for part in range(num)]
    answers: Sequence[Any] = [None] * num
    with full_precision(), seeded(trial.seed + trial.noise, trial.device):
        while True:
            requests: list[Any] = []
            for i, part in enumerate(parts):
                with _told(f"part {i} of {num}" if num > 1 else "the op itself"):
                    requests.append(part.send(answers[i]))
            if len({type(request) for request in requests}) > 1:
                raise PartitionError("the parts of a synchronised op do not exchange equally often")
            if isinstance(requests[0], Done):
                return collected(requests)
            with _told("joining the parts or their backward"):
                answers = _answers(requests)


def _answers(requests: Sequence[Any]) -> Sequence[Any]:
    """What each part is sent for its request."""
    match requests[0]:
        case Tensor():
            return [torch.stack(list(requests)).sum(0)] * len(requests)
        case bool():
            return [any(requests)] * len(requests)
        case Piece(share=share):
            return [_joined([piece.tensor for piece in requests], share)] * len(requests)
    joint = Backward(  # one backward for all parts, which may hang together
        *([t for request in requests for t in getattr(request, name)] for name in _FIELDS)
    )
    found, num = gradients(joint), len(requests[0].leaves)
    return [found[at : at + num] for at in range(0, len(found), num)]


_FIELDS = ("outputs", "arriving", "leaves")


def _joined(parts: list[Tensor], share: Share) -> Tensor:
    if isinstance(share, Split):
        return torch.cat(parts, share.dim)
    return sum(parts[1:], parts[0]) if share is Everywhere.PARTIAL else parts[0]


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say of an error inside, in a line, that `what` raises it."""
    try:
        yield
    except DumpcmpError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise PartFailedError(f"{what} raises {type(error).__name__}: {lines[0]}") from error


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
