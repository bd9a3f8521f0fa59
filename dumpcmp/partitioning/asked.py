"""Verifies the partitions that a user has written down for ops: one by one, or a file of them."""

import logging
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning.call import Candidate, call_of
from dumpcmp.partitioning.checking import Settings, check_op
from dumpcmp.partitioning.configuration import PartitionConfig, PartitionError
from dumpcmp.partitioning.crews import opened
from dumpcmp.partitioning.findings import Findings, is_verified
from dumpcmp.partitioning.parts import Runner
from dumpcmp.pytorch.names import check_names

_log = logging.getLogger("dumpcmp.partitioning")


@dataclass
class Gathered:
    """What was verified while someone listened, and with which settings."""

    options: dict[str, Any]
    configs: list[PartitionConfig] = field(default_factory=list)
    findings: list[Findings] = field(default_factory=list)


_LISTENER: ContextVar[Gathered | None] = ContextVar("listener", default=None)


@contextmanager
def gathering(**options: Any) -> Iterator[Gathered]:
    """Let `verify_partition_options` use `options` by default, and gather what it finds."""
    gathered = Gathered(options)
    token = _LISTENER.set(gathered)
    try:
        yield gathered
    finally:
        _LISTENER.reset(token)


def verify_partition_options(config: PartitionConfig, **options: Any) -> Findings:
    """Whether the op, and every partition of it in `config`, gives what the op alone gives.

    What it returns is true if all were verified and agree. If not, its `exit_code` tells apart what
    differs (1) from what could not be verified (2: SKIPPED or INCONCLUSIVE), and its rows say why;
    so does the log ``dumpcmp.partitioning``, which warns of each. Takes the options of
    `check_partition_options`, and is heard by ``dumpcmp verify-op``.
    """
    listener = _LISTENER.get()
    defaults = listener.options if listener else {}
    findings = check_partition_options(config, **{**defaults, **options})
    for row in findings.rows:
        _log.log(logging.INFO if row.verdict is Verdict.PASS else logging.WARNING, "%s", row)
    if listener:
        listener.configs.append(config)
        listener.findings.append(findings)
    return findings


def check_partition_options(
    config: PartitionConfig,
    *,
    backend: str | Runner = "inprocess",
    num: int = 2,
    seed: int = 0,
    device: str = "cpu",
    timeout: float = 300.0,
) -> Findings:
    """Verify the op of `config` and each of its partitions, and say what was found.

    `backend` is ``"inprocess"``, ``"gloo"`` or ``"nccl"`` (ranks that are spawned for this call,
    each trial limited to `timeout` seconds), or ranks that are open already (`crews.opened`).
    """
    if not isinstance(config, PartitionConfig):
        kind = type(config)
        raise PartitionError(
            "a partition is described by a PartitionConfig, "
            f"not by {kind.__module__}.{kind.__qualname__}",
            hint="from dumpcmp.partitioning import PartitionConfig",
        )
    check_names("verify-op")
    candidate = Candidate(
        call_of(config),
        tuple(config.parti_options),
        config.anno,
        node=config.fsig,
        noutputs=config.noutputs,
    )
    with opened(backend, timeout) if isinstance(backend, str) else nullcontext(backend) as runner:
        rows = tuple(check_op(candidate, runner, Settings(num, seed, device)))
    num_unverified = int(not is_verified(rows))
    return Findings(rows, 1, 1, int(bool(rows[0].annotation)), num_unverified=num_unverified)


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
    """Those among `values`, and inside of lists, tuples and dicts among them."""
    for value in values:
        held = list(value.values()) if isinstance(value, dict) else value
        for each in held if isinstance(held, list | tuple) else [held]:
            if isinstance(each, PartitionConfig):
                yield each
