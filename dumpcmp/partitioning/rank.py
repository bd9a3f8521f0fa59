"""One rank: makes the inputs from their seed, and runs its part of the op with collectives."""

import os
import sys
import time
import traceback
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dumpcmp.partitioning.partition import Everywhere, Share, Split
from dumpcmp.partitioning.parts import (
    Backward,
    Done,
    Piece,
    Request,
    SlotTensors,
    Trial,
    full_precision,
    gradients,
    inputs_of,
    run_part,
    seeded,
)

START = 180.0  # seconds for the ranks to import torch and find each other


def main() -> None:
    """What the interpreter of the ranks runs: forks them, and says how they ended."""
    line, codes = Connection(int(sys.argv[1])), dict[int, int | None]()
    while True:
        try:
            words = line.recv()
        except EOFError:
            os._exit(0)  # nothing is left to do, and tearing an interpreter down takes long
        if len(words) > 2:
            codes[pid := _fork(line, words)] = None
            line.send(pid)
            continue
        pid, seconds = words
        if codes[pid] is None:
            codes[pid] = _exit_code(pid, seconds)
        line.send(codes[pid])


def _fork(line: Connection, words: tuple[int, int, str, int, float]) -> int:
    """A new rank, which has the line and the file for errors that come after `words`."""
    theirs, errors = recv_handle(line), recv_handle(line)
    pid = os.fork()
    if pid == 0:
        line.close()
        os.dup2(errors, 2)
        _serve(*words, Connection(theirs))
        os._exit(0)
    os.close(theirs)
    os.close(errors)
    return pid


def _exit_code(pid: int, seconds: float) -> int | None:
    """How the rank ended; None if it did not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def _serve(rank: int, num: int, backend: str, port: int, timeout: float, line: Connection) -> None:
    """The life of a rank: join the crew, then run trials until the line closes."""
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
            done = _run(replace(trial, device=device), rank)
            values = _on_cpu(done.values if rank == 0 else {})  # all ranks have the same
            torch.save((values, _on_cpu(done.replicas)), Path(room, f"{rank}.pt"))
            line.send("")
    except EOFError:
        pass  # the line is closed: there is no more to do
    except Exception:
        line.send(traceback.format_exc())
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _run(trial: Trial, rank: int) -> Done:
    part = run_part(trial, inputs_of(trial), rank)
    with full_precision(), seeded(trial.seed + rank, trial.device):
        request = next(part)
        while not isinstance(request, Done):
            request = part.send(_answer(request))
    return request


def _on_cpu(tensors: SlotTensors) -> SlotTensors:
    return {slot: tensor.cpu().contiguous() for slot, tensor in tensors.items()}


def _answer(request: Request) -> Any:
    """What all ranks have together; all of them ask at the same time."""
    match request:
        case Tensor():
            return _AllSum.apply(request)  # type: ignore[no-untyped-call]
        case bool():
            return any(_from_all(request))
        case Piece():
            return _whole(request.tensor, request.share)
        case Backward():
            return gradients(request)


def _from_all(thing: Any) -> list[Any]:
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, thing)
    return seen


class _AllSum(torch.autograd.Function):
    """The sum over all ranks; so is its gradient."""

    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        return _summed(tensor)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return _summed(grad)


def _summed(tensor: Tensor) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _whole(tensor: Tensor, share: Share) -> Tensor:
    """What the ranks hold together, on every rank."""
    if share is Everywhere.PARTIAL:
        return _summed(tensor)
    if not isinstance(share, Split):
        return tensor
    parts = [tensor.new_empty(shape) for shape in _from_all(tuple(tensor.shape))]
    parts[dist.get_rank()].copy_(tensor)
    for rank, part in enumerate(parts):  # one by one, since parts may be uneven
        dist.broadcast(part, rank)
    return torch.cat(parts, share.dim)
