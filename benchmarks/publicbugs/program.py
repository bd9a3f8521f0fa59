"""``python -m benchmarks.publicbugs.program NAME FILE [--eager]``: run a program of a bug once.

If PUBLICBUGS_RESULT is set, the results go to that path: so a run under a tool tells, whatever the
tool does, whether the tool disturbed the program. Under torchrun each rank writes its own file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module

import numpy as np
import torch
from torch import Tensor, distributed
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.publicbugs.corpus import Results


def listed(results: Results) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return list(results.values() if isinstance(results, Mapping) else results)


def write(results: Results, path: str) -> None:
    """Write them as numbers of 64 bits; no mode that records ops sees it."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        arrays = [torch.Tensor.numpy(_plain(result)) for result in listed(results)]
    np.savez(f"{path}.{os.environ.get('RANK', '0')}", *arrays)


def _plain(result: Tensor) -> Tensor:
    whole = result.detach().resolve_conj().resolve_neg().cpu()
    return whole.to(torch.complex128 if whole.is_complex() else torch.float64)


def main(name: str, file: str, eager: bool) -> None:
    module = import_module(f"benchmarks.publicbugs.{name}.{file}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        distributed.init_process_group("gloo")
    torch.manual_seed(0)
    with torch.compiler.set_stance("force_eager") if eager else nullcontext():
        results = module.run()
    if path := os.environ.get("PUBLICBUGS_RESULT"):
        write(results, path)
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--eager" in sys.argv)
