"""Holds what is stored against its digests, where it need not be read to be measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor

from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.side import Shares, Side, archive_at
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Kept


def check_ends(*sides: Side) -> None:
    """Read what the models gave in the end: ArchiveError where it is damaged.

    What has the same digest on both sides is not read to be measured, and what the models gave
    decides whether they are the same.
    """
    for side in sides:
        for key in side.listing.values:
            if key.op == ROOT and key.slot.is_output:
                _check(side.shares(key))


def check_all(sides: Iterable[Side], workers: Executor) -> None:
    """Have `workers` read everything: ArchiveError at the first that is damaged."""
    shares = [side.shares(key) for side in sides for key in side.listing.values]
    for error in run_batched(problems_of, shares, workers):
        if error is not None:
            raise error


def problems_of(many: Iterable[Shares]) -> Iterator[DumpcmpError | None]:
    """What is wrong with what is stored of each value."""
    return map(problem_of, many)


def problem_of(shares: Shares) -> DumpcmpError | None:
    """What is wrong with what is stored of a value; None where nothing is."""
    try:
        _check(shares)
    except DumpcmpError as error:
        return error
    return None


def _check(shares: Shares) -> None:
    archive = archive_at(shares.path)
    for record in shares.records:
        if record.kept is not Kept.NOTHING and record.location is not None:
            archive.load(record)
