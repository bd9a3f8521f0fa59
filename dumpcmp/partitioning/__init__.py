"""Partition verification: whether an op, or every op of a graph, is the same when it is split.

The way of an op through this room, one file a stop:

    asked.py, graphs.py     what a user wrote down, or a graph's ops (exported.py, checkpoint.py)
                            files from others are opened by opening.py, a .pt2 by packages.py
      -> call.py            a Candidate: the call as plain values, tensors as shapes
      -> signature.py       the function that it names, and its parameters
      -> table.py, rules/   an Entry: its annotation (annotation.py), from our table or the user's
      -> partition.py       a Partition for each option: who is split where, how parts come together
      -> inputs.py          seeded inputs that are valid for the op
      -> parts.py           the op alone, in float64, and in parts: here, or on ranks (crews.py)
      -> differences.py     slot by slot, the parts against the op alone, both against float64
      -> findings.py        a Finding for the op and for each partition; Findings are the answer

`checking.py` leads an op along it; `verified.py` remembers which ops have passed.
"""

from dumpcmp.partitioning.asked import check_partition_options, verify_partition_options
from dumpcmp.partitioning.configuration import (
    IRObject,
    PartitionConfig,
    PartitionError,
    TensorInfo,
)
from dumpcmp.partitioning.findings import Finding, Findings
from dumpcmp.partitioning.graphs import verify_graph
from dumpcmp.partitioning.rules.ruling import Adjusted, DimKind, Domain
from dumpcmp.partitioning.table import register_annotation

__all__ = [
    "Adjusted",
    "DimKind",
    "Domain",
    "Finding",
    "Findings",
    "IRObject",
    "PartitionConfig",
    "PartitionError",
    "TensorInfo",
    "check_partition_options",
    "register_annotation",
    "verify_graph",
    "verify_partition_options",
]
