"""A third run beside golden and mine: mine as it was before, and what has become of it since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.spoken import counted
from dumpcmp.report.jsonfile import row_as_json

MOST_ROOTS = 50  # of the earlier run, that a page names
MENDED, STILL, NEW = "mended", "still failing", "newly failing"
_OF_MINE = ("dtype", "shape", "min", "max", "mean", "norm", "nan", "inf")


@dataclass(frozen=True)
class Earlier:
    """Two outcomes with one golden run: of mine as it was before, and as it is now."""

    before: Outcome
    now: Outcome

    @cached_property
    def changes(self) -> Mapping[Key, str]:
        """What has become of each value that failed before, or fails now."""
        before = {row.key for row in self.before.failures}
        now = {row.key for row in self.now.failures}
        found = {key: STILL if key in now else MENDED for key in before}
        return found | dict.fromkeys(now - before, NEW)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many values are mended, still fail, and fail since."""
        changes = list(self.changes.values())
        return {word: changes.count(word) for word in (MENDED, STILL, NEW)}

    @property
    def path(self) -> str:
        """Where the earlier run lies."""
        return self.before.background.target.path

    @property
    def remark(self) -> str:
        """What has changed, in a sentence."""
        mended, still, new = self.counts.values()
        failing = counted(new, "value fails", "values fail")
        return (
            f"before ({self.path}) it was {self.before.word}; "
            f"of {counted(mended + still, 'value')} that failed, {mended} {_are(mended)} mended, "
            f"{still} still {'fails' if still == 1 else 'fail'}; {failing} that did not"
        )

    def as_json(self) -> dict[str, Any]:
        """All but the rows, for a page."""
        roots = self.before.roots[:MOST_ROOTS]
        return {
            "path": self.path,
            "word": self.before.word,
            "exit_code": self.before.exit_code,
            "counts": self.counts,
            "num_roots": len(self.before.roots),
            "roots": [
                {"key": str(row.key), "reason": row.reason, "change": self.changes.get(row.key, "")}
                for row in roots
            ],
        }

    @cached_property
    def _known(self) -> Mapping[Key, Row]:
        return {row.key: row for row in self.before.rows}

    def __len__(self) -> int:
        return len(self.now.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The cells of the rows of now, with those that tell what each value was before."""
        for row in self.now.rows:
            yield row_as_json(row) | self._cells(row.key, self._known.get(row.key))

    def _cells(self, key: Key, row: Row | None) -> dict[str, Any]:
        if row is None:
            return {"before": None}
        cells = row_as_json(row)
        told = {f"before_{name}": cells[f"my_{name}"] for name in _OF_MINE}
        return {
            "before": str(row.verdict),
            "change": self.changes.get(key, ""),
            "before_rel_l2": cells["rel_l2"],
            **told,
        }


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
