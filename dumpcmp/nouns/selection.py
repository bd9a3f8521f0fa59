"""The rule that selects what a capture records: steps, layers, sides, gradients, weights."""

import difflib
import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TypedDict, TypeVar

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.key import ROOT, Key, Op
from dumpcmp.nouns.op_names import plain_name

_SPAN = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_WORD = re.compile(r"[A-Za-z_]\w*")  # no path and no glob: what an op is called anywhere
_NUMBERED = re.compile(r"(.+?)_\d+")  # a node of a graph, after the first of its name
_DIMS = re.compile(r"\dd$")
_Words = TypeVar("_Words", bound=StrEnum)


class Io(StrEnum):
    """Which side of each call is recorded."""

    INPUT = "input"
    OUTPUT = "output"
    ALL = "all"


class Level(StrEnum):
    """How deep a capture looks: at modules only, or also at the functions inside them."""

    MODULES = "modules"
    FUNCTIONS = "functions"


@dataclass(frozen=True, slots=True)
class Tap:
    """Which values are recorded. An empty selection of steps or layers selects all of them."""

    steps: tuple[range, ...] = ()
    layers: tuple[str, ...] = ()  # globs over ops: "layers.*.attn*"; names of functions: "Add"
    io: Io = Io.ALL
    backward: bool = False
    weights: bool = False
    level: Level = Level.FUNCTIONS
    every: int = 1  # of the steps that are selected otherwise, those that it divides

    def selects_step(self, step: int) -> bool:
        """Whether anything of `step` is recorded."""
        if step % self.every:
            return False
        return not self.steps or any(step in span for span in self.steps)

    def selects_op(self, op: str) -> bool:
        """Whether `op` is recorded; what runs inside a module is selected with its path."""
        return not self.layers or _matches(op, self.layers)

    @property
    def inputs(self) -> bool:
        return self.io is not Io.OUTPUT

    @property
    def outputs(self) -> bool:
        return self.io is not Io.INPUT

    def unmatched(self, num_steps: int, ops: Collection[str]) -> list[str]:
        """A sentence for each filter that selected nothing of what ran, with the closest names."""
        ran = f"the program ran tokens 0 to {num_steps - 1}" if num_steps else "no token ran"
        late = [spelled(span) for span in self.steps if span.start >= num_steps]
        lost = [glob for glob in self.layers if not any(_matches(op, (glob,)) for op in ops)]
        near = {glob: ", ".join(closest(glob, ops)) or "none" for glob in lost}
        return [
            *(f"--token {span} matched nothing: {ran}" for span in late),
            *(f"--layer {glob!r} matched nothing; closest: {near[glob]}" for glob in lost),
        ]


class Selection(TypedDict, total=False):
    """A Tap as users write it; see `make_tap`."""

    tokens: str | Iterable[int] | None
    layers: str | Sequence[str] | None
    io: str
    backward: bool
    weights: bool
    level: str
    every: int


def make_tap(
    tokens: str | Iterable[int] | None = None,
    layers: str | Sequence[str] | None = None,
    io: str = "all",
    backward: bool = False,
    weights: bool = False,
    level: str = "functions",
    every: int = 1,
) -> Tap:
    """Read a selection as users write it, on the command line or in Python."""
    if every < 1:
        raise SelectionError(f"--every {every} selects no token", hint="give 1 or more")
    return Tap(
        parse_steps(tokens), parse_layers(layers), _member(Io, io, "--io"), backward, weights,
        _member(Level, level, "--level"), every,
    )  # fmt: skip


def parse_steps(tokens: str | Iterable[int] | None) -> tuple[range, ...]:
    """Read ``"0,2-3"`` or ``[0, 2, 3]`` as ranges of steps; None selects all."""
    if tokens is None:
        return ()
    words = tokens.split(",") if isinstance(tokens, str) else [str(token) for token in tokens]
    spans = tuple(_span(word) for word in words)
    if not spans:
        raise SelectionError("no token is selected", hint=_TOKENS)
    return spans


