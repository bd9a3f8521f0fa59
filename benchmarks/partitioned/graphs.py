"""Tensor parallel layers and FSDP2 in graphs: traced by dynamo, or compiled by inductor."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from tests.taps.distributed.programs.decoder import Decoder, loss_of, plant, samples
from tests.taps.distributed.programs.scenarios import Capture, plain_tp


def run(capture: Capture, how: str, is_compiled: bool = False, fault: str = "") -> None:
    """Train one step; `how` is tp, fsdp or, on one rank, whole."""
    model, (ids, labels) = Decoder(), samples()
    block: Any = model.layers["1"]
    plant(model, fault)
    size, rank = (dist.get_world_size(), dist.get_rank()) if how != "whole" else (1, 0)
    if how != "whole":
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=(how,))
        for layer in model.layers.values():
            if how == "fsdp":
                fully_shard(layer, mesh=mesh)
            else:
                parallelize_module(layer, mesh, plain_tp())
        if how == "fsdp":
            fully_shard(model, mesh=mesh)
            ids, labels = ids.chunk(size)[rank], labels.chunk(size)[rank]
    if fault == "stale" and rank == 1:
        with torch.no_grad():
            block.attn.o.weight.to_local().mul_(1.05)
    called: Any = torch.compile(model) if is_compiled else model
    with capture():
        torch.manual_seed(0)
        loss_of(called(ids), labels).backward()  # type: ignore[no-untyped-call]
