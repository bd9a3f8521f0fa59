"""Holds the log probabilities of two engines, or of rollout and trainer, against each other."""

from __future__ import annotations

from pathlib import Path

from dumpcmp.logprobs.aligned_logprobs import align
from dumpcmp.logprobs.logprob_files import read_logprobs
from dumpcmp.logprobs.logprob_report import LogprobReport


def compare_logprobs(
    golden: str | Path,
    mine: str | Path,
    *,
    golden_field: str | None = None,
    my_field: str | None = None,
) -> LogprobReport:
    """Compare what two sides said of the same tokens, and say why it differs.

        dumpcmp.compare_logprobs("train_data_step3.jsonl", "train_data_step3.jsonl")

    Each is an archive, a file or a directory of them. Where a file has what the trainer computed
    and what the rollout did, the trainer is golden; `golden_field` and `my_field` say otherwise.
    Of an archive a field is the op whose output are logits.
    """
    right, golden_used = read_logprobs(golden, golden_field, is_golden=True)
    found, my_used = read_logprobs(mine, my_field, is_golden=False)
    alignment = align(right, found)
    told = (f"golden: {golden_used}, mine: {my_used}",) if golden_used != my_used else ()
    if str(golden) == str(mine) and golden_used == my_used:
        told = (f"both sides are {golden_used} of the same file",)
    return LogprobReport(alignment.sequences, (*told, *alignment.remarks), alignment.num_infinite)
