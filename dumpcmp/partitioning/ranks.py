"""Runs the parts of an op on real ranks: spawned processes that talk over gloo or NCCL.

Ranks stay alive from task to task. Each makes the inputs from their seed, takes its share, runs
its part and its own backward, and joins outputs and gradients with collectives. A rank that
raises or dies ends the group, and its traceback is reported; the next task starts a new group.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.utils._pytree import tree_leaves

from dumpcmp.partitioning.checking import Backend, InProcess
from dumpcmp.partitioning.config import PartitionError
from dumpcmp.partitioning.observing import (
    Inputs,
    Observation,
    PartFailedError,
    Task,
    arriving_at,
    full_precision,
    inputs_of,
    placements,
    seeded,
    slice_of,
    started,
    was_written,
)
from dumpcmp.partitioning.plan import Partial, Placement, Shard

BACKENDS = ("inprocess", "gloo", "nccl")
_START = 180.0  # seconds for the ranks to import torch and find each other


class RankError(PartFailedError):
    """A rank raised an error, died, or did not answer in time."""


@contextmanager
def opened(backend: str, timeout: float = 300.0) -> Iterator[Backend]:
    """A backend by its name. Ranks start when they are first needed, and end with the block."""
    if backend not in BACKENDS:
        raise PartitionError(
            f"there is no backend {backend!r}", hint=f"choose one of {', '.join(BACKENDS)}"
        )
    if backend == "inprocess":
        yield InProcess()
        return
    ranks = Ranks(backend, timeout)
    try:
        yield ranks
    finally:
        ranks.close()


_MAIN = "from dumpcmp.partitioning.ranks import main; main()"


@dataclass(frozen=True)
class Rank:
    """A process of the group, the line to it, and what it writes to stderr."""

    process: "subprocess.Popen[bytes]"
    line: Connection
    errors: IO[bytes]

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-2000:]

    def end(self) -> None:
        """Stop the process, at once if it does not listen."""
        self.line.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


@dataclass(frozen=True)
class Group:
    """Ranks that form one world, and the store where they meet."""

    ranks: tuple[Rank, ...]
    store: TCPStore

    def end(self) -> None:
        """Stop all ranks."""
        for rank in self.ranks:
            rank.line.close()
        for rank in self.ranks:
            rank.end()


def _start_rank(rank: int, num: int, backend: str, port: int, timeout: float) -> Rank:
    """A fresh interpreter, so that the user's main module is not run again by every rank."""
    mine, theirs = multiprocessing.Pipe()
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    words = [theirs.fileno(), rank, num, backend, port, timeout]
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, *map(str, words)],
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    theirs.close()
    return Rank(process, mine, errors)


def main() -> None:
    """What a rank's interpreter runs."""
    fd, rank, num, backend, port, timeout = sys.argv[1:]
    line = Connection(int(fd))
    _serve(int(rank), int(num), backend, int(port), float(timeout), line)
    os._exit(0)  # nothing is left to do, and tearing an interpreter down takes long


class Ranks:
    """Groups of ranks, one for each number of parts that was asked for."""

    def __init__(self, backend: str, timeout: float) -> None:
        self.backend = backend
        self.timeout = timeout
        self._groups: dict[int, Group] = {}

    def observe(self, task: Task, inputs: Inputs) -> Observation:  # noqa: ARG002
        """Run `task` on as many ranks as its plan has parts."""
        num = task.plan.num
        group = self._groups.get(num) or self._start(num)
        with tempfile.TemporaryDirectory(prefix="ranks-") as room:
            try:
                for rank in group.ranks:
                    rank.line.send((task, room))
                _gather(group, self.timeout)
            except RankError:
                self._groups.pop(num).end()
                raise
            return _collected(Path(room), num)

    def _start(self, num: int) -> Group:
        if self.backend == "nccl" and torch.cuda.device_count() < num:
            raise PartitionError(
                f"{num} NCCL ranks need {num} GPUs, and there are {torch.cuda.device_count()}",
                hint="use backend='gloo', or fewer parts",
            )
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ranks = (
            _start_rank(rank, num, self.backend, store.port, self.timeout) for rank in range(num)
        )
        self._groups[num] = group = Group(tuple(ranks), store)
        try:
            _gather(group, _START)
        except RankError:
            self._groups.pop(num).end()
            raise
        return group

    def close(self) -> None:
        """End all ranks."""
        while self._groups:
            self._groups.popitem()[1].end()


def _gather(group: Group, timeout: float) -> None:
    """Wait until every rank has said that it is done, or find out why one is not."""
    waiting = dict(enumerate(group.ranks))
    deadline = time.monotonic() + timeout
    while waiting:
        left = max(0.0, deadline - time.monotonic())
        ready = wait([rank.line for rank in waiting.values()], left)
        if not ready:
            raise RankError(f"rank {min(waiting)} did not answer within {timeout:g} s")
        for number, rank in list(waiting.items()):
            if rank.line in ready:
                _hear(number, rank)
                del waiting[number]


