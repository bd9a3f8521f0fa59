"""Reads the user's mapping file: names of ops and values, pieces of others, and how they lie."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dumpcmp.align.named_lines import UnreadableLinesError, read_named_lines
from dumpcmp.align.renaming import HINT, Merge, Renaming, parse_rule
from dumpcmp.nouns.budgets import MOST_FREE_STARS, MOST_PIECES, BudgetError
from dumpcmp.nouns.errors import AlignError

_BRACES, _STARS, _BETWEEN = re.compile(r"\{([^{}]*)"), re.compile(r"\*+"), re.compile(r"[./@#{},]")
_PIECES = "write 'layers.*.attn.{q,k,v}: blocks.*.attn.qkv', pieces in their order"
_TERMS = (
    "write {to: blocks.*.attn.qkv, axis: -1, groups: 8}: `axis` is the dim along which the pieces "
    "lie, and in so many `groups` they take turns there"
)
_ORDER = (
    "write {to: blocks.*.attn, order: [1, 0, 2]}: my dims in golden's order, each once, for all "
    "values of as many dims that the op takes and gives"
)
_VALUES = "write values as dumpcmp show does, on both sides: 'norm#0/output.0: add_norm#0/output.1'"


def read_mapping(path: Path) -> Renaming:
    """Read a mapping file: YAML, golden's name of an op to the target's name."""
    try:
        lines = read_named_lines(path)
    except UnreadableLinesError as error:
        raise AlignError(f"cannot read the mapping {path}: {error}", hint=HINT) from error
    return renaming_of(lines, str(path))


def renaming_of(lines: dict[str, Any], where: str) -> Renaming:
    """The lines of a mapping, whose place is `where`, as rules."""
    rules, merges = [], []
    for golden, terms in lines.items():
        target, axis, groups = _terms(golden, terms, where)
        _check_stars(golden, where)
        order = _order(golden, terms, where)
        marked = any(mark in name for name in (golden, target) for mark in "{#")
        if (marked or axis is not None or groups > 1) and order:
            raise AlignError(
                f"{where}: {golden!r} has an order of dims beside pieces or values, whose order is "
                "found",
                hint=_ORDER,
            )
        if marked or axis is not None or groups > 1:
            merges.append(parse_merge(golden, target, axis, groups))
        else:
            rules.append(parse_rule(golden, target, order))
    return Renaming(tuple(rules), tuple(merges))


def _terms(golden: str, terms: object, where: str) -> tuple[str, int | None, int]:
    """The target's name in a line, and the axis and groups that it states."""
    if isinstance(terms, str):
        return terms, None, 1
    if not isinstance(terms, dict) or "to" not in terms:
        raise AlignError(f"{where} does not map names to names at {golden!r}", hint=HINT)
    unknown = [str(word) for word in terms if word not in ("to", "axis", "groups", "order")]
    target, axis, groups = terms["to"], terms.get("axis"), terms.get("groups", 1)
    numbers = (axis is None or _is_number(axis)) and _is_number(groups) and groups > 0
    if unknown or not isinstance(target, str) or not numbers:
        raise AlignError(f"{where}: cannot read {golden!r}: {terms}", hint=_TERMS)
    return target, axis, groups


def _order(golden: str, terms: object, where: str) -> tuple[int, ...]:
    """The order of dims that a line states; empty where it states none."""
    said = terms.get("order", []) if isinstance(terms, dict) else []
    is_order = isinstance(said, list) and all(map(_is_number, said))
    if not is_order or sorted(said) != list(range(len(said))):
        raise AlignError(f"{where}: {golden!r} has no order of dims but {said!r}", hint=_ORDER)
    return tuple(said)


def _is_number(term: object) -> bool:
    return isinstance(term, int) and not isinstance(term, bool)


def parse_merge(golden: str, target: str, axis: int | None = None, groups: int = 1) -> Merge:
    """Read a line with pieces in braces on one side: ``"attn.{q,k,v}"`` and ``"attn.qkv"``.

    A line of values, as in ``"norm#0/output.0"`` and ``"add_norm#0/output.1"``, may have none.
    """
    line, of_values = f"{golden}: {target}", "#" in golden or "#" in target
    _check_pieces(line)
    if of_values and not ("#" in golden and "#" in target):
        raise AlignError(f"mapping {line!r}: one side is an op, the other a value", hint=_VALUES)
    of_golden = "{" in golden or "{" not in target
    pieces, whole = (golden, target) if of_golden else (target, golden)
    words = list(_spelled(pieces))
    if "{" in whole or (len(words) < 2 and not of_values) or "{" in words[0]:
        raise AlignError(
            f"mapping {line!r}: one side has pieces in braces, the other has none", hint=_PIECES
        )
    rules = tuple(parse_rule(word, whole) for word in words)
    return Merge(rules, of_golden, line, axis, groups, of_values)


def _check_pieces(line: str) -> None:
    """Refuse a line that stands for more names than anybody has: braces multiply."""
    most = math.prod(words.count(",") + 1 for words in _BRACES.findall(line))
    if most > MOST_PIECES:
        raise BudgetError(
            f"mapping {line[:80]!r}: its braces stand for more than {MOST_PIECES} names",
            hint=_PIECES,
        )


def _check_stars(name: str, where: str) -> None:
    """Refuse wildcards whose ends are not told by what follows: matching tries all of them."""
    words = _BETWEEN.split(name)
    free = name.count("**") + sum(max(0, _STARS.subn("", word)[1] - 1) for word in words)
    if free > MOST_FREE_STARS:
        raise BudgetError(
            f"{where}: {name[:80]!r} has {free} wildcards that may end anywhere, and "
            f"{MOST_FREE_STARS} are possible",
            hint="write * once between two dots, and ** where one name differs",
        )


def _spelled(name: str) -> Iterator[str]:
    """The names that a name with alternatives in braces stands for, the last ones fastest."""
    before, brace, rest = name.partition("{")
    words, closing, after = rest.partition("}")
    if not brace or not closing or "," not in words:
        yield name
        return
    for word in words.split(","):
        yield from (f"{before}{word.strip()}{tail}" for tail in _spelled(after))
