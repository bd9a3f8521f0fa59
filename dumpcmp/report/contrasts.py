"""What differs between two runs besides their values: how they were started, and on what."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import PurePath

from dumpcmp.nouns.background import RunTold
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Why

_TOLD = ("versions.", "environment.", "device", "num_threads", "dtype", "seed", "shortcuts")
_OF_DUMP = frozenset(("--path", "--mode"))  # options with a word, which every two dumps have
_FLAGS = frozenset(("--overwrite",))


def contrasts(outcome: Outcome) -> list[str]:
    """What else differs, a line each, where the runs differ; the page has all facts."""
    golden, mine = outcome.background.golden, outcome.background.target
    if outcome.passed or not golden.facts or not mine.facts:
        return []
    return [*_commands(golden, mine), *_facts(golden, mine, outcome)]


def _facts(golden: RunTold, mine: RunTold, outcome: Outcome) -> Iterator[str]:
    ours, theirs = dict(golden.facts), dict(mine.facts)
    told = (*_TOLD, "initial_seed") if _came_otherwise(outcome) else _TOLD
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if one != other and name.startswith(told):
            yield f"{name}: golden {one or 'not set'}, mine {other or 'not set'}"


def _came_otherwise(outcome: Outcome) -> bool:
    """Whether it begins with an input or a weight: then the seeds may be the cause."""
    first = outcome.first_divergence
    return first is not None and first.judgement.why is Why.LEAF and first.key.step == 0


def _commands(golden: RunTold, mine: RunTold) -> Iterator[str]:
    """Which words of the command lines differ, each with the option that it belongs to."""
    if not all(dict(side.facts).get("command") for side in (golden, mine)):
        return
    ours, theirs = _words(golden), _words(mine)
    for kind, i, j, k, n in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if kind != "equal":
            one, other = _with_option(ours, i, j), _with_option(theirs, k, n)
            said = ((side, words) for side, words in (("golden", one), ("mine", other)) if words)
            yield "command: " + ", ".join(f"{side} has {words}" for side, words in said)


def _with_option(words: Sequence[str], start: int, stop: int) -> str:
    chosen = words[start:stop]
    is_value = chosen and not chosen[0].startswith("-") and start > 0
    before = words[start - 1 : start] if is_value and words[start - 1].startswith("-") else []
    return shlex.join([*before, *chosen])


def _words(run: RunTold) -> list[str]:
    """The command line without where the dump went, and how its values were watched."""
    words = dict(run.facts).get("command", "").split(" ")
    words[0] = PurePath(words[0]).name
    kept, is_value = [], False
    for word in words:
        if not is_value and word not in _OF_DUMP and word not in _FLAGS:
            kept.append(word)
        is_value = word in _OF_DUMP
    return kept
