"""What users state about layouts: a YAML file, options of the command line, and the mesh."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dumpcmp.align.named_lines import UnreadableLinesError, read_named_lines
from dumpcmp.archive.stores.urls import place
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.layouts import Dim, Layout, Mesh, parse_layout, parse_mesh
from dumpcmp.nouns.selection import closest

_HINT = (
    "a layout file has lines such as\n"
    "    mesh: dp=2 tp=2\n"
    "    'layers.*.attn.qkv': {output.0: 'b s (q k v)[tp:interleaved]'}"
)
_UNSAID = "output*"  # the slots of a layout that is given for an op as a whole


@dataclass(frozen=True, slots=True)
class Declaration:
    """One line: the values that `op` and `slot`, as globs, name lie over the mesh so."""

    op: str
    slot: str
    layout: Layout

    def speaks_of(self, key: Key) -> bool:
        """Whether `key` is one of the values that are meant; calls of a module are not told."""
        return fnmatchcase(key.op.plain, self.op) and fnmatchcase(key.slot, self.slot)


@dataclass(frozen=True, slots=True)
class Declarations:
    """All that was stated about one run. The last line that speaks of a value holds."""

    lines: tuple[Declaration, ...] = ()
    mesh: Mesh | None = None

    def layout_of(self, key: Key) -> Layout | None:
        """The layout stated for `key`, if one was."""
        said = (line.layout for line in reversed(self.lines) if line.speaks_of(key))
        return next(said, None)

    def __add__(self, later: Declarations) -> Declarations:
        return Declarations((*self.lines, *later.lines), later.mesh or self.mesh)


@dataclass(frozen=True, slots=True)
class Stated:
    """What was stated about each of the two runs."""

    golden: Declarations = Declarations()
    target: Declarations = Declarations()

    def __add__(self, later: Stated) -> Stated:
        return Stated(self.golden + later.golden, self.target + later.target)

    def idle(self, golden: Collection[Op], target: Collection[Op]) -> Iterator[str]:
        """A sentence for each op that is named, and that no run of which it is told has."""
        runs = ((self.golden, golden), (self.target, target))
        for name in dict.fromkeys(line.op for stated, _ in runs for line in stated.lines):
            told = (ops for stated, ops in runs if any(line.op == name for line in stated.lines))
            meant = {op.plain for ops in told for op in ops}
            if not any(fnmatchcase(op, name) for op in meant):
                near = ", ".join(closest(name, meant)) or "none"
                yield f"--layout {name!r} matched nothing; closest: {near}"


def _is_file(option: str) -> bool:
    """Whether a file has this name; a line that is too long for one is no file."""
    try:
        return Path(option).is_file()
    except OSError:
        return False


def read_stated(options: Iterable[str]) -> Stated:
    """Read ``--layout`` options: each a YAML file, or ``OP=LAYOUT``, ``OP SLOT=LAYOUT``.

    Without a slot it is the layout of the op's outputs: what comes in may lie otherwise.
    """
    stated = Stated()
    for option in options:
        is_file = option.endswith((".yaml", ".yml")) or _is_file(option)
        stated += _read_file(place(option)) if is_file else _read_option(option)
    return stated


def _read_option(option: str) -> Stated:
    name, equals, sentence = option.partition("=")
    if not equals:
        raise LayoutError(
            f"cannot read --layout {option!r}",
            hint="write a YAML file's name, 'OP=LAYOUT' or 'OP SLOT=LAYOUT'",
        )
    op, _, slot = name.strip().partition(" ")
    lines: dict[str, Any] = {op: {slot.strip(): sentence} if slot else sentence}
    return _read_lines(lines, option)


def _read_file(path: Path) -> Stated:
    try:
        lines = read_named_lines(path)
    except UnreadableLinesError as error:
        raise LayoutError(f"cannot read the layouts {path}: {error}", hint=_HINT) from error
    return _read_lines(lines, str(path))


def _read_lines(lines: Mapping[str, Any], where: str) -> Stated:
    """Lines hold for both runs, unless they stand under ``golden:`` or ``target:``."""
    both = {op: said for op, said in lines.items() if op not in ("golden", "target")}
    sides = [lines.get(side, {}) for side in ("golden", "target")]
    if not all(isinstance(side, dict) for side in sides):
        raise LayoutError(f"{where}: 'golden' and 'target' hold lines of their own", hint=_HINT)
    golden, target = (_declarations({**both, **side}, where) for side in sides)
    return Stated(golden, target)


def _declarations(lines: Mapping[str, Any], where: str) -> Declarations:
    mesh = lines.get("mesh")
    found: list[Declaration] = []
    for op, said in lines.items():
        if op == "mesh":
            continue
        by_slot = {_UNSAID: said} if isinstance(said, str) else said
        if not isinstance(by_slot, dict) or not all(isinstance(s, str) for s in by_slot.values()):
            raise LayoutError(f"{where}: {op!r} is given no layout but {said!r}", hint=_HINT)
        for slot, sentence in by_slot.items():
            found.append(Declaration(op, str(slot), _sentence(sentence, f"{where}: {op}")))
    return Declarations(tuple(found), parse_mesh(str(mesh)) if mesh is not None else None)


def _sentence(text: str, where: str) -> Layout:
    try:
        return parse_layout(text)
    except LayoutError as error:
        raise LayoutError(f"{where}: {error.message}", hint=error.hint) from None


def complete(declared: Layout, recorded: Layout) -> Layout:
    """What the user declared, and for axes that they did not name, what was recorded.

    An axis that neither names holds replicas; unsharding checks them, so nothing is assumed.
    """
    spoken = declared.axes
    dims = declared.expanded(len(recorded.dims)).dims or recorded.dims
    if recorded.dims and len(dims) == len(recorded.dims):
        kept = ([p for p in dim.placements if p.axis not in spoken] for dim in recorded.dims)
        dims = tuple(
            Dim(dim.names, (*dim.placements, *more)) for dim, more in zip(dims, kept, strict=True)
        )
    return Layout(
        dims=dims,
        over=(*declared.over, *(p for p in recorded.over if p.axis not in spoken)),
        divided_by=declared.divided_by or recorded.divided_by,
        coordinates=recorded.known().coordinates,
        shape=recorded.shape if spoken <= recorded.axes else None,  # it was of fewer axes
    )


def on_mesh(layout: Layout, mesh: Mesh | None, num_ranks: int, rank: int) -> Layout:
    """`layout` with the rank's coordinates on the axes that it names and that nobody placed.

    Without a mesh, a lone axis spans all ranks, and ranks without an axis are replicas.
    """
    unplaced = layout.axes - {c.axis for c in layout.coordinates}
    if mesh is None and (layout.coordinates or len(unplaced) > 1):
        return layout
    mesh = mesh or Mesh(((min(unplaced, default="ranks"), num_ranks),))
    if mesh.num_ranks != num_ranks:
        raise LayoutError(
            f"the mesh '{mesh}' has {mesh.num_ranks} ranks, the run has {num_ranks}",
            hint="name every axis of the run's mesh, outermost first",
        )
    return layout.placed(mesh, rank)
