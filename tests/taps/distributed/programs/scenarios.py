"""Ways to run one small decoder on several ranks, right or with a planted fault."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.taps.distributed.programs.decoder import (
    BATCH,
    LENGTH,
    Decoder,
    Experts,
    GatedMlp,
    loss_of,
    samples,
)
from tests.taps.distributed.programs.megatron import ColumnParallel, RowParallel, parallelise

Capture = Callable[[], AbstractContextManager[Any]]


def golden(capture: Capture, batch: int = BATCH, **kind: Any) -> None:
    """The whole model on one rank."""
    model = Decoder(**kind)
    if batch == 1:
        _train(capture, model, *samples(batch), positions=torch.arange(LENGTH))
    else:
        _train(capture, model, *samples(batch))


def dtensor_tp(capture: Capture) -> None:
    """Tensor and sequence parallel by DTensor: column, row, sequence; a vocabulary of 65."""
    model = Decoder()
    plan_tp(model, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)))
    _train(capture, model, *samples())


def plan_tp(model: Decoder, mesh: Any) -> None:
    block: dict[str, Any] = {
        "norm1": SequenceParallel(),
        "attn": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=False
        ),
        "attn.q": ColwiseParallel(),
        "attn.k": ColwiseParallel(),
        "attn.v": ColwiseParallel(),
        "attn.o": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "mlp.up": ColwiseParallel(input_layouts=Shard(1)),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    plan: dict[str, Any] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "position": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for name in model.layers:
        plan |= {f"layers.{name}.{path}": style for path, style in block.items()}
    parallelize_module(model, mesh, plan)


def plain_tp() -> dict[str, Any]:
    """Columns and rows of one layer; what they add up every rank has whole."""
    columns, rows = ("attn.q", "attn.k", "attn.v", "mlp.up"), ("attn.o", "mlp.down")
    plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
    return plan | {name: RowwiseParallel() for name in rows}


def fsdp(capture: Capture, tp: int = 1) -> None:
    """FSDP2 over the batch, with tensor parallelism of `tp` ranks inside."""
    model = Decoder()
    dp = dist.get_world_size() // tp
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    if tp > 1:
        plan_tp(model, mesh["tp"])
    for block in model.layers.values():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    rank = mesh["dp"].get_local_rank()
    _train(
        capture,
        model,
        *(t.chunk(dp)[rank] for t in samples()),
    )


def ddp(capture: Capture) -> None:
    """DistributedDataParallel: gradients are averaged by torch."""
    _train(capture, nn.parallel.DistributedDataParallel(Decoder()), *_my_samples())


def ddp_steps(capture: Capture) -> None:
    """The same for three steps: torch makes its buckets anew after the first, and keeps them.

    Works never say that they are completed, as those of Gloo for a moment after their future did.
    """
    dist.Work.is_completed = lambda work: False  # type: ignore[method-assign, assignment]
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture():
        for step in range(3):
            loss: Any = model(torch.full((2, 4), step + dist.get_rank() + 1.0)).square().sum()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()


def data_parallel(capture: Capture, fault: str = "") -> None:
    """Data parallelism by hand: all_reduce of the gradients, then the mean."""
    model = Decoder()
    size = dist.get_world_size()

    def reduce(grad: Tensor) -> Tensor:
        grad = _summed(grad)
        return grad if fault == "gradients not averaged" else grad / size

    for parameter in model.parameters():
        parameter.register_hook(reduce)  # type: ignore[no-untyped-call]
    _train(capture, model, *_my_samples())


def megatron(
    capture: Capture, fault: str = "", annotate: bool = False, dropout: float = 0.0
) -> None:
    """Tensor parallelism by hand, with merged projections."""
    model = parallelise(Decoder(fused=True, dropout=dropout), fault, annotate=annotate)
    seed = dist.get_rank() if fault == "different dropout seeds" else 0
    _train(capture, model, *samples(), seed=seed)


def sequence(capture: Capture, fault: str = "") -> None:
    """Each rank embeds its part of the sequence; the parts are gathered before the layers."""
    model = _Gathering()
    for embedding in (model.embed, model.position):  # each rank saw some tokens
        assert isinstance(embedding, nn.Embedding)
        embedding.weight.register_hook(_summed)  # type: ignore[no-untyped-call]
    rank, size = dist.get_rank(), dist.get_world_size()
    share = LENGTH // size
    offset = 0 if fault == "wrong sequence offset" and rank == size - 1 else rank * share
    ids, labels = samples(1)
    _train(
        capture,
        model,
        ids[:, rank * share : (rank + 1) * share],
        labels,
        positions=torch.arange(offset, offset + share),
    )


def _summed(grad: Tensor) -> Tensor:
    grad = grad.contiguous().clone()
    dist.all_reduce(grad)
    return grad


class _Gathering(Decoder):
    """Gathers the sequence after the embedding; with one sample no copy is needed for that."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        assert self.embed is not None and self.position is not None and positions is not None
        x = _Gather.apply(self.embed(x) + self.position(positions))  # type: ignore[no-untyped-call]
        for block in self.layers.values():
            x = block(x)
        assert self.norm is not None and self.head is not None
        out: Tensor = self.head(self.norm(x))
        return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        with torch._C.DisableTorchFunction():  # how a value is moved is no op of the model
            out = torch.zeros(x.shape[1] * dist.get_world_size(), x.shape[2])
            dist.all_gather_into_tensor(out, x[0].contiguous())
            return out[None]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


