"""Verifies all configurations that a user's Python file holds or verifies."""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dumpcmp.partitioning.configuration import PartitionConfig, PartitionError
from dumpcmp.partitioning.crews import opened
from dumpcmp.partitioning.findings import Findings
from dumpcmp.partitioning.ops import gathering, verify_partition_options


def verify_file(path: Path, *, backend: str, timeout: float = 300.0, **options: Any) -> Findings:
    """Run the file at `path`, and verify each PartitionConfig that it leaves unverified."""
    with (
        _importable(path.parent),
        opened(backend, timeout) as runner,
        gathering(backend=runner, **options) as gathered,
    ):
        namespace = runpy.run_path(str(path))
        for config in _configs(list(namespace.values())):
            if not any(config is seen for seen in gathered.configs):
                verify_partition_options(config)
    if not gathered.findings:
        raise PartitionError(
            f"{path} holds no PartitionConfig", hint="see docs/how-to/verify-a-partition.md"
        )
    return sum(gathered.findings, start=Findings(()))


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules beside the file can be imported inside; they shadow nothing."""
    before = list(sys.path)
    sys.path.append(str(folder.resolve()))
    try:
        yield
    finally:
        sys.path[:] = before


def _configs(values: list[Any]) -> Iterator[PartitionConfig]:
    for value in values:
        if isinstance(value, PartitionConfig):
            yield value
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, PartitionConfig))
        elif isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, PartitionConfig))
