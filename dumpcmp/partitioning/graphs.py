"""Verifies every op of a graph in every legal partition, and writes down what was found."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial as partially
from pathlib import Path

import torch

from dumpcmp.archive.copies import copied_here, written_there
from dumpcmp.engines.engine import Workers, workers_of
from dumpcmp.execute import num_workers, run_each
from dumpcmp.nouns.files import write_whole
from dumpcmp.partitioning.call import Candidate, merged
from dumpcmp.partitioning.checking import Settings, check_op
from dumpcmp.partitioning.checkpoint import read_checkpoint
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.crews import opened
from dumpcmp.partitioning.exported import ops_of, read_exported
from dumpcmp.partitioning.findings import Finding, Findings, is_verified
from dumpcmp.partitioning.parts import Runner
from dumpcmp.partitioning.table import Registered, registered, restore
from dumpcmp.partitioning.verified import Verified, key_of
from dumpcmp.pytorch.names import check_names

Announce = Callable[[int, int, list[Finding]], None]  # ops done, ops in all, rows of the last


def verify_graph(
    graph: str | Path | torch.export.ExportedProgram,
    outdir: str | Path,
    *,
    backend: str = "inprocess",
    num: int = 2,
    seed: int = 0,
    device: str = "cpu",
    jobs: int = 1,
    executor: Workers | None = None,
    timeout: float = 300.0,
    partial: bool = False,
    progress: Announce = lambda _done, _total, _rows: None,
) -> Findings:
    """Verify each different op of `graph`, alone and in every legal partition into `num` parts.

    `graph` is a ``torch.export`` program or its ``.pt2``, or nnScaler's ``graph.ckp``. Writes
    ``results.csv`` and ``summary.txt`` to `outdir`; ops that passed in an earlier run with the
    same settings and versions are not run again. A node that computes something and could not be
    verified is trouble, unless `partial` says that this is known. `jobs` processes, or the workers
    of an `executor` as for `compare`, share the ops.
    """
    if (jobs > 1 or executor is not None) and backend != "inprocess":
        hint = "use neither jobs nor an executor with them"
        raise PartitionError("ranks are processes of their own", hint=hint)
    check_names("verify-op")
    nodes = graph_of(graph)
    with written_there(outdir, with_old=True) as out:
        found = _verified(nodes, out, Settings(num, seed, device), backend, timeout, progress,
                          partially(workers_of, executor, jobs))  # fmt: skip
    return replace(found, partial=partial)


def _verified(
    nodes: Sequence[Candidate], out: Path, settings: Settings, backend: str, timeout: float,
    progress: Announce, engaged: Callable[[], AbstractContextManager[Executor]],
) -> Findings:  # fmt: skip
    """Verify the ops of a graph, and write what that came to into the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    candidates = list(merged(nodes))
    rows: list[Finding] = []
    num_unverified = 0
    verified = Verified(out / "verified.jsonl")
    with opened(backend, timeout) as runner, engaged() as workers:
        found = _found(candidates, settings, backend, runner, verified, workers)
        for done, (candidate, new) in enumerate(zip(candidates, found, strict=True), 1):
            rows += new
            num_unverified += new[0].num_nodes * (candidate.computes and not is_verified(new))
            progress(done, len(candidates), new)
    findings = Findings(
        tuple(rows),
        len(nodes),
        sum(node.computes for node in nodes),
        sum(row.num_nodes for row in rows if row.idx is None and row.annotation),
        verified.num_asked,
        num_unverified,
    )
    for name, text in (("results.csv", findings.to_csv()), ("summary.txt", findings.summary())):
        write_whole(out / name, text)
    return findings


def graph_of(graph: str | Path | torch.export.ExportedProgram) -> Sequence[Candidate]:
    """The ops of `graph`, whatever form it has."""
    if isinstance(graph, torch.export.ExportedProgram):
        return ops_of(graph)
    with copied_here(graph) as path:
        return read_checkpoint(path) if path.suffix == ".ckp" else read_exported(path)


def _found(
    candidates: list[Candidate],
    settings: Settings,
    backend: str,
    runner: Runner,
    verified: Verified,
    workers: Executor,
) -> Iterator[list[Finding]]:
    """The rows of each op in turn: known from before, or verified now."""
    keys = [key_of(candidate, settings, backend) for candidate in candidates]
    new = [c for c, key in zip(candidates, keys, strict=True) if key not in verified]
    check = partially(_check, runner=runner, settings=settings, known=registered())
    results = run_each(check, new, workers, in_flight=2 * num_workers(workers) - 1)
    for candidate, key in zip(candidates, keys, strict=True):
        if key in verified:
            known = verified.rows(key)
            yield [replace(row, node=candidate.node, source=candidate.source) for row in known]
        else:
            rows = next(results)
            verified.add(key, rows)
            yield rows


def _check(
    candidate: Candidate,
    runner: Runner,
    settings: Settings,
    known: tuple[tuple[str, Registered], ...],
) -> list[Finding]:
    restore(known)  # this may be another process
    return list(check_op(candidate, runner, settings))
