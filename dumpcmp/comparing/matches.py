"""The use case of ``dumpcmp show --pairs``: how calls found each other, and why others did not."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dumpcmp.align.absence import Mating, counted
from dumpcmp.align.mapfile import read_mapping
from dumpcmp.align.pairing import in_golden_terms, pair_values
from dumpcmp.align.renaming import Renaming
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.proposals import mapping_by_values, turns_between
from dumpcmp.comparing.side import open_run
from dumpcmp.comparing.stepping import counted_steps
from dumpcmp.nouns.budgets import JSON_REPORT, Spending
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.selection import make_tap

_ALONE = ("UNPAIRED", "COVERED", "DEAD", "FUSED")

_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Match:
    """A call of golden and its partner, or one of them alone."""

    golden: str  # "token 0 layers.0/mul#1"; empty where golden has none
    target: str
    by: str = ""  # how they found each other
    why: str = ""  # of one alone: why it is

    @property
    def both(self) -> bool:
        """Whether the call has a partner."""
        return bool(self.golden and self.target)


@dataclass(frozen=True, slots=True)
class Matches:
    """All calls, or all values of a report, and how many values were paired by what."""

    found: tuple[Match, ...]
    counts: dict[str, int]
    remarks: tuple[str, ...] = ()


def matches_of(
    golden: str | Path, target: str | Path, mapping: Path | None, token_offset: int | None
) -> Matches:
    """How the calls of two archives pair; nothing is measured."""
    archives = Archive(golden), Archive(target)
    counting = counted_steps(*archives, token_offset)
    ours, theirs = (open_run(one, make_tap()).side() for one in archives)
    proposal = None if mapping else mapping_by_values(*archives)
    renaming = read_mapping(mapping) if mapping else proposal.renaming if proposal else None
    turns = turns_between(ours, theirs, renaming or Renaming())
    pairs = pair_values(ours.listing, theirs.listing, renaming, counting, turns)
    terms = in_golden_terms(ours.listing, theirs.listing, counting)
    mating = Mating(pairs, ours.listing, theirs.listing, terms, renaming or Renaming())
    remarks = (*counting.remarks, *(proposal.remarks if proposal else ()))
    return Matches(tuple(_matches(mating)), counted(pairs), remarks)


def _matches(mating: Mating) -> Iterator[Match]:
    for golden, (target, by) in mating.partners.items():
        yield Match(_name(golden), _name(target), by.value)
    ours, theirs = mating.alone()
    yield from (Match(_name(site), "", why=mating.why(site, is_golden=True)) for site in ours)
    yield from (Match("", _name(site), why=mating.why(site, is_golden=False)) for site in theirs)


def _name(site: Site) -> str:
    return f"token {site.step} {site.op}#{site.call}"


def matches_in(report: Path) -> Matches:
    """How the values of a written report were paired, with the verdicts on those that were not."""
    rows = list(_rows(report))
    found = tuple(map(_match, rows))
    counts = Counter(row["paired_by"] for row in rows if row["paired_by"])
    return Matches(found, dict(counts.most_common()))


def _rows(report: Path) -> Iterable[dict[str, str]]:
    try:
        Spending(JSON_REPORT, report, report.stat().st_size)
        text = report.read_text(encoding="utf-8")
        is_json = report.suffix == ".json"
        rows = json.loads(text)["rows"] if is_json else csv.DictReader(io.StringIO(text))
        found = [{n: "" if cell is None else str(cell) for n, cell in row.items()} for row in rows]
    except _UNREADABLE as error:
        hint = "give compare.csv or compare.json as dumpcmp compare writes them, or two archives"
        raise ArchiveError(f"cannot read the report {report}: {error}", hint=hint) from error
    if not found or not {"op", "call", "slot", "token", "paired_by", "verdict"} <= found[0].keys():
        raise ArchiveError(
            f"{report} is no report of dumpcmp compare",
            hint="give compare.csv or compare.json, or the archives of golden and of my side",
        )
    return found


def _match(row: dict[str, str]) -> Match:
    name = f"token {row['token']} {row['op']}#{row['call']}/{row['slot']}"
    if row["verdict"] in _ALONE or not row["paired_by"]:
        alone = (name, "") if row.get("golden_shape") else ("", name)
        return Match(*alone, why=f"{row['verdict']}: {row.get('reason', '')}")
    return Match(name, row.get("my_op") or name, row["paired_by"])
