"""What a foreign value is called here: its op, slot, step and rank, read from its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Phase
from dumpcmp.nouns.spoken import shorten

GROUPS = ("step", "rank", "op", "slot", "call", "order")
_NUMBERS = ("step", "rank", "call", "order")
_LARGEST = {"step": 10**18 - 1, "rank": 99_999, "call": 2**31 - 1, "order": 10**40 - 1}

_BEFORE = r"(?:^|(?<=[/_.=-]))"
_AFTER = r"(?=$|[/_.-])"
_STEP = re.compile(rf"{_BEFORE}(?:step|iter|iteration|token|pass)[_=-]?(\d+){_AFTER}", re.I)
_RANK = re.compile(rf"{_BEFORE}(?:worldsize\d+_)?(?:global_)?rank[_=-]?(\d+){_AFTER}", re.I)
_SLOT = re.compile(
    r"(?P<op>.*?)(?:#(?P<call>\d+))?(?:^|[./ ])"
    r"(?P<kind>(?:grad_)?(?:in|out)puts?|param|buffer|grad)(?:[._](?P<rest>[^/]+))?"
)
_NAMED = ("param", "buffer", "grad")  # slots that have a name, and no number


@dataclass(frozen=True, slots=True)
class Title:
    """The names that a value of another tool gets."""

    op: str
    slot: str = "output.0"
    step: int = 0
    rank: int = 0
    call: int | None = None  # as often as the op came before, where nothing is said
    order: int | None = None  # as the values come, where nothing is said
    target: str = ""
    phase: Phase = Phase.FORWARD
    layout: str = ""
    model: str = ""  # as the import calls it, where nothing is said
    kernel: str = ""  # that computed several ops in one
    inside: tuple[str, ...] = ()  # those ops, of which it gives what the last gives


Titling = Callable[[str, str], Title]  # of a file's path and a name in it


def joined(path: str, name: str) -> str:
    """All that a value is called: the path of its file without the suffix, and its name in it."""
    return f"{path}/{name}" if path and name else path or name


def by_pattern(text: str) -> Titling:
    """Read names by a regular expression with the named groups of GROUPS, of which op must be."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise SelectionError(f"--pattern {text!r} is no regular expression: {error}") from None
    unknown = sorted(set(pattern.groupindex) - set(GROUPS))
    if unknown or "op" not in pattern.groupindex:
        told = f"has a group {unknown[0]!r}" if unknown else "has no group 'op'"
        raise SelectionError(
            f"--pattern {text!r} {told}", hint=f"its groups are (?P<op>...) and {', '.join(GROUPS)}"
        )

    def read(path: str, name: str) -> Title:
        found = pattern.fullmatch(joined(path, name))
        if not found:
            raise SelectionError(
                f"--pattern {text!r} does not fit {joined(path, name)!r}",
                hint="it must fit the whole of each name: the path below SOURCE without its "
                "suffix, then / and the name in the file; or leave files out with --files",
            )
        told = found.groupdict()
        step, rank, call, order = (_number(group, told.get(group)) for group in _NUMBERS)
        slot = _plain_slot(told.get("slot") or "output.0")
        return Title(told["op"] or ROOT, slot, step or 0, rank or 0, call, order)

    return read


def _number(group: str, word: str | None) -> int | None:
    if word is None:
        return None
    digits = word.lstrip("0") or word[-1:]
    if not digits.isdecimal() or len(digits) > 40 or int(digits) > _LARGEST[group]:
        raise SelectionError(
            f"--pattern found {shorten(word, 60)!r} as {group}, which is no such number",
            hint=f"have the group {group} fit digits: (?P<{group}>\\d+), at most {_LARGEST[group]}",
        )
    return int(digits)


def by_custom(path: str, name: str, *, keeps_path: bool = False) -> Title:
    """Read names as most tools write them: ``step3/rank1/layers.0.attn.output.0``.

    The path of a file that has names in it says which step and rank it is of, and is a part of its
    values' names only where it `keeps_path`.
    """
    rest, step = _taken(_STEP, path)
    rest, rank = _taken(_RANK, rest)
    path = _tidied(rest) if keeps_path or not name else ""
    op, call, slot = split_slot(joined(path, name))
    return Title(op, slot, step, rank, call)


def _taken(pattern: re.Pattern[str], path: str) -> tuple[str, int]:
    """The path without what `pattern` finds first, and the number in it; 0 where it finds none."""
    found = pattern.search(path)
    if not found or len(found[1]) > 18:
        return path, 0
    return path[: found.start()] + path[found.end() :], int(found[1])


def _tidied(path: str) -> str:
    parts = (part.strip("_.-") for part in path.split("/"))
    return "/".join(filter(None, parts))


def _plain_slot(text: str) -> str:
    """A slot as this house writes it: ``OUTPUT.0``, ``outputs.0`` and ``output`` are output.0."""
    found = _SLOT.fullmatch(text.lower())
    if not found or found["op"] or (found["kind"] in _NAMED and not found["rest"]):
        return text
    rest = text[len(found["kind"]) + 1 :]
    return f"{found['kind'].removesuffix('s')}.{rest or 0}"


def split_slot(name: str) -> tuple[str, int | None, str]:
    """The op, the call and the slot in ``layers.0/linear#1.output.0``, however much is there."""
    found = _SLOT.fullmatch(name)
    if found and (found["rest"] or found["kind"] not in _NAMED):
        kind = found["kind"].removesuffix("s")
        call = int(found["call"]) if found["call"] and len(found["call"]) < 10 else None
        return found["op"] or ROOT, call, f"{kind}.{found['rest'] or 0}"
    op, _, call_text = name.rpartition("#")
    if op and call_text.isdecimal() and len(call_text) < 10:
        return op, int(call_text), "output.0"
    return name or ROOT, None, "output.0"
