"""The report as a short text for a pull request, in the Markdown that GitHub shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from dumpcmp.nouns.files import write_whole
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.report.advice import next_commands
from dumpcmp.report.contrasts import contrasts
from dumpcmp.report.escaping import visible

_MOST = 10  # roots that are listed
_STEERING = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&$-])")


def write_markdown(outcome: Outcome, path: Path) -> Path:
    """Write the summary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join(_lines(outcome)) + "\n")
    return path


def as_text(text: str) -> str:
    """`text` so that nothing of it is markup."""
    return _STEERING.sub(r"\\\1", visible(text))


def as_code(text: str) -> str:
    """`text` as code in a line, whatever it holds; no bar of it ends a table's cell."""
    shown = visible(text).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _lines(outcome: Outcome) -> Iterator[str]:
    sign = {0: "✅", 1: "❌"}.get(outcome.exit_code, "❔")
    yield f"### {sign} dumpcmp: {as_text(outcome.conclusion)}"
    yield f"\n{as_text(outcome.word)}\n"
    yield "| " + " | ".join(outcome.tally.counts) + " |"
    yield "|" + "---:|" * len(outcome.tally.counts)
    yield "| " + " | ".join(f"{count:,}" for count in outcome.tally.counts.values()) + " |"
    if outcome.roots:
        yield from _roots(outcome)
    if differing := contrasts(outcome):
        yield "\nBesides their values, the runs differ in this:\n"
        yield from (f"- {as_text(line)}" for line in differing)
    if outcome.remarks:
        yield "\n<details><summary>Remarks</summary>\n"
        yield from (f"- {as_text(remark)}" for remark in outcome.remarks)
        yield "\n</details>"
    if commands := list(next_commands(outcome)):
        yield "\nNext:\n"
        yield from (f"- {as_code(command)}: {why}" for command, why in commands)


def _roots(outcome: Outcome) -> Iterator[str]:
    number = len(outcome.roots)
    heirs = sum(row.cause is not None for row in outcome.failures)
    inherit = plural(heirs, "failing value inherits", "failing values inherit")
    yield f"\n{counted(number, 'root')}, from which {heirs:,} {inherit}:\n"
    yield "| token | op | value | rel_l2 | why | source |"
    yield "|---:|---|---|---:|---|---|"
    yield from (_line(row) for row in islice(outcome.roots, _MOST))
    if number > _MOST:
        yield f"\nand {number - _MOST} more"


def _line(row: Row) -> str:
    key = row.key
    size = "" if row.metrics is None else f"{row.metrics.rel_l2:.3g}"
    cells = (str(key.step), as_code(key.op), as_code(key.slot), size, as_text(row.reason),
             as_code(row.source) if row.source else "")  # fmt: skip
    return "| " + " | ".join(cells) + " |"
