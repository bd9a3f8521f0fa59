"""FSDP2 over the batch, in full and in mixed precision, and by hand with a mesh of two axes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.taps.distributed.programs.decoder import Decoder, loss_of, plant, samples
from tests.taps.distributed.programs.scenarios import Capture


def fsdp(capture: Capture, mixed: bool = False, steps: int = 1, fault: str = "") -> None:
    """Each rank has a share of every weight and of the batch."""
    model = Decoder()
    block: Any = model.layers["1"]
    plant(model, fault)
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    short = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    words: dict[str, Any] = {"mp_policy": short} if mixed else {}
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, **words)
    fully_shard(model, mesh=mesh, **words)
    if fault == "stale" and rank == 1:
        with torch.no_grad():
            block.norm2.weight.to_local().mul_(1.05)
    ids, labels = (t.chunk(size)[rank] for t in samples())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture():
        torch.manual_seed(0)
        for _ in range(steps):
            out = model(ids)
            loss = loss_of(out.float(), labels)
            if fault == "loss":
                loss = loss * (1 + rank)
            loss.backward()  # type: ignore[no-untyped-call]
            if steps > 1:
                optimiser.step()
                optimiser.zero_grad()
