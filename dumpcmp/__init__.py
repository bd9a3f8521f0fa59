"""dumpcmp finds the op where a compiled, partitioned or ported PyTorch model first goes wrong."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. Nothing is imported, torch least of all, until
# the name is used.
_HOMES: dict[str, str] = {
    "layout": "dumpcmp.taps.distributed.ranks",
    "set_rank": "dumpcmp.taps.distributed.ranks",
    "capture": "dumpcmp.dumping.capturing",
    "fx_backend": "dumpcmp.dumping.capturing",
    "compiled_backend": "dumpcmp.dumping.capturing",
    "save": "dumpcmp.dumping.capturing",
    "Archive": "dumpcmp.archive.read.reader",
    "ArchiveWriter": "dumpcmp.archive.write.writer",
    "audit": "dumpcmp.archive.repair.integrity",
    "compare": "dumpcmp.comparing",
    "compact": "dumpcmp.compacting",
    "Summary": "dumpcmp.summary.summary",
    "verify": "dumpcmp.verifying",
    "VerifyConfig": "dumpcmp.verifying",
    "verifying_backend": "dumpcmp.verifying",
    "verify_correctness": "dumpcmp.verifying",
    "verify_partition_options": "dumpcmp.partitioning",
    "verify_graph": "dumpcmp.partitioning",
    "explain": "dumpcmp.explaining",
    "VerificationError": "dumpcmp.nouns.errors",
    "AutomaticValueChecker": "dumpcmp.judge",
    "AllCloseValueChecker": "dumpcmp.judge",
    "FullValueChecker": "dumpcmp.judge",
    "Fp64Checker": "dumpcmp.judge",
    "CosineChecker": "dumpcmp.judge",
    "ExactChecker": "dumpcmp.judge",
    "RoundingChecker": "dumpcmp.judge",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dumpcmp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
