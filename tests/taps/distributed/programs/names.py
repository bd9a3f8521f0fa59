"""What the campaigns run, by name; no torch is needed to read it."""

from typing import Any

# Golden -> what the whole decoder is told.
GOLDENS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fused": True},
    "dropout": {"fused": True, "dropout": 0.1},
    "experts": {"fused": True, "experts": True},
    "one": {"batch": 1},
    "long": {},
    "bucketed": {},
    "summed up": {"is_whole": True},
}

# Run -> the scenario and what it is told.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "dtensor": ("dtensor_tp", {}),
    "fsdp": ("fsdp", {}),
    "fsdp-tp": ("fsdp", {"tp": 2}),
    "ddp": ("ddp", {}),
    "ddp steps": ("ddp_steps", {}),
    "pipeline": ("staged:pipeline", {}),
    "megatron": ("megatron", {}),
    "annotated": ("megatron", {"annotate": True}),
    "dropout": ("megatron", {"dropout": 0.1}),
    "by hand": ("data_parallel", {}),
    "sequence": ("sequence", {}),
    "experts": ("experts", {}),
    "letters": ("letters", {}),
    "interleaved": ("staged:interleaved", {}),
    "exported": ("staged:exported", {}),
    "copying": ("staged:copying", {}),
    "context": ("contexts:partitioned", {"how": "gather"}),
    "bucketed": ("bucketed:spread", {}),
    "summed up": ("bucketed:summed_up", {}),
}

# Fault -> the scenario that it is planted in, in one layer or on one rank.
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "swapped shards": ("megatron", {}),
    "forgotten all_reduce": ("megatron", {}),
    "all_reduce twice": ("megatron", {}),
    "bias on every rank": ("megatron", {}),
    "stale weights": ("megatron", {}),
    "gradients not summed": ("megatron", {}),
    "different dropout seeds": ("megatron", {"dropout": 0.1}),
    "wrong sequence offset": ("sequence", {}),
    "gradients not averaged": ("data_parallel", {}),
    "router differs on one rank": ("experts", {}),
    "order": ("staged:pipeline", {}),
    "unscaled": ("staged:pipeline", {}),
    "activation": ("staged:exported", {}),
    "a copy that changes numbers": ("staged:copying", {}),
    "offset": ("contexts:partitioned", {"how": "gather"}),
    "bucket not averaged": ("bucketed:spread", {}),
    "bucket not added up": ("bucketed:spread", {}),
}

ON_TWO = [name for name in RUNS if name != "fsdp-tp"]
