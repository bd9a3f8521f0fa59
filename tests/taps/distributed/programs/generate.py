"""A program as users write it: tensor parallel under torchrun, whole without it."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.taps.distributed.programs.decoder import Decoder, loss_of, samples


def main() -> None:
    torch.set_num_threads(1)
    model = Decoder()
    if "RANK" in os.environ:
        from tests.taps.distributed.programs.scenarios import plan_tp

        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        plan_tp(model, mesh)
    ids, labels = samples()
    for _ in range(2):
        loss_of(model(ids), labels).backward()  # type: ignore[no-untyped-call]
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
