"""The annotation language: how the dims of an op's inputs and outputs correspond.

``"n (g c) h^, (g o) c -> n (g o)"`` names the dims of two inputs and one output. A plain name may
be split wherever it stands first in its dim; ``k+`` may be split and then makes the outputs that
lack it partial sums; ``h^`` and numbers stay whole; ``(g c)`` is one dim of two names; ``*`` stands
for the remaining dims; ``?`` for an argument that is replicated whatever it is.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import count, islice

from dumpcmp.nouns.errors import DumpcmpError


class AnnotationError(DumpcmpError):
    """An annotation that cannot be read, or that clashes with the shapes it describes."""


class Reduce(StrEnum):
    """What a split of a name does to the outputs that do not have it."""

    PLAIN = ""  # they are replicated
    SUM = "+"  # they are partial sums
    FROZEN = "^"  # the name cannot be split


@dataclass(frozen=True, slots=True)
class DimName:
    """A name or number inside a dim: ``k``, ``k+``, ``k^``, ``64``."""

    text: str
    reduce: Reduce = Reduce.PLAIN

    @property
    def length(self) -> int | None:
        """The number that it is, if it is one."""
        return int(self.text) if self.text.isdecimal() else None

    def __str__(self) -> str:
        return f"{self.text}{self.reduce}"


@dataclass(frozen=True, slots=True)
class NamedDim:
    """One dim of a tensor: a name, or a group of names of which the first varies slowest."""

    names: tuple[DimName, ...]

    @property
    def leading(self) -> DimName:
        """The name that a split of this dim splits; ones before it do not count."""
        return next((name for name in self.names if name.length != 1), self.names[0])

    def __str__(self) -> str:
        inside = " ".join(map(str, self.names))
        return inside if len(self.names) == 1 else f"({inside})"


Dims = tuple[NamedDim, ...]
STAR = NamedDim((DimName("*"),))


@dataclass(frozen=True, slots=True)
class Annotation:
    """The dims of all inputs and outputs; None stands for ``?``."""

    inputs: tuple[Dims | None, ...]
    outputs: tuple[Dims | None, ...]

    @property
    def operands(self) -> tuple[Dims | None, ...]:
        """Inputs, then outputs: the numbering of ``idx`` in a partition option."""
        return self.inputs + self.outputs

    def __str__(self) -> str:
        return " -> ".join(
            ", ".join("?" if dims is None else _said(dims) for dims in side)
            for side in (self.inputs, self.outputs)
        )


def _said(dims: Dims) -> str:
    return " ".join(map(str, dims)) if dims else "1"


_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_][\w/]*|\d+)(?P<reduce>[+^]?)|(?P<mark>[()*?]))")


@cache
def parse_annotation(text: str) -> Annotation:
    """Read ``"a k+, k+ b -> a b"``."""
    sides = text.split("->")
    if len(sides) != 2:
        raise _unreadable(text, "there must be one '->' between inputs and outputs")
    inputs, outputs = (
        tuple(_parse_dims(text, part) for part in side.split(",")) if side.strip() else ()
        for side in sides
    )
    return _settle(text, Annotation(inputs, outputs))


def _unreadable(text: str, why: str) -> AnnotationError:
    return AnnotationError(
        f"cannot read annotation {text!r}: {why}",
        hint="write dims as names, such as 'a k+, k+ b -> a b' (docs/how-to/verify-a-partition.md)",
    )


def _parse_dims(text: str, part: str) -> Dims | None:
    dims: list[NamedDim] = []
    group: list[DimName] | None = None
    position, part = 0, part.strip()
    if part == "?":
        return None
    while position < len(part):
        token = _TOKEN.match(part, position)
        if token is None:
            raise _unreadable(text, f"{part[position:].strip()!r} is not a dim")
        position = token.end()
        match token["mark"], group:
            case None, None:
                dims.append(NamedDim((DimName(token["name"], Reduce(token["reduce"])),)))
            case None, list():
                group.append(DimName(token["name"], Reduce(token["reduce"])))
            case "(", None:
                group = []
            case ")", [_, *_]:
                dims.append(NamedDim(tuple(group)))
                group = None
            case "*", None:
                dims.append(STAR)
            case mark, _:
                raise _unreadable(text, f"{mark!r} is out of place in {part!r}")
    if group is not None or not dims or dims.count(STAR) > 1:
        raise _unreadable(text, f"{part!r} is not a whole shape")
    return tuple(dims)


def _settle(text: str, annotation: Annotation) -> Annotation:
    """Freeze what does not lead each of its groups, and refuse a name with two marks."""
    marks: dict[str, Reduce] = {}
    frozen: set[str] = set()
    for dim in _dims_of(annotation.operands):
        for name in dim.names:
            if marks.setdefault(name.text, name.reduce) is not name.reduce:
                raise _unreadable(text, f"{name.text!r} is written with two different marks")
            if name is not dim.leading and name.length is None:
                frozen.add(name.text)
    return _mapped(annotation, lambda dims: tuple(_frozen(dim, frozen) for dim in dims))


def _dims_of(operands: Sequence[Dims | None]) -> list[NamedDim]:
    return [dim for dims in operands if dims is not None for dim in dims]


def _frozen(dim: NamedDim, frozen: Collection[str]) -> NamedDim:
    return NamedDim(
        tuple(DimName(n.text, Reduce.FROZEN) if n.text in frozen else n for n in dim.names)
    )


def _mapped(annotation: Annotation, change: Callable[[Dims], Dims]) -> Annotation:
    inputs, outputs = (
        tuple(None if dims is None else change(dims) for dims in side)
        for side in (annotation.inputs, annotation.outputs)
    )
    return Annotation(inputs, outputs)


def expanded(annotation: Annotation, shapes: Sequence[tuple[int, ...] | None]) -> Annotation:
    """`annotation` with each ``*`` replaced by as many names as the input `shapes` leave for it."""
    if len(shapes) != len(annotation.inputs):
        raise AnnotationError(
            f"annotation '{annotation}' has {len(annotation.inputs)} inputs, "
            f"but the op is called with {len(shapes)} arguments",
            hint="name every argument in order, '?' for one that is not a tensor",
        )
    widths = {
        len(shape) - len(dims) + 1
        for dims, shape in zip(annotation.inputs, shapes, strict=True)
        if dims is not None and shape is not None and STAR in dims
    }
    if len(widths) > 1 or (widths and min(widths) < 0):
        raise AnnotationError(
            f"annotation '{annotation}': '*' cannot stand for the same dims in shapes "
            f"{[shape for shape in shapes if shape is not None]}",
            hint="name the dims instead of '*'",
        )
    taken = {name.text for dim in _dims_of(annotation.operands) for name in dim.names}
    fresh = (f"d{i}" for i in count() if f"d{i}" not in taken)
    middle = tuple(NamedDim((DimName(text),)) for text in islice(fresh, *widths)) if widths else ()
    return _mapped(annotation, lambda dims: _replaced(dims, middle))


def _replaced(dims: Dims, middle: Dims) -> Dims:
    if STAR not in dims:
        return dims
    at = dims.index(STAR)
    return (*dims[:at], *middle, *dims[at + 1 :])


def lengths_of(
    annotation: Annotation,
    shapes: Sequence[tuple[int, ...] | None],
    known: Mapping[str, int],
) -> dict[str, int]:
    """How long each name is, from the operands' `shapes` and the `known` lengths."""
    pairs = [
        (dim, size)
        for dims, shape in zip(annotation.operands, shapes, strict=False)
        if dims is not None and shape is not None
        for dim, size in _side_by_side(annotation, dims, shape)
    ]
    lengths, settled = dict(known), -1
    while len(lengths) > settled:  # each round settles at least one more name, or none will
        settled = len(lengths)
        for dim, size in pairs:
            _learn(annotation, lengths, dim, size)
    return lengths


