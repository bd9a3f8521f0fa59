"""What an annotator sees of a call (Arguments) and what it says about it (Ruling)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from string import ascii_lowercase
from typing import Any

from dumpcmp.partitioning.call import Leaf, OpCall, Path, leaves
from dumpcmp.partitioning.configuration import TensorInfo
from dumpcmp.partitioning.signature import Callee


class NoRule(Exception):  # noqa: N818
    """Why an op has no annotation for these arguments."""


class DimKind(StrEnum):
    """What numbers an argument may hold."""

    NORMAL = "normal"
    POSITIVE = "positive"
    UNIT = "unit"  # inside (-1, 1)
    IDS = "ids"  # int64, from 0 up to `limit`
    MASK = "mask"  # bool
    COUNT = "count"  # int64 zeros
    PERMUTATION = "permutation"  # ids without repetition


@dataclass(frozen=True, slots=True)
class Domain:
    """What numbers are valid for an argument."""

    kind: DimKind
    limit: int = 10


POSITIVE, UNIT = Domain(DimKind.POSITIVE), Domain(DimKind.UNIT)
MASK, COUNT = Domain(DimKind.MASK), Domain(DimKind.COUNT)


def ids(limit: int) -> Domain:
    """Ids from 0 to `limit` - 1."""
    return Domain(DimKind.IDS, limit)


@dataclass(frozen=True, slots=True)
class Adjusted:
    """A split of `name` changes the argument `parameter` (its element `position`, if given).

    ``how`` is "share" for a length or count that shrinks with the part, "start" and "stop" for the
    bounds of the part's range.
    """

    name: str
    parameter: str
    position: int | None = None
    how: str = "share"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The annotation of one call: dims of each parameter and output, and what a split involves."""

    inputs: Mapping[str, str | Sequence[str]]  # parameter -> dims; a list for a list of tensors
    outputs: Sequence[str]
    adjusted: tuple[Adjusted, ...] = ()
    domains: Mapping[str, Domain] = field(default_factory=dict)
    synchronised: Mapping[str, str] = field(default_factory=dict)  # name -> generator to run
    buffers: tuple[str, ...] = ()  # parameters that are state, not subject to gradients


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call under their parameters' names."""

    values: Mapping[str, Any]
    paths: Mapping[str, Path]

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of `names` that was given."""
        return next((self.values[n] for n in names if self.values.get(n) is not None), default)

    def shape(self, *names: str) -> tuple[int, ...] | None:
        """The shape of the first of `names` that was given, None where it is no tensor."""
        value = self.get(*names)
        return value.shape if isinstance(value, TensorInfo) else None

    def needed(self, *names: str) -> tuple[int, ...]:
        """The shape of a tensor without which the op makes no sense."""
        shape = self.shape(*names)
        if shape is None:
            raise NoRule(f"argument {names[0]!r} is not a tensor")
        return shape

    def dim(self, rank: int, default: int | None = None) -> int:
        """The argument ``dim``, counted from the front of `rank` dims."""
        dim = self.get("dim", default=default)
        if dim is None:
            raise NoRule("no dim is given")
        return dim_of(dim, rank)

    def sizes(self, *names: str) -> tuple[str, list[int]]:
        """The parameter that holds a list of sizes, and the list."""
        for name in names:
            given = self.values.get(name)
            if isinstance(given, list | tuple) and all(isinstance(size, int) for size in given):
                return name, list(given)
        raise NoRule(f"needs a list of integers as {names[0]!r}")

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: v for name, v in self.values.items() if isinstance(v, TensorInfo)}

    @property
    def first(self) -> tuple[str, tuple[int, ...]]:
        """The first tensor: its parameter and its shape."""
        for name, tensor in self.tensors.items():
            return name, tensor.shape
        raise NoRule("takes no tensor: nothing to partition")

    @property
    def listed(self) -> tuple[str, list[TensorInfo]]:
        """The first list of tensors: its parameter, and the list."""
        for name, value in self.values.items():
            if isinstance(value, list | tuple) and any(isinstance(v, TensorInfo) for v in value):
                return name, list(value)
        raise NoRule("takes no list of tensors")


Annotator = Callable[[Arguments], Ruling]
Annotators = Mapping[str, Annotator | str]  # a text where the annotation is always the same
Names = Sequence[str]
# Of an op on one tensor, from its shape and names of its dims: the dims as they are written for
# it and for the output, and arguments that change with the part.
Change = Callable[
    [Arguments, tuple[int, ...], list[str]],
    tuple[Names, Names] | tuple[Names, Names, tuple[Adjusted, ...]],
]


def of_one(change: Change, noutputs: int = 1) -> Annotator:
    """The annotator of ops on one tensor that `change` describes."""

    def annotate(arguments: Arguments) -> Ruling:
        name, shape = arguments.first
        changed = change(arguments, shape, letters(len(shape)))
        adjusted = changed[2] if len(changed) > 2 else ()
        return Ruling({name: said(changed[0])}, [said(changed[1])] * noutputs, adjusted)

    return annotate


def each(names: str, annotator: Annotator | str) -> Annotators:
    """One `annotator` for all of `names`, which are written as a sentence."""
    return dict.fromkeys(names.split(), annotator)


def ruling_of(annotator: Annotator | str, arguments: Arguments) -> Ruling:
    """What `annotator` says about a call; a text holds for its tensors in order."""
    if not isinstance(annotator, str):
        return annotator(arguments)
    inputs, outputs = ([dims.strip() for dims in s.split(",")] for s in annotator.split("->"))
    return Ruling(dict(zip(arguments.tensors, inputs, strict=False)), outputs)


def name_arguments(call: OpCall, callee: Callee) -> Arguments:
    """Lay the arguments of `call` under the parameters of `callee`."""
    paths: dict[str, Path] = {}
    for i in range(len(call.args)):
        more = i - len(callee.parameters)
        if more < 0:
            name = callee.parameters[i]
        else:
            name = f"{callee.variadic}.{more}" if callee.variadic else f"arg{i}"
        paths[name] = ("args", i)
    values = {name: call.args[int(i)] for name, (_, i) in paths.items()}
    paths |= {name: ("kwargs", name) for name in call.kwargs}
    return Arguments({**values, **call.kwargs}, paths)


def parameter_of(leaf: Leaf, arguments: Arguments) -> str:
    """The parameter under which `leaf` was passed."""
    return next(name for name, path in arguments.paths.items() if leaf.path[:2] == path)


def texts(ruling: Ruling, arguments: Arguments, call: OpCall) -> list[str]:
    """The dims of every leaf of `call` as text, ``?`` where `ruling` says nothing."""
    words = []
    for leaf in leaves(call):
        said = ruling.inputs.get(parameter_of(leaf, arguments), "?")
        if not isinstance(said, str):
            position = leaf.path[2] if len(leaf.path) > 2 else 0
            said = said[int(position)]
        words.append(said if leaf.is_tensor else "?")
    return words


def letters(num: int) -> list[str]:
    """`num` different names for dims."""
    return list(ascii_lowercase[:num]) if num <= 26 else [f"d{i}" for i in range(num)]


def numbered(text: str, num: int) -> list[str]:
    """`num` names like `text`, whose # is their number."""
    return [text.replace("#", str(i)) for i in range(num)]


def dim_of(dim: int, rank: int) -> int:
    """`dim` counted from the front."""
    return dim + rank if dim < 0 else dim


def frozen(names: Names, dims: int | Sequence[int]) -> list[str]:
    """`names` with those at `dims` frozen."""
    kept = {dim_of(d, len(names)) for d in ([dims] if isinstance(dims, int) else dims)}
    return [f"{name}^" if i in kept else name for i, name in enumerate(names)]


def without(names: Names, dim: int) -> list[str]:
    """`names` but for that at `dim`."""
    return [name for i, name in enumerate(names) if i != dim]


def instead(names: Names, dim: int, name: str) -> list[str]:
    """`names` with `name` at `dim`."""
    return [name if i == dim_of(dim, len(names)) else other for i, other in enumerate(names)]


def ones(names: Names, shape: Sequence[int]) -> list[str]:
    """`names`, with 1 where a dim is one long and broadcasts."""
    return ["1" if size == 1 else name for name, size in zip(names, shape, strict=True)]


def said(names: Names) -> str:
    """Dims as text; a tensor without dims is written ``1``."""
    return " ".join(names) if names else "1"
