"""The report as JUnit XML, for the pages that CI systems make of it.

A value is a test case. Values that only inherit a difference are text of the root that they inherit
from: one wrong op is one failure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row, Verdict
from dumpcmp.report.escaping import visible

_UNTESTED = frozenset(
    (Verdict.FUSED, Verdict.SKIPPED, Verdict.EMPTY, Verdict.INCONCLUSIVE, Verdict.DEAD,
     Verdict.COVERED)
)  # fmt: skip
_SHOWN = 50  # values under a root


def write_junit(outcome: Outcome, path: Path) -> Path:
    """Write the test suite. A comparison without an answer is an error of the whole suite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, draft.open("w", encoding="utf-8", errors="replace") as file:
        file.writelines(f"{line}\n" for line in _lines(outcome))
    return path


def _lines(outcome: Outcome) -> Iterator[str]:
    unknown = int(outcome.exit_code == 2)
    roots = {row.key for row in outcome.rows if row.verdict.fails and row.root}
    heirs, num_heirs = _heirs(outcome.rows, roots)
    inherited = sum(num_heirs.values())
    skipped = sum(outcome.tally.counts.get(verdict, 0) for verdict in _UNTESTED)
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield (
        f'<testsuite name="dumpcmp" tests="{outcome.tally.total - inherited + unknown}" '
        f'failures="{len(outcome.failures) - inherited}" errors="{unknown}" skipped="{skipped}">'
    )
    if unknown:
        yield f'<testcase classname="dumpcmp" name="answer"><error message={_q(outcome.word)}/>'
        yield "</testcase>"
    told: set[Key] = set()
    for row in outcome.rows:
        if _inherits(row, roots):
            continue
        known = row.root and row.key not in told
        told |= {row.key} if known else set()
        left = num_heirs[row.key] - len(heirs[row.key]) if known else 0
        more = [f"and {left} more"] if left else []
        yield from _case(row, [*heirs[row.key], *more] if known else ())
    yield f"<system-out>{escape(visible(outcome.word))}</system-out>"
    yield "</testsuite>"


def _inherits(row: Row, roots: set[Key]) -> bool:
    return row.verdict.fails and not row.root and row.cause in roots


def _heirs(rows: Sequence[Row], roots: set[Key]) -> tuple[dict[Key, list[str]], Counter[Key]]:
    """By root, the first values that inherit from it, and how many there are."""
    shown: dict[Key, list[str]] = defaultdict(list)
    number: Counter[Key] = Counter()
    for row in rows:
        if _inherits(row, roots) and row.cause is not None:
            number[row.cause] += 1
            if len(shown[row.cause]) < _SHOWN:
                shown[row.cause].append(f"{_name(row)}: {row.reason}")
    return shown, number


def _case(row: Row, heirs: Sequence[str]) -> Iterator[str]:
    key = row.key
    begun = f"<testcase classname={_q(f'{key.model}.{key.op.module}')} name={_q(_name(row))}"
    if row.verdict.fails:
        lines = "\n".join(visible(line) for line in (row.reason, *_told(heirs)))
        failure = f"<failure type={_q(row.verdict)} message={_q(row.reason)}>{escape(lines)}"
        yield f"{begun}>{failure}</failure></testcase>"
    elif row.verdict in _UNTESTED:
        yield f"{begun}><skipped message={_q(f'{row.verdict}: {row.reason}')}/></testcase>"
    else:
        yield f"{begun}/>"


def _told(heirs: Sequence[str]) -> Iterator[str]:
    if heirs:
        yield "values that inherit the difference:"
        yield from heirs


def _name(row: Row) -> str:
    return f"token {row.key.step} {row.key.op}#{row.key.call} {row.key.slot}"


def _q(text: str) -> str:
    return quoteattr(visible(text))
