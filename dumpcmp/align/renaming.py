"""Names of ops on two sides: the wrappers between them, and the user's mapping."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import ROOT, Op

# Segments that wrappers put into module paths: compile, DDP, FSDP, checkpointing.
WRAPPERS = frozenset(
    ("_orig_mod", "module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_fpw_module")
)
_STARS = re.compile(r"(\*\*|\*)")
_HINT = "a mapping file has lines such as 'layers.*.attn: blocks.*.attention', golden's name first"


@cache
def unwrapped(op: Op) -> Op:
    """`op` without the segments that only wrappers put there."""
    kept = [segment for segment in op.module.split(".") if segment not in WRAPPERS]
    return op.within((".".join(kept) or ROOT) + op.scope.removeprefix(op.module))


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a mapping file: golden ops that `pattern` matches are called `target` there."""

    pattern: re.Pattern[str]
    target: str
    golden: str = ""  # the pattern as it is written

    def __str__(self) -> str:
        return f"{self.golden}: {self.target}"

    def renamed(self, op: str) -> str | None:
        """The target's name of golden's `op`, or None where this rule says nothing of it."""
        found = self.pattern.fullmatch(op)
        if found is None:
            return None
        *stars, rest = found.groups()
        pieces = _STARS.split(self.target)
        pieces[1::2] = stars
        return "".join(pieces) + rest


@dataclass(frozen=True, slots=True)
class Merge:
    """Ops of which one side has in one what the other has in several, in the order of `rules`."""

    rules: tuple[Rule, ...]  # each names the whole that a piece belongs to
    of_golden: bool  # the pieces are golden's


@dataclass(frozen=True, slots=True)
class Renaming:
    """The user's mapping: the first rule that matches an op names it on the target's side."""

    rules: tuple[Rule, ...] = ()
    merges: tuple[Merge, ...] = ()

    def renamed(self, op: str) -> str | None:
        """The target's name of golden's `op`; None where no rule matches."""
        names = (rule.renamed(op) for rule in self.rules)
        return next((name for name in names if name is not None), None)

    def idle(self, golden: Collection[str], target: Collection[str]) -> Iterator[str]:
        """A sentence for each line that names nothing of one of the sides."""
        for rule in self.rules:
            named = {name for op in golden if (name := rule.renamed(op)) is not None}
            if not named:
                yield f"--mapping {rule}: golden has no such op"
            elif named.isdisjoint(target):
                yield f"--mapping {rule}: my side has no such op"


def parse_rule(pattern: str, target: str) -> Rule:
    """Read one line. ``*`` is a word of a name, ``**`` any part of it; what is inside follows.

    >>> parse_rule("layers.*.attn", "blocks.*.mha").renamed("layers.3.attn/linear")
    'blocks.3.mha/linear'
    """
    stars = _STARS.findall(pattern)
    if stars != _STARS.findall(target):
        raise AlignError(
            f"mapping {pattern!r}: {target!r}: the two names have different wildcards", hint=_HINT
        )
    body = "".join(
        {"*": "([^./@]+)", "**": "(.*)"}.get(piece, re.escape(piece))
        for piece in _STARS.split(pattern)
    )
    return Rule(re.compile(f"{body}((?:[./@].*)?)"), target, pattern)


def read_mapping(path: Path) -> Renaming:
    """Read a mapping file: YAML, golden's name of an op to the target's name."""
    try:
        lines = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AlignError(f"cannot read the mapping {path}: {error}", hint=_HINT) from error
    if not isinstance(lines, dict) or not all(
        isinstance(word, str) for line in lines.items() for word in line
    ):
        raise AlignError(f"{path} does not map names to names", hint=_HINT)
    merged = {g: t for g, t in lines.items() if "{" in g or "{" in t}
    plain = ((g, t) for g, t in lines.items() if g not in merged)
    return Renaming(
        tuple(parse_rule(golden, target) for golden, target in plain),
        tuple(parse_merge(golden, target) for golden, target in merged.items()),
    )


def parse_merge(golden: str, target: str) -> Merge:
    """Read a line with pieces in braces on one side: ``"attn.{q,k,v}"`` and ``"attn.qkv"``."""
    of_golden = "{" in golden
    pieces, whole = (golden, target) if of_golden else (target, golden)
    before, brace, rest = pieces.partition("{")
    names, closing, after = rest.partition("}")
    if not brace or not closing or "{" in whole or "," not in names:
        raise AlignError(
            f"mapping {golden!r}: {target!r}: one side has pieces in braces, the other has none",
            hint="write 'layers.*.attn.{q,k,v}: blocks.*.attn.qkv', pieces in their order",
        )
    words = [name.strip() for name in names.split(",")]
    return Merge(tuple(parse_rule(f"{before}{w}{after}", whole) for w in words), of_golden)
