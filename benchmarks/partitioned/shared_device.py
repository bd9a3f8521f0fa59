"""Several processes that share one device: tensor parallel, FSDP2 and a pipeline over gloo.

NCCL refuses two ranks on one GPU. Gloo takes CUDA tensors for all_reduce, all_gather of a list,
broadcast and what is built on them, by way of the host; for functional all_gather and for letters
it does not. So tensor parallel layers add up and never gather, and stages send through the host.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from tests.taps.distributed.programs import staged
from tests.taps.distributed.programs.decoder import Decoder, loss_of, plant, samples
from tests.taps.distributed.programs.megatron import parallelise
from tests.taps.distributed.programs.scenarios import Capture, plain_tp


def device() -> torch.device:
    """The one device of all ranks: the first GPU, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(0)
    torch.cuda.init()  # type: ignore[no-untyped-call]  # or a mesh gives each rank a device of its own
    return torch.device("cuda", 0)


def whole(capture: Capture, fused: bool = False) -> None:
    """The model in one process."""
    _train(capture, Decoder(fused=fused).to(device()), *samples())


def tensor_parallel(capture: Capture, fault: str = "") -> None:
    """Columns and rows by DTensor; what they add up every rank has whole."""
    model = Decoder().to(device())
    plant(model, fault)
    up: Any = model.get_submodule("layers.1.mlp.up")
    shards = up.weight.detach().clone().chunk(dist.get_world_size())
    for layer in model.layers.values():
        parallelize_module(layer, _mesh("tp"), plain_tp(), src_data_rank=None)
    with torch.no_grad():
        if fault == "stale" and dist.get_rank() == 1:
            weight: Any = model.get_submodule("layers.1.attn.o").weight
            weight.to_local().mul_(1.05)
        elif fault == "swapped":
            up.weight.to_local().copy_(shards[dist.get_rank() - 1])
    _train(capture, model, *samples())


def by_hand(capture: Capture, fault: str = "") -> None:
    """Tensor parallel layers on plain tensors, with merged projections."""
    _train(capture, parallelise(Decoder(fused=True), fault).to(device()), *samples())


def fsdp(capture: Capture, mixed: bool = False, fault: str = "") -> None:
    """Each rank has a share of every weight and of the batch."""
    model, mesh = Decoder().to(device()), _mesh("dp")
    plant(model, fault)
    short = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    words: dict[str, Any] = {"mp_policy": short} if mixed else {}
    for module in (*model.layers.values(), model):
        sharded: Any = fully_shard(module, mesh=mesh, **words)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no mean for CUDA tensors
    rank, size = dist.get_rank(), dist.get_world_size()
    if fault == "stale" and rank == 1:
        with torch.no_grad():
            weight: Any = model.get_submodule("layers.1.norm2").weight
            weight.to_local().mul_(1.05)
    scale = 1 + rank if fault == "loss" else 1
    ids, labels = (t.chunk(size)[rank] for t in samples())
    _train(capture, model, ids, labels, scale)


def pipeline(capture: Capture, fault: str = "") -> None:
    """Two stages that compute on the device and send through the host, two microbatches."""
    staged.pipeline(capture, fault=fault, placed=_placed)


def _placed(stage: nn.Module) -> None:
    here, host = device(), torch.device("cpu")  # which may be one: copies are made there, too
    stage.to(here)
    stage.register_forward_pre_hook(lambda _, args: (args[0].to(here, copy=True),))
    stage.register_forward_hook(lambda *taken: taken[2].to(host, copy=True))


def _mesh(axis: str) -> DeviceMesh:
    """All ranks on gloo, also where a mesh of GPUs would take NCCL."""
    size = (dist.get_world_size(),)
    return init_device_mesh(
        device().type, size, mesh_dim_names=(axis,), backend_override={axis: "gloo"}
    )


def _train(
    capture: Capture, model: nn.Module, ids: Tensor, labels: Tensor, scale: float = 1
) -> None:
    ids, labels = ids.to(device()), labels.to(device())
    with capture():
        torch.manual_seed(0)
        loss: Any = loss_of(model(ids).float(), labels) * scale
        loss.backward()
