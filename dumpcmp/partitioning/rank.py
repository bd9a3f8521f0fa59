"""One rank: makes the inputs from their seed, runs its part of the op, joins by collectives.

Gradients of replicated inputs add up over the ranks, those of split inputs lie side by side.
"""

import os
import sys
import traceback
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.utils._pytree import tree_leaves

from dumpcmp.partitioning.observing import (
    LeafTensors,
    Trial,
    arriving_at,
    full_precision,
    inputs_of,
    placements,
    seeded,
    slice_of,
    started,
    was_written,
)
from dumpcmp.partitioning.partition import Partial, Share, Split

START = 180.0  # seconds for the ranks to import torch and find each other


def main() -> None:
    """What a rank's interpreter runs."""
    fd, rank, num, backend, port, timeout = sys.argv[1:]
    line = Connection(int(fd))
    _serve(int(rank), int(num), backend, int(port), float(timeout), line)
    os._exit(0)  # nothing is left to do, and tearing an interpreter down takes long


def _serve(rank: int, num: int, backend: str, port: int, timeout: float, line: Connection) -> None:
    """The life of a rank: join the group, then run trials until the line closes."""
    try:
        store = TCPStore("127.0.0.1", port, is_master=False)
        limit = timedelta(seconds=max(timeout, START))  # who asks for a trial watches its time
        dist.init_process_group(backend, store=store, rank=rank, world_size=num, timeout=limit)
        if backend == "nccl":
            torch.cuda.set_device(rank)
        torch.set_num_threads(max(1, torch.get_num_threads() // num))
        line.send("")
        while True:
            trial, room = line.recv()
            device = f"cuda:{rank}" if backend == "nccl" else trial.device
            with full_precision():
                answer = _run(replace(trial, device=device), rank)
            torch.save(answer, Path(room, f"{rank}.pt"))
            line.send("")
    except EOFError:
        pass  # the line is closed: there is no more to do
    except Exception:
        line.send(traceback.format_exc())
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _run(trial: Trial, rank: int) -> dict[str, dict[str, Tensor]]:
    """One part of `trial`: whole values as rank 0 reports them, and what this rank replicates."""
    mine = [
        None if tensor is None else _leaf(slice_of(tensor, placement, rank), i in trial.wanted)
        for i, (tensor, placement) in enumerate(
            zip(inputs_of(trial), trial.partition.inputs, strict=True)
        )
    ]
    working = [None if tensor is None else tensor.clone() for tensor in mine]
    with seeded(trial.seed + rank, trial.device):
        result = started(trial, working, rank)
        outputs = [
            leaf
            for leaf in tree_leaves(
                _synchronised(result) if trial.partition.synchronised else result
            )
            if isinstance(leaf, Tensor)
        ]
    placed = placements(trial, len(outputs))
    values = {f"output.{i}": _whole(t.detach(), placed[i]) for i, t in enumerate(outputs)}
    replicas = {
        f"output.{i}": t.detach()
        for i, t in enumerate(outputs)
        if not isinstance(placed[i], Split | Partial)
    }
    if trial.backward:
        values |= _gradients(trial, mine, outputs, placed, rank)
    for i, (tensor, before) in enumerate(zip(working, mine, strict=True)):
        if tensor is not None and before is not None and _anywhere(was_written(tensor, before)):
            values[f"mutated.{i}"] = _whole(tensor.detach(), trial.partition.inputs[i])
            if not isinstance(trial.partition.inputs[i], Split):
                replicas[f"mutated.{i}"] = tensor.detach()
    return {
        "values": _on_cpu(values) if rank == 0 else {},
        "replicas": _on_cpu(replicas),
    }


def _anywhere(here: bool) -> bool:
    """Whether it is so on any rank; all ranks must go the same way."""
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, here)
    return any(seen)


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {slot: tensor.cpu().contiguous() for slot, tensor in tensors.items()}


def _leaf(tensor: Tensor, wanted: bool) -> Tensor:
    own = tensor.detach().clone(memory_format=torch.contiguous_format)
    return own.requires_grad_() if wanted and own.is_floating_point() else own


def _synchronised(exchange: Generator[Tensor, Tensor, Any]) -> Any:
    """Carry out the exchanges of a synchronised op by all-reduce."""
    sent: Tensor | None = None
    while True:
        try:
            yielded = exchange.send(sent)  # type: ignore[arg-type]
        except StopIteration as stop:
            return stop.value
        sent = _AllSum.apply(yielded)  # type: ignore[no-untyped-call]


class _AllSum(torch.autograd.Function):
    """The sum over all ranks; so is its gradient."""

    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        """Sum."""
        return _summed(tensor)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        """Sum the gradients."""
        return _summed(grad)


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _whole(tensor: Tensor, placement: Share) -> Tensor:
    """What the ranks hold together, on every rank."""
    if isinstance(placement, Partial):
        return _summed(tensor)
    if not isinstance(placement, Split):
        return tensor
    shapes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, tuple(tensor.shape))
    parts = [tensor.new_empty(shape) for shape in shapes]
    parts[dist.get_rank()].copy_(tensor)
    for rank, part in enumerate(parts):  # one by one, since parts may be uneven
        dist.broadcast(part, rank)
    return torch.cat(parts, placement.dim)


def _gradients(
    trial: Trial,
    mine: LeafTensors,
    outputs: Sequence[Tensor],
    placed: Sequence[Share],
    rank: int,
) -> dict[str, Tensor]:
    """Run the backward of this rank; gradients of replicated inputs add up over the ranks."""
    targets, arriving = [], []
    for i, (output, placement) in enumerate(zip(outputs, placed, strict=True)):
        if output.requires_grad:
            targets.append(output)
            arriving.append(_share(trial, i, output, placement, rank))
    leaves = [(i, t) for i in trial.wanted if (t := mine[i]) is not None and t.requires_grad]
    if not targets or not leaves:
        return {}
    found = torch.autograd.grad(targets, [t for _, t in leaves], arriving, allow_unused=True)
    return {
        f"grad_input.{i}": _whole(grad, placement if isinstance(placement, Split) else Partial())
        for (i, _), grad in zip(leaves, found, strict=True)
        if grad is not None
        for placement in [trial.partition.inputs[i]]
    }


def _share(trial: Trial, index: int, output: Tensor, placement: Share, rank: int) -> Tensor:
    """What arrives at this rank of the cotangent of the whole output `index`."""
    if isinstance(placement, Partial):
        return arriving_at(trial, index, output)
    if not isinstance(placement, Split):
        return arriving_at(trial, index, output) / trial.partition.num
    shape = list(output.shape)
    shape[placement.dim] = sum(placement.lengths)
    whole = arriving_at(trial, index, output.new_empty(shape))
    return slice_of(whole, placement, rank)
