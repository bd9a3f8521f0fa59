"""How a value lies over a device mesh, as a short sentence: ``b s[cp] h[tp]``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from dumpcmp.nouns.errors import LayoutError


class Mode(StrEnum):
    """What one mesh axis does with a value."""

    SHARD = "shard"  # the default: consecutive shards in the order of the axis
    REPLICATED = "replicated"
    PARTIAL = "partial"  # every rank holds a term; reducing the terms gives the value
    RUNNING = "running"  # sums so far, as microbatches give them; the last is the value
    REWINDING = "rewinding"  # the same from the last microbatch to the first, which has the value
    INTERLEAVED = "interleaved"  # a shard of each part of a merged dim: (q k v)
    ZIGZAG = "zigzag"  # 2n slices; rank i holds slices i and 2n - 1 - i
    CYCLIC = "cyclic"  # index j lies on rank j mod n
    STRIDED = "strided"  # torch's _StridedShard with its split factor


class ReduceOp(StrEnum):
    """How the terms of a partial value, and of a collective, become one."""

    SUM = "sum"
    AVG = "avg"
    MAX = "max"
    MIN = "min"
    PRODUCT = "product"


# Of the value; the others belong to one dim.
_WHOLE = (Mode.PARTIAL, Mode.RUNNING, Mode.REWINDING, Mode.REPLICATED)
AS_GOLDEN = 0  # a dim's size written as "?": cut the padding to golden's size
ELLIPSIS = "..."
RANKS = "ranks"  # the axis of all ranks, where nobody names one
MICROBATCH = "mb"  # the axis that a pipeline's microbatches are on
LAP = "lap"  # the axis that the laps of a loop are on
CARRIED = "carried"  # the same, of what comes from one lap into the next, and what is made of it


@dataclass(frozen=True, slots=True)
class Placement:
    """What the mesh axis `axis` does: ``tp``, ``tp:partial``, ``tp:partial.avg``, ``cp:zigzag``."""

    axis: str
    mode: Mode = Mode.SHARD
    argument: str = ""  # the reduction of a partial, the split factor of a strided

    def __str__(self) -> str:
        if self.mode is Mode.SHARD:
            return self.axis
        return f"{self.axis}:{self.mode}" + (f".{self.argument}" if self.argument else "")

    @property
    def reduction(self) -> ReduceOp:
        """How the terms of a partial become the value."""
        return ReduceOp(self.argument or "sum")


@dataclass(frozen=True, slots=True)
class Name:
    """One word of a dim, and the size that the whole has there if the sentence says so."""

    text: str
    size: int | None = None

    def __str__(self) -> str:
        if self.size is None:
            return self.text
        return f"{self.text}={'?' if self.size == AS_GOLDEN else self.size}"


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of the tensor: its name, or the names of what is merged in it, and who shards it."""

    names: tuple[Name, ...]
    placements: tuple[Placement, ...] = ()  # the first axis splits first

    def __str__(self) -> str:
        words = " ".join(map(str, self.names))
        return (f"({words})" if len(self.names) > 1 else words) + _bracket(self.placements)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that shard it."""
        return tuple(p.axis for p in self.placements)

    @property
    def size(self) -> int | None:
        """The size stated for the whole dim, if it is."""
        sizes = [name.size for name in self.names if name.size is not None]
        return sum(sizes) if len(sizes) == len(self.names) else None


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Where a rank is on one axis: ``tp:1/2``; ``tp:1/2?`` if the value's share is not known."""

    axis: str
    index: int
    size: int
    known: bool = True

    def __str__(self) -> str:
        return f"{self.axis}:{self.index}/{self.size}" + ("" if self.known else "?")

    def with_share(self, known: bool) -> Coordinate:
        """The same place on the axis, where the value's share is `known` or not."""
        return self if self.known == known else replace(self, known=known)


