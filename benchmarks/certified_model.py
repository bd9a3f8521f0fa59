"""The program that the table ``certified`` dumps: one compiled model, for inference or training.

``python benchmarks/certified_model.py MODEL KIND DEVICE``. It imports nothing of dumpcmp.
"""

import sys
from pathlib import Path

import torch


def run(name: str, kind: str, device: str) -> None:
    from benchmarks import zoo

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_device(device)
    specimen = zoo.MODELS[name]()
    trains = kind == "training"
    model = torch.compile(specimen.model.to(device).train(trains))
    for _ in range(specimen.num_rounds if trains else 1):
        with (
            torch.set_grad_enabled(trains),
            torch.autocast(device, torch.bfloat16, enabled=specimen.is_autocast),
        ):
            out = zoo.first_tensor(model(**specimen.given)).float()
        if trains:
            (out * out.detach().cos()).sum().backward()  # type: ignore[no-untyped-call]
    print(out.sum().item())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    run(*sys.argv[1:])
