"""Partition verification: whether an op, or every op of a graph, is the same when it is split."""

from dumpcmp.partitioning.config import IRObject, PartitionError, TensorInfo, VerifyConfig
from dumpcmp.partitioning.findings import Finding, Findings
from dumpcmp.partitioning.graph import verify_graph
from dumpcmp.partitioning.ops import check_partition_options, verify_partition_options
from dumpcmp.partitioning.rules.ruling import Adjusted, Domain, Kind
from dumpcmp.partitioning.table import register_annotation

__all__ = [
    "Adjusted",
    "Domain",
    "Finding",
    "Findings",
    "IRObject",
    "Kind",
    "PartitionError",
    "TensorInfo",
    "VerifyConfig",
    "check_partition_options",
    "register_annotation",
    "verify_graph",
    "verify_partition_options",
]