def _side_by_side(
    annotation: Annotation, dims: Dims, shape: tuple[int, ...]
) -> list[tuple[NamedDim, int]]:
    if shape == () and all(name.length == 1 for dim in dims for name in dim.names):
        return []  # "1" also stands for a tensor without dims
    if 0 in shape:
        return []  # an empty tensor tells nothing
    if len(dims) != len(shape):
        raise AnnotationError(
            f"annotation '{annotation}' writes '{_said(dims)}' for a tensor of shape {list(shape)}",
            hint=f"write {len(shape)} dims",
        )
    return list(zip(dims, shape, strict=True))


def _learn(annotation: Annotation, lengths: dict[str, int], dim: NamedDim, size: int) -> None:
    found = [n.length if n.length is not None else lengths.get(n.text) for n in dim.names]
    rest = math.prod(length for length in found if length is not None)
    unknown = [n for n, length in zip(dim.names, found, strict=True) if length is None]
    if (not unknown and rest != size) or (unknown and (rest == 0 or size % rest)):
        raise AnnotationError(
            f"annotation '{annotation}': dim '{dim}' should be {rest} long"
            f"{' times a whole number' if unknown else ''}, but it is {size}",
            hint="give different lengths different names",
        )
    if len(unknown) == 1:
        lengths[unknown[0].text] = size // rest