Coordinates = tuple[Coordinate, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a value lies over the mesh. Axes that neither dims nor `over` name hold replicas."""

    dims: tuple[Dim, ...] = ()
    over: tuple[Placement, ...] = ()  # partial and replicated: of the value, not of one dim
    divided_by: tuple[str, ...] = ()  # axes whose size the ranks' values are too large by
    coordinates: Coordinates = ()  # of the rank that wrote it
    shape: tuple[int, ...] | None = None  # of the whole

    def __str__(self) -> str:
        words = [str(dim) for dim in self.dims]
        if self.over and self.dims:
            last = self.dims[-1]
            words[-1] = str(Dim(last.names, (*last.placements, *self.over)))
        elif self.over:
            words.append(_bracket(self.over))
        if self.divided_by:
            words += ["/", *self.divided_by]
        if self.coordinates:
            words += ["@", *map(str, self.coordinates)]
        if self.shape:
            words += ["of", "x".join(map(str, self.shape))]
        return " ".join(words)

    @property
    def sentence(self) -> Layout:
        """The layout alone: what all ranks that hold the value say alike."""
        return replace(self, coordinates=(), shape=None)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All placements, those of dims first."""
        return (*(p for dim in self.dims for p in dim.placements), *self.over)

    @property
    def axes(self) -> frozenset[str]:
        """The axes that this layout speaks about."""
        return frozenset((*(p.axis for p in self.placements), *self.divided_by))

    @property
    def open_axes(self) -> tuple[str, ...]:
        """Axes that the rank is on, and of which nobody knows what they do with the value."""
        return tuple(c.axis for c in self.coordinates if not c.known and c.axis not in self.axes)

    @property
    def is_in_laps(self) -> bool:
        """Whether it is of one lap of a loop."""
        return any(c.axis in (LAP, CARRIED) for c in self.coordinates)

    @property
    def is_carried(self) -> bool:
        """Whether it is of one lap of a loop, and made of what came from the lap before."""
        return any(c.axis == CARRIED for c in self.coordinates)

    def at(self, axes: Sequence[str]) -> Coordinates:
        """Where the rank is on `axes`, in their order."""
        on = {c.axis: c for c in self.coordinates} if axes else {}
        return tuple([on[axis].with_share(known=True) for axis in axes])

    def placed(self, mesh: Mesh, rank: int) -> Layout:
        """The same layout, with the coordinates of `rank` on axes of `mesh` that it lacks."""
        here = {c.axis for c in self.coordinates}
        more = (c for c in mesh.coordinates(rank) if c.axis not in here)
        return replace(self, coordinates=(*self.coordinates, *more))

    def known(self, known: bool = True) -> Layout:
        """The same layout, where it is `known` of every axis what it does with the value."""
        if all(c.known == known for c in self.coordinates):
            return self
        return replace(self, coordinates=tuple(c.with_share(known) for c in self.coordinates))

    def expanded(self, ndim: int) -> Layout:
        """The same layout with ``...`` replaced by as many dims as a tensor of `ndim` has."""
        at = [i for i, dim in enumerate(self.dims) if dim.names[0].text == ELLIPSIS]
        if not at:
            return self
        fill = tuple(Dim((Name(f"d{i}"),)) for i in range(at[0], ndim - len(self.dims) + at[0] + 1))
        return replace(self, dims=(*self.dims[: at[0]], *fill, *self.dims[at[0] + 1 :]))


def over_all_ranks(layout: Layout) -> Layout:
    """`layout` with its one axis called after all ranks; of several axes, as it is.

    >>> str(over_all_ranks(parse_layout("b h[tp]")))
    'b h[ranks]'
    """
    if len(layout.axes) != 1 or layout.divided_by:
        return layout

    def named(placements: Sequence[Placement]) -> tuple[Placement, ...]:
        return tuple(replace(placement, axis=RANKS) for placement in placements)

    dims = tuple(replace(dim, placements=named(dim.placements)) for dim in layout.dims)
    return replace(layout, dims=dims, over=named(layout.over))


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes of a device mesh, outermost first, over ranks numbered row by row."""

    axes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.axes)

    @property
    def num_ranks(self) -> int:
        """How many ranks it takes."""
        return math.prod(size for _, size in self.axes)

    def coordinates(self, rank: int) -> Coordinates:
        """Where `rank` is on each axis."""
        found = []
        for name, size in reversed(self.axes):
            rank, index = divmod(rank, size)
            found.append(Coordinate(name, index, size))
        return tuple(reversed(found))


_TEXT = re.compile(
    r"(?P<dims>[^@/]*)(?:/(?P<divisors>[\w\s]+?))?"
    r"(?:\s*@(?P<coordinates>[\w\s:/?]*?))?(?:\s+of\s+(?P<shape>\d+(?:x\d+)*))?\s*"
)
_DIM = re.compile(
    r"\s*(?:\((?P<merged>[\w=\s]+)\)|(?P<name>\.\.\.|\w+(?:=(?:\d+|\?))?))?"
    r"(?:\[(?P<placements>[^\[\]]*)\])?(?=\s|$)"
)
_PLACEMENT = re.compile(r"(?P<axis>\w+)(?::(?P<mode>[a-z]+)(?:\.(?P<argument>\w+))?)?")
_COORDINATE = re.compile(r"(\w+):(\d+)/(\d+)(\??)")
_HINT = "write dims like 's', 'h[tp]', 's[cp:zigzag]', '(q k v)[tp:interleaved]', 'h[tp:partial]'"


@cache
def parse_layout(text: str) -> Layout:
    """Read ``"b s[cp,tp] h"``: tensor dims in order, the mesh axes that act on each in brackets."""
    found = _TEXT.fullmatch(text)
    if not found:
        raise LayoutError(f"cannot read layout {text!r}", hint=_HINT)
    dims: list[Dim] = []
    over: list[Placement] = []
    for names, placements in _words(found["dims"].strip(), text):
        shares = [_parse_placement(word, text) for word in placements.split(",") if word.strip()]
        over += (share for share in shares if share.mode in _WHOLE)
        mine = tuple(share for share in shares if share.mode not in _WHOLE)
        if names:
            dims.append(Dim(names, mine))
        elif mine:
            raise LayoutError(f"layout {text!r}: [{placements}] stands behind no dim", hint=_HINT)
    layout = Layout(
        dims=tuple(dims),
        over=tuple(over),
        divided_by=tuple((found["divisors"] or "").split()),
        coordinates=parse_coordinates(found["coordinates"] or ""),
        shape=tuple(map(int, found["shape"].split("x"))) if found["shape"] else None,
    )
    _check(layout, text)
    return layout


def parse_coordinates(text: str) -> Coordinates:
    """Read ``"dp:0/2 tp:1/2?"``: where a rank is on each axis."""
    coordinates = []
    for word in text.split():
        found = _COORDINATE.fullmatch(word)
        if not found or int(found[2]) >= int(found[3]):
            raise LayoutError(f"cannot read the place {word!r} in {text!r}", hint="write 'tp:1/2'")
        coordinates.append(Coordinate(found[1], int(found[2]), int(found[3]), not found[4]))
    return tuple(coordinates)


def parse_mesh(text: str) -> Mesh:
    """Read ``"dp=2 tp=4"``: the axes of a mesh, outermost first."""
    found = re.findall(r"(\w+)=(\d+)", text)
    mesh = Mesh(tuple((name, int(size)) for name, size in found))
    if not found or str(mesh) != " ".join(text.split()):
        raise LayoutError(f"cannot read mesh {text!r}", hint="write axes like 'dp=2 tp=4'")
    return mesh


def _words(dims: str, text: str) -> Iterator[tuple[tuple[Name, ...], str]]:
    """The names and the bracket of each dim."""
    at = 0
    while at < len(dims):
        found = _DIM.match(dims, at)
        if not found or found.end() == at:
            raise LayoutError(f"cannot read layout {text!r} at {dims[at:]!r}", hint=_HINT)
        words = (found["merged"] or found["name"] or "").split()
        yield tuple(map(_parse_name, words)), found["placements"] or ""
        at = found.end()


def _parse_name(word: str) -> Name:
    text, _, size = word.partition("=")
    return Name(text, (AS_GOLDEN if size == "?" else int(size)) if size else None)


def _parse_placement(word: str, text: str) -> Placement:
    found = _PLACEMENT.fullmatch(word.strip())
    mode = found["mode"] or "shard" if found else ""
    if not found or mode not in set(Mode):
        raise LayoutError(
            f"layout {text!r}: cannot read [{word.strip()}]",
            hint=f"write [axis] or [axis:mode], mode one of {', '.join(Mode)}",
        )
    argument = found["argument"] or ""
    wrong = {
        Mode.PARTIAL: argument not in ("", *ReduceOp),
        Mode.STRIDED: not argument.isdigit() or argument == "0",
    }.get(Mode(mode), bool(argument))
    if wrong:
        raise LayoutError(
            f"layout {text!r}: {mode} takes no {argument!r}",
            hint=f"partial takes one of {', '.join(ReduceOp)}; strided takes its split factor",
        )
    return Placement(found["axis"], Mode(mode), "" if argument == "sum" else argument)


def _check(layout: Layout, text: str) -> None:
    axes = [p.axis for p in layout.placements]
    if twice := {axis for axis in axes if axes.count(axis) > 1}:
        raise LayoutError(
            f"layout {text!r} names the mesh axis {min(twice)!r} twice",
            hint="an axis can shard one dim, or hold partial terms, or replicas",
        )
    if sum(dim.names[0].text == ELLIPSIS for dim in layout.dims) > 1:
        raise LayoutError(f"layout {text!r} has more than one '...'", hint="keep one of them")
    for dim in layout.dims:
        inside = [p.mode for p in dim.placements]
        if Mode.INTERLEAVED in inside and (len(dim.names) == 1 or inside[0] != Mode.INTERLEAVED):
            raise LayoutError(
                f"layout {text!r}: 'interleaved' needs the parts that are merged in its dim",
                hint="write them first, in their order: (q k v)[tp:interleaved]",
            )


def _bracket(placements: Iterable[Placement]) -> str:
    words = ",".join(map(str, placements))
    return f"[{words}]" if words else ""