def experts(capture: Capture, fault: str = "") -> None:
    """Experts whose projections are tensor parallel, behind a router that every rank has."""
    model = Decoder(fused=True, experts=True)
    rank, size = dist.get_rank(), dist.get_world_size()
    for block in model.layers.values():
        assert isinstance(block.mlp, Experts)
        for expert in block.mlp.experts:
            assert isinstance(expert, GatedMlp)
            expert.gate_up = ColumnParallel(expert.gate_up, rank, size, 2, "")
            expert.down = RowParallel(expert.down, rank, size, "", False)
    if fault == "router differs on one rank" and rank == size - 1:
        router = model.get_submodule("layers.1.mlp.router")
        router.register_forward_hook(lambda module, args, out: out.roll(1, -1))
    _train(capture, model, *samples())


class _Letters(nn.Module):
    """Every kind of collective once, on values that differ between the ranks."""

    def forward(self, x: Tensor) -> Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        x = x * (rank + 1)
        averaged = x.clone()
        dist.all_reduce(averaged, op=dist.ReduceOp.MAX)
        dist.broadcast(x.clone(), src=1)
        gathered = [torch.zeros_like(x) for _ in range(size)]
        dist.all_gather(gathered, x)
        kept = torch.zeros_like(x)
        dist.reduce_scatter(kept, [x, x + 1])
        swapped = torch.zeros_like(x)
        dist.all_to_all_single(swapped, x)
        later = dist.all_reduce(x.clone(), async_op=True)
        if rank == 0:
            dist.send(x, 1)
            beside = dist.isend(x + 1, 1)
        else:
            dist.recv(torch.zeros_like(x), 0)
            beside = dist.irecv(torch.zeros_like(x), 0)
        assert beside is not None
        beside.wait()
        later.wait()
        return x


def letters(capture: Capture) -> None:
    """No model, only collectives: they must be recorded, and be what they should."""
    with capture(), torch.no_grad():
        _Letters()(torch.arange(1.0, 9.0).reshape(4, 2))


def _my_samples() -> tuple[Tensor, ...]:
    rank, size = dist.get_rank(), dist.get_world_size()
    return tuple(t.chunk(size)[rank] for t in samples(max(BATCH, size)))


def _train(
    capture: Capture,
    model: nn.Module,
    ids: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
    **inputs: Tensor,
) -> None:
    with capture():
        torch.manual_seed(seed)
        loss_of(model(ids, **inputs), labels).backward()  # type: ignore[no-untyped-call]
