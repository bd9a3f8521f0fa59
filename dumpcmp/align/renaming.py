"""Names of ops on two sides: the wrappers between them, and the user's mapping."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache

from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import ROOT, Key, Op

# Segments that wrappers put into module paths: compile, DDP, FSDP, checkpointing.
WRAPPERS = frozenset(
    ("_orig_mod", "module", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_fpw_module")
)
_STARS = re.compile(r"(\*\*|\*)")
HINT = "a mapping file has lines such as 'layers.*.attn: blocks.*.attention', golden's name first"


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
    order: tuple[int, ...] = ()  # of my dims, to be golden's, in values of as many; none: as found

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
    """What one side has in one and the other in several, in the order of `rules`.

    Of ops it is every value of them; of single values, just these, of which one may be alone.
    """

    rules: tuple[Rule, ...]  # each names the whole that a piece belongs to
    of_golden: bool  # the pieces are golden's
    line: str = ""  # as it is written
    axis: int | None = None  # of what the ops take and give; None: as the shapes tell
    groups: int = 1  # in which the pieces take turns along the axis
    of_values: bool = False

    @property
    def is_stated(self) -> bool:
        """Whether the user says how the pieces lie, so that it must be so."""
        return self.axis is not None or self.groups > 1


@dataclass(frozen=True, slots=True)
class Renaming:
    """The user's mapping: the first rule that matches an op names it on the target's side."""

    rules: tuple[Rule, ...] = ()
    merges: tuple[Merge, ...] = ()

    def renamed(self, op: str) -> str | None:
        """The target's name of golden's `op`; None where no rule matches."""
        names = (rule.renamed(op) for rule in self.rules)
        return next((name for name in names if name is not None), None)

    def order(self, op: str) -> tuple[int, ...]:
        """The order of the target's dims that is stated for golden's `op`; empty where none is."""
        found = (rule.order for rule in self.rules if rule.renamed(op) is not None)
        return next(found, ())

    def states_order(self, op: str) -> bool:
        """Whether the order is stated for `op` itself, and not for a module around it."""
        named = (rule for rule in self.rules if (found := rule.pattern.fullmatch(op)) is not None
                 and not found.groups()[-1])  # fmt: skip
        return bool(next((rule.order for rule in named), ()))

    def idle(self, golden: Collection[str], target: Collection[str]) -> Iterator[str]:
        """A sentence for each line that names nothing of one of the sides."""
        for rule in self.rules:
            named = {name for op in golden if (name := rule.renamed(op)) is not None}
            if not named:
                yield f"--mapping {rule}: golden has no such op"
            elif named.isdisjoint(target):
                yield f"--mapping {rule}: my side has no such op"


def value_name(key: Key) -> str:
    """A value as a mapping and ``dumpcmp show`` write it: ``layers.3/add#0/output.0``."""
    return f"{unwrapped(key.op)}#{key.call}/{key.slot}"


def parse_rule(pattern: str, target: str, order: tuple[int, ...] = ()) -> Rule:
    """Read one line. ``*`` is a word of a name, ``**`` any part of it; what is inside follows.

    >>> parse_rule("layers.*.attn", "blocks.*.mha").renamed("layers.3.attn/linear")
    'blocks.3.mha/linear'
    """
    stars = _STARS.findall(pattern)
    if stars != _STARS.findall(target):
        raise AlignError(
            f"mapping {pattern!r}: {target!r}: the two names have different wildcards", hint=HINT
        )
    body = "".join(
        {"*": "([^./@#]+)", "**": "(.*)"}.get(piece, re.escape(piece))
        for piece in _STARS.split(pattern)
    )
    rest = "()" if "#" in pattern else "((?:[./@].*)?)"  # of one value there is nothing inside
    return Rule(re.compile(body + rest), target, pattern, order)
