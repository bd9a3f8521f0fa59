"""Verifies the partitions that a user has written down for an op."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dumpcmp.partitioning.call import call_of
from dumpcmp.partitioning.checking import Candidate, Runner, Settings, check_op
from dumpcmp.partitioning.configuration import PartitionConfig, PartitionError
from dumpcmp.partitioning.crews import opened
from dumpcmp.partitioning.findings import Findings

_log = logging.getLogger("dumpcmp.partitioning")


@dataclass
class Gathered:
    """What was verified while someone listened, and with which settings."""

    options: dict[str, Any] = field(default_factory=dict)
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


def verify_partition_options(config: PartitionConfig, **options: Any) -> bool:
    """Whether the op, and every partition of it in `config`, gives what the op alone gives.

    Takes the options of `check_partition_options`, which returns the reasons as well; here they
    go to the log ``dumpcmp.partitioning``, failures as warnings.
    """
    listener = _LISTENER.get()
    findings = check_partition_options(
        config, **{**(listener.options if listener else {}), **options}
    )
    for row in findings.rows:
        _log.log(logging.WARNING if row.verdict.fails else logging.INFO, "%s", row)
    if listener:
        listener.configs.append(config)
        listener.findings.append(findings)
    return bool(findings)


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
    each trial limited to `timeout` seconds), or ranks that are open already (`ranks.opened`).
    """
    if not isinstance(config, PartitionConfig):
        raise PartitionError(
            f"a partition is described by a PartitionConfig, not by {_named(type(config))}",
            hint="from dumpcmp.partitioning import PartitionConfig",
        )
    candidate = Candidate(
        call_of(config),
        tuple(config.parti_options),
        config.anno,
        node=config.fsig,
        noutputs=config.noutputs,
    )
    room = opened(backend, timeout) if isinstance(backend, str) else nullcontext(backend)
    with room as runner:
        rows = tuple(check_op(candidate, runner, Settings(num, seed, device)))
    return Findings(rows, 1, 1, int(bool(rows[0].annotation)))


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
