"""The report as JUnit XML: a test case for each value, for the pages that CI systems make of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row, Verdict
from dumpcmp.report.escaping import visible

_UNTESTED = frozenset(
    (Verdict.FUSED, Verdict.SKIPPED, Verdict.EMPTY, Verdict.INCONCLUSIVE, Verdict.DEAD,
     Verdict.COVERED)
)  # fmt: skip


def write_junit(outcome: Outcome, path: Path) -> Path:
    """Write the test suite. A comparison without an answer is an error of the whole suite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, draft.open("w", encoding="utf-8", errors="replace") as file:
        file.writelines(f"{line}\n" for line in _lines(outcome))
    return path


def _lines(outcome: Outcome) -> Iterator[str]:
    unknown = int(outcome.exit_code == 2)
    counts = outcome.tally.counts
    skipped = sum(count for verdict, count in counts.items() if verdict in _UNTESTED)
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield (
        f'<testsuite name="dumpcmp" tests="{outcome.tally.total + unknown}" '
        f'failures="{len(outcome.failures)}" errors="{unknown}" skipped="{skipped}">'
    )
    if unknown:
        yield f'<testcase classname="dumpcmp" name="answer"><error message={_q(outcome.word)}/>'
        yield "</testcase>"
    for row in outcome.rows:
        yield from _case(row)
    yield f"<system-out>{escape(visible(outcome.word))}</system-out>"
    yield "</testsuite>"


def _case(row: Row) -> Iterator[str]:
    key = row.key
    name = f"token {key.step} {key.op}#{key.call} {key.slot}"
    begun = f"<testcase classname={_q(f'{key.model}.{key.op.module}')} name={_q(name)}"
    if row.verdict.fails:
        why = f"inherits from {row.cause}; {row.reason}" if row.cause else row.reason
        yield f"{begun}><failure type={_q(row.verdict)} message={_q(why)}/></testcase>"
    elif row.verdict in _UNTESTED:
        yield f"{begun}><skipped message={_q(f'{row.verdict}: {row.reason}')}/></testcase>"
    else:
        yield f"{begun}/>"


def _q(text: str) -> str:
    return quoteattr(visible(text))
