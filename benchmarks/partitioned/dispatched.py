"""Tensor and sequence parallel layers and DDP with faults, for captures of the dispatcher's ops."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.taps.distributed.programs.decoder import Decoder, loss_of, plant, samples
from tests.taps.distributed.programs.scenarios import Capture, plan_tp


def sequence_parallel(capture: Capture, fault: str = "") -> None:
    """Columns, rows and sequences by DTensor."""
    model, (ids, labels) = Decoder(), samples()
    plant(model, fault)
    up: Any = model.get_submodule("layers.1.mlp.up")
    shards = up.weight.detach().clone().chunk(dist.get_world_size())
    plan_tp(model, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)))
    with torch.no_grad():
        if fault == "stale" and dist.get_rank() == 1:
            weight: Any = model.get_submodule("layers.1.attn.o").weight
            weight.to_local().mul_(1.05)
        elif fault == "swapped":
            up.weight.to_local().copy_(shards[dist.get_rank() - 1])
    with capture():
        torch.manual_seed(0)
        loss_of(model(ids), labels).backward()  # type: ignore[no-untyped-call]


def replicas(capture: Capture, fault: str = "") -> None:
    """DistributedDataParallel over the batch."""
    model = nn.parallel.DistributedDataParallel(Decoder())
    plant(model.module, fault)
    rank, size = dist.get_rank(), dist.get_world_size()
    if fault == "stale" and rank == 1:
        weight: Any = model.module.get_submodule("layers.1.attn.o").weight
        weight.data.mul_(1.05)  # DDP gave every rank the first one's
    ids, labels = (t.chunk(size)[rank] for t in samples())
    with capture(), model.no_sync() if fault == "not averaged" else nullcontext():
        torch.manual_seed(0)
        loss_of(model(ids), labels).backward()  # type: ignore[no-untyped-call]
