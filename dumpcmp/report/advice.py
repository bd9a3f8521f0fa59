"""What to run next, after a comparison: commands that can be pasted, and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Conclusion, Outcome
from dumpcmp.nouns.row import Row, Verdict

_MOST_ROOTS = 5  # that have commands of their own; more of them are named like these


def next_commands(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Commands, and what each is good for; none where everything is the same."""
    golden = outcome.background.golden.path or "GOLDEN"
    mine = outcome.background.target.path or "MINE"
    first = outcome.first_divergence
    if first is not None:
        yield from _about(first, golden, mine)
    for command, why in fault_commands(outcome):
        yield command, why[0].lower() + why[1:]
    if outcome.conclusion is Conclusion.UNKNOWN:
        yield _line("dumpcmp", "audit", mine), "whether my dump is whole"
        yield _line("dumpcmp", "audit", golden), "whether golden's dump is whole"
    if outcome.tally[Verdict.FUSED]:
        why = "dump my side again with every op stored, where several share a kernel"
        words = ("dumpcmp", "dump", "--mode", "compiled", "--realize", "--path", "REALIZED")
        yield _line(*words, *_program(outcome)), why


def _about(first: Row, golden: str, mine: str) -> Iterator[tuple[str, str]]:
    key = first.key
    yield _line("dumpcmp", "explain", mine, golden, _name(first)), "all that is known of that value"
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
    """The first root that is a value of the run, or the first weight that a setting made."""
    return next(_root_values(outcome), None)


def fault_commands(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """What cuts each root out, and what puts it right: commands, and what each is good for."""
    golden = outcome.background.golden.path or "GOLDEN"
    mine = outcome.background.target.path or "MINE"
    roots = list(islice(_root_values(outcome), _MOST_ROOTS))
    for number, row in enumerate(roots, 1):
        folder = "repro" if number == 1 else f"repro-{number}"
        value = _name(row)
        command = _line("dumpcmp", "repro", mine, golden, value, "--path", folder)
        what = "The fault" if len(roots) == 1 else f"Root {number} of {len(outcome.roots)}"
        yield command, f"{what} alone, to attach to a ticket"
    if outcome.first_divergence is not None:
        why = "What each fault costs, and whether anything else is wrong"
        yield _line("dumpcmp", "graft", "--all", mine, golden), why
    for number, row in enumerate(roots, 1):
        key = row.golden_key
        if key is not None and key.slot.is_output:
            where = ("--golden-path", golden, "--at", f"{key.op}#{key.call} {key.slot}")
            words = ("dumpcmp", "graft", *where, "--path", f"grafted-{number}")
            yield (
                _line(*words, *_program(outcome)),
                f"The program with golden's {key.op} in place of its own",
            )


def _program(outcome: Outcome) -> list[str]:
    """My program as its dump was asked for; each word of it is quoted, whatever it holds."""
    told = dict(outcome.background.target.facts).get("program", "")
    try:
        return shlex.split(told) or ["SCRIPT"]
    except ValueError:  # no dump writes that
        return ["SCRIPT"]


def _root_values(outcome: Outcome) -> Iterator[Row]:
    """Roots that are values; of a setting of an optimizer the first weight that it made."""
    weights: dict[Key, Row] = {}
    for row in outcome.rows:
        if row.cause is not None and row.verdict.fails and row.key.slot.is_weight:
            weights.setdefault(row.cause, row)
    for row in outcome.roots:
        value = weights.get(row.key) if row.key.op.is_effect else row
        if value is not None:
            yield value


def _name(row: Row) -> str:
    return f"{row.key.op}#{row.key.call} {row.key.slot}"


def _line(*words: str) -> str:
    return shlex.join(words)
