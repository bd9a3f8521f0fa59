"""What a rule sees of a call (Arguments) and what it says about it (Ruling)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
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
    buffers: tuple[str, ...] = ()  # parameters that are state, not candidate to gradients


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

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Arguments that are single tensors."""
        return {name: v for name, v in self.values.items() if isinstance(v, TensorInfo)}


Annotator = Callable[[Arguments], Ruling]


def name_arguments(call: OpCall, function: Callee) -> Arguments:
    """Lay the arguments of `call` under the parameters of `function`."""
    values: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for i, value in enumerate(call.args):
        if i < len(function.parameters):
            name = function.parameters[i]
        elif function.variadic:
            name = f"{function.variadic}.{i - len(function.parameters)}"
        else:
            name = f"arg{i}"
        values[name], paths[name] = value, ("args", i)
    for name, value in call.kwargs.items():
        values[name], paths[name] = value, ("kwargs", name)
    return Arguments(values, paths)


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


def letters(num: int, prefix: str = "") -> list[str]:
    """`num` different names for dims."""
    if not prefix and num <= 26:
        return [chr(ord("a") + i) for i in range(num)]
    return [f"{prefix or 'd'}{i}" for i in range(num)]


def dim_of(dim: int, rank: int) -> int:
    """`dim` counted from the front."""
    return dim + rank if dim < 0 else dim


def frozen(names: Sequence[str], dims: Sequence[int]) -> list[str]:
    """`names` with those at `dims` frozen."""
    kept = {dim_of(d, len(names)) for d in dims}
    return [f"{name}^" if i in kept else name for i, name in enumerate(names)]


def said(names: Sequence[str]) -> str:
    """Dims as text; a tensor without dims is written ``1``."""
    return " ".join(names) if names else "1"


def words(text: str) -> list[str]:
    """A list of names, written as a sentence."""
    return text.split()