_TOKENS = "write tokens as numbers and ranges counted from 0, such as 0,2,5-8"


def _span(word: str) -> range:
    found = _SPAN.fullmatch(word)
    if not found:
        raise SelectionError(f"cannot read {word!r} as a token", hint=_TOKENS)
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise SelectionError(f"the range of tokens {word!r} runs backwards", hint=_TOKENS)
    return range(first, last + 1)


def parse_layers(layers: str | Sequence[str] | None) -> tuple[str, ...]:
    """Check globs over ops, such as ``layers.*.attn*``, and names of functions; None is all."""
    globs = (layers,) if isinstance(layers, str) else tuple(layers or ())
    for glob in globs:
        if not isinstance(glob, str) or not glob.strip():
            raise SelectionError(
                f"{glob!r} names no layer",
                hint="write a module's path or a glob over it, such as 'layers.*.attn*'",
            )
    return globs


def _member(words: type[_Words], word: str, option: str) -> _Words:
    try:
        return words(word)
    except ValueError:
        hint = f"valid are: {', '.join(words)}"
        raise SelectionError(f"{option} {word!r} is not known", hint=hint) from None


@cache
def _matches(op: str, globs: tuple[str, ...]) -> bool:
    plain = Op(op).plain
    names = (plain, plain.scope)
    matched = any(fnmatch.fnmatchcase(name, glob) for name in names for glob in globs)
    if matched or any(plain.is_inside(Op(path)) for path in globs if path != ROOT):
        return True
    return any(_WORD.fullmatch(glob) and _is_called(plain, glob) for glob in globs)


def _is_called(op: Op, word: str) -> bool:
    """Whether `word` names the function of `op`, or the node that a graph has for it.

    ``Add`` and ``add_1`` name ``add``, ``LayerNorm`` names ``layer_norm``, ``Conv`` any
    convolution, and ``layers_0_attn`` the module ``layers.0.attn``.
    """
    if op.is_module:
        return op.replace(".", "_").lower() == word.lower()
    numbered = _NUMBERED.fullmatch(word)
    words = {_bare(word), _bare(numbered[1])} if numbered else {_bare(word)}
    names = {_bare(op.function), _bare(plain_name(op.function))}
    kinds = {_DIMS.sub("", name) for name in names}
    return bool(words & (names | kinds) or {_DIMS.sub("", each) for each in words} & names)


def _bare(name: str) -> str:
    """A name without what spellings of it differ by."""
    return name.lower().replace("_", "")


def names_key(key: Key, glob: str) -> bool:
    """Whether `glob` means this value: its op, ``op#0``, ``op#0 output.0``, or its whole Key."""
    call = f"{key.op}#{key.call}"
    names = (key.op, call, f"{call} {key.slot}", f"{call}/{key.slot}", str(key))
    return any(name == glob or fnmatch.fnmatchcase(name, glob) for name in names)


def closest(glob: str, ops: Collection[str]) -> list[str]:
    """Up to three of `ops` whose names are most like `glob`."""
    names = sorted({Op(op).plain for op in ops})
    wanted = glob.replace("*", "").lower()
    within = [name for name in names if wanted and wanted in name.lower()]
    spelled_as: dict[str, str] = {}  # whole names, and those of their functions, by small letters
    for name in names:
        spelled_as.setdefault(name.lower(), name)
        if name.function:
            spelled_as.setdefault(name.function.lower(), name)
    near = difflib.get_close_matches(wanted, spelled_as, n=3, cutoff=0.3)
    return list(dict.fromkeys([*within[:3], *(spelled_as[each] for each in near)]))[:3]


def spelled(span: range) -> str:
    """A range of steps as users write it: ``2-5``."""
    return str(span.start) if len(span) == 1 else f"{span.start}-{span.stop - 1}"
