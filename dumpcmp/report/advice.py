"""What to run next, after a comparison: commands that can be pasted, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dumpcmp.nouns.outcome import Conclusion, Outcome
from dumpcmp.nouns.row import Row, Verdict


def next_commands(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Commands, and what each is good for; none where everything is the same."""
    golden = outcome.background.golden.path or "GOLDEN"
    mine = outcome.background.target.path or "MINE"
    first = outcome.first_divergence
    if first is not None:
        yield from _about(first, golden, mine)
    value = first_value(outcome)
    if value is not None:
        yield repro_command(value, golden, mine), "the fault alone, to attach to a ticket"
    if first is not None:
        why = "what each fault costs, and whether anything else is wrong"
        yield graft_command(golden, mine), why
    if outcome.conclusion is Conclusion.UNKNOWN:
        yield _line("dumpcmp", "audit", mine), "whether my dump is whole"
        yield _line("dumpcmp", "audit", golden), "whether golden's dump is whole"
    if outcome.tally[Verdict.FUSED]:
        why = "dump my side again with every op stored, where several share a kernel"
        yield "dumpcmp dump --mode compiled --realize --path REALIZED SCRIPT", why


def _about(first: Row, golden: str, mine: str) -> Iterator[tuple[str, str]]:
    key = first.key
    value = f"{key.op}#{key.call} {key.slot}"
    yield _line("dumpcmp", "explain", mine, golden, value), "all that is known of that value"
    if first.target_key is not None:
        op = first.target_key.op
        yield _line("dumpcmp", "show", mine, op, "--values"), "what my side took and gave there"
    if first.golden_key is not None:
        op = first.golden_key.op
        yield _line("dumpcmp", "show", golden, op, "--values"), "what golden took and gave there"
    only = ("--layer", f"{key.op.module}*", "--token", str(key.step))
    command = _line("dumpcmp", "compare", "--my-path", mine, "--golden-path", golden, *only)
    yield command, "that module and token alone, after a change"


def first_value(outcome: Outcome) -> Row | None:
    """The first root that is a value of the run, and no setting or exception that it left."""
    return next((row for row in outcome.roots if not row.key.op.is_effect), None)


def repro_command(row: Row, golden: str, mine: str) -> str:
    """What cuts the fault of `row` out."""
    value = f"{row.key.op}#{row.key.call} {row.key.slot}"
    return _line("dumpcmp", "repro", mine, golden, value, "--path", "repro")


def graft_command(golden: str, mine: str) -> str:
    """What puts all roots right, and measures what that changes."""
    return _line("dumpcmp", "graft", "--all", mine, golden)


def _line(*words: str) -> str:
    return shlex.join(words)
