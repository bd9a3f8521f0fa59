"""Verifies all configurations that a user's Python file holds or verifies."""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dumpcmp.partitioning.config import PartitionError, VerifyConfig
from dumpcmp.partitioning.findings import Findings
from dumpcmp.partitioning.ops import gathering, verify_partition_options
from dumpcmp.partitioning.ranks import opened


def verify_file(path: Path, *, backend: str, timeout: float = 300.0, **options: Any) -> Findings:
    """Run the file at `path`, and verify each VerifyConfig that it leaves unverified."""
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
            f"{path} holds no VerifyConfig", hint="see docs/how-to/verify-a-partition.md"
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


def _configs(values: list[Any]) -> Iterator[VerifyConfig]:
    for value in values:
        if isinstance(value, VerifyConfig):
            yield value
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, VerifyConfig))
        elif isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, VerifyConfig))
