"""How much of a sound run in another mode pairs with an eager one, and that nothing is alarmed."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

import dumpcmp
from benchmarks import strangers, zoo
from benchmarks.tables import Table
from dumpcmp.dumping.programs import dump
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict

KINDS = ("inference", "generation", "training")
MODES = ("fx", "compiled", "aten")
HEADINGS = (
    "model", "run", "mode", "golden's float values", "paired", "covered or fused", "open",
    "false FAIL", "false SHAPE", "exit",
)  # fmt: skip
_PAIRED = ("PASS", "DTYPE", "EMPTY", "FLIP", "SKIPPED", "INCONCLUSIVE")
_COVERED = ("COVERED", "DEAD", "FUSED")


def counted(outcome: Outcome) -> list[str]:
    """What became of golden's float values, each counted once."""
    rows = {row.golden_key: row for row in reversed(outcome.rows) if "float" in row.golden_dtype}
    rows.pop(None, None)
    counts = Counter(row.verdict for row in rows.values())
    share = {
        name: sum(counts[Verdict(verdict)] for verdict in verdicts)
        for name, verdicts in {
            "paired": _PAIRED,
            "covered": _COVERED,
            "open": ("UNPAIRED",),
        }.items()
    }
    failed = outcome.tally[Verdict.FAIL] + outcome.tally[Verdict.NONFINITE]
    return [
        str(len(rows)), *(f"{count / len(rows):.1%}" for count in share.values()),
        str(failed), str(outcome.tally[Verdict.SHAPE]), str(outcome.exit_code),
    ]  # fmt: skip


def measured(name: str, kind: str, room: Path) -> Iterator[list[str]]:
    """Dump a model eagerly and in the other modes, and compare."""
    torch.manual_seed(0)
    program = zoo.run_of((zoo.MODELS | strangers.HELD_OUT)[name](), kind)
    training = kind == "training"
    for mode in ("eager", *MODES):
        torch._dynamo.reset()
        dumped = dump(program, room / mode, mode=mode, backward=training, seed=0)
        if dumped.error is not None and mode == "eager":
            raise dumped.error
        if dumped.error is not None:  # such as a compiler that cannot
            yield [name, kind, mode, *["-"] * 6, type(dumped.error).__name__]
        elif mode != "eager":
            yield [name, kind, mode, *counted(dumpcmp.compare(room / "eager", room / mode))]


def chosen(held_out: bool = False) -> Iterator[tuple[str, str]]:
    """The models, each with what it is run for."""
    generating = zoo.GENERATING | strangers.GENERATING
    for name in strangers.HELD_OUT if held_out else zoo.MODELS:
        kinds = ("training",) if name in zoo.TRAINING else KINDS
        yield from ((name, kind) for kind in kinds if kind != "generation" or name in generating)


def table(held_out: bool = False) -> Table:
    rows = []
    for name, kind in chosen(held_out):
        with tempfile.TemporaryDirectory() as room:
            for row in measured(name, kind, Path(room)):
                rows.append(row)
                print("| " + " | ".join(row) + " |", file=sys.stderr, flush=True)
    how = (
        f"torch {torch.__version__}, CPU, two layers of random weights, nothing planted: golden is "
        "the eager run. Each of golden's float values is counted once. Covered is what only "
        "golden has while all that was computed from it agrees, fused what no kernel stores."
    )
    return Table("pairing", HEADINGS, rows, how)


if __name__ == "__main__":
    print(table(held_out="--held-out" in sys.argv).to_markdown())
