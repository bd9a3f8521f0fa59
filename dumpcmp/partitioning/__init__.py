"""Partition verification: whether an op, or every op of a graph, is the same when it is split."""

from dumpcmp.partitioning.configuration import IRObject, PartitionConfig, PartitionError, TensorInfo
from dumpcmp.partitioning.findings import Finding, Findings
from dumpcmp.partitioning.graphs import verify_graph
from dumpcmp.partitioning.ops import check_partition_options, verify_partition_options
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