def _hear(number: int, rank: Rank) -> None:
    try:
        trouble = rank.line.recv()
    except EOFError:
        code = rank.process.wait(5)
        raise RankError(
            f"rank {number} died with exit code {code}: {rank.last_words() or 'no last words'}"
        ) from None
    if trouble:
        raise RankError(f"rank {number} raises {trouble}")


def _collected(room: Path, num: int) -> Observation:
    found = [torch.load(room / f"{rank}.pt", weights_only=True) for rank in range(num)]
    values: dict[str, Tensor] = found[0]["values"]
    replicas = {slot: [each["replicas"][slot] for each in found] for slot in found[0]["replicas"]}
    return Observation(values, replicas)


def _serve(rank: int, num: int, backend: str, port: int, timeout: float, line: Connection) -> None:
    """The life of a rank: join the group, then run tasks until the line closes."""
    try:
        store = TCPStore("127.0.0.1", port, is_master=False)
        limit = timedelta(seconds=timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=num, timeout=limit)
        if backend == "nccl":
            torch.cuda.set_device(rank)
        torch.set_num_threads(max(1, torch.get_num_threads() // num))
        line.send("")
        while True:
            task, room = line.recv()
            device = f"cuda:{rank}" if backend == "nccl" else task.device
            with full_precision():
                answer = _run(replace(task, device=device), rank)
            torch.save(answer, Path(room, f"{rank}.pt"))
            line.send("")
    except EOFError:
        pass  # the line is closed: there is no more to do
    except Exception:
        line.send(traceback.format_exc())
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _run(task: Task, rank: int) -> dict[str, dict[str, Tensor]]:
    """One part of `task`: whole values as rank 0 reports them, and what this rank replicates."""
    mine = [
        None if tensor is None else _leaf(slice_of(tensor, placement, rank), i in task.wanted)
        for i, (tensor, placement) in enumerate(zip(inputs_of(task), task.plan.inputs, strict=True))
    ]
    working = [None if tensor is None else tensor.clone() for tensor in mine]
    with seeded(task.seed + rank):
        result = started(task, working, rank)
        outputs = [
            leaf
            for leaf in tree_leaves(_synchronised(result) if task.plan.synchronised else result)
            if isinstance(leaf, Tensor)
        ]
    placed = placements(task, len(outputs))
    values = {f"output.{i}": _whole(t.detach(), placed[i]) for i, t in enumerate(outputs)}
    replicas = {
        f"output.{i}": t.detach()
        for i, t in enumerate(outputs)
        if not isinstance(placed[i], Shard | Partial)
    }
    if task.backward:
        values |= _gradients(task, mine, outputs, placed, rank)
    for i, (tensor, before) in enumerate(zip(working, mine, strict=True)):
        if tensor is not None and before is not None and _anywhere(was_written(tensor, before)):
            values[f"mutated.{i}"] = _whole(tensor.detach(), task.plan.inputs[i])
            if not isinstance(task.plan.inputs[i], Shard):
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


def _whole(tensor: Tensor, placement: Placement) -> Tensor:
    """What the ranks hold together, on every rank."""
    if isinstance(placement, Partial):
        return _summed(tensor)
    if not isinstance(placement, Shard):
        return tensor
    shapes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, tuple(tensor.shape))
    parts = [tensor.new_empty(shape) for shape in shapes]
    parts[dist.get_rank()].copy_(tensor)
    for rank, part in enumerate(parts):  # one by one, since parts may be uneven
        dist.broadcast(part, rank)
    return torch.cat(parts, placement.dim)


def _gradients(
    task: Task,
    mine: Inputs,
    outputs: Sequence[Tensor],
    placed: Sequence[Placement],
    rank: int,
) -> dict[str, Tensor]:
    """Run the backward of this rank; gradients of replicated inputs add up over the ranks."""
    targets, arriving = [], []
    for i, (output, placement) in enumerate(zip(outputs, placed, strict=True)):
        if output.requires_grad:
            targets.append(output)
            arriving.append(_share(task, i, output, placement, rank))
    leaves = [(i, t) for i in task.wanted if (t := mine[i]) is not None and t.requires_grad]
    if not targets or not leaves:
        return {}
    found = torch.autograd.grad(targets, [t for _, t in leaves], arriving, allow_unused=True)
    return {
        f"grad_input.{i}": _whole(grad, placement if isinstance(placement, Shard) else Partial())
        for (i, _), grad in zip(leaves, found, strict=True)
        if grad is not None
        for placement in [task.plan.inputs[i]]
    }


def _share(task: Task, index: int, output: Tensor, placement: Placement, rank: int) -> Tensor:
    """What arrives at this rank of the cotangent of the whole output `index`."""
    if isinstance(placement, Partial):
        return arriving_at(task, index, output)
    if not isinstance(placement, Shard):
        return arriving_at(task, index, output) / task.plan.num
    shape = list(output.shape)
    shape[placement.dim] = sum(placement.lengths)
    whole = arriving_at(task, index, output.new_empty(shape))
    return slice_of(whole, placement, rank)
