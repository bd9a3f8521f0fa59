"""Table "logprobs": six causes of other log probabilities, and pairs of which nothing is wrong."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import Table
from dumpcmp.logprobs import LogprobReport, compare_logprobs
from tests.logprobs.scored import CASES, Case, held_out, save, sides


def said(case: Case, room: Path) -> LogprobReport:
    golden, mine = sides(case.rollout, case.scoring, is_noisy=case.is_noisy)
    return compare_logprobs(save(golden, room / "g.jsonl"), save(mine, room / "m.jsonl"))


def rows(cases: Sequence[Case], room: Path, where: str) -> list[list[str]]:
    found, num_right = [], 0
    for case in cases:
        report = said(case, room)
        named = str(report.diagnosis.cause) if report.diagnosis else ""
        num_right += named == case.cause
        evidence = report.diagnosis.evidence if report.diagnosis else report.headline
        evidence = evidence.replace("|", "\\|")
        found.append([f"{case.name}{where}", case.cause or "nothing", named or "nothing", evidence])
    found.append([f"right{where}", f"{num_right} of {len(cases)}", "", ""])
    return found


def table() -> Table:
    with tempfile.TemporaryDirectory() as name:
        found = [*rows(CASES, Path(name), ""), *rows(held_out(), Path(name), " (held out)")]
    return Table("logprobs", ["case", "planted", "said", "evidence"], found, HOW)


HOW = (
    "A small decoder draws samples and scores them in float32; mine is scored by the same model "
    "with its feed-forward layers in bfloat16, but where the evidence says otherwise. Held-out "
    "cases have other seeds, sizes and strengths, and were looked at once."
)
