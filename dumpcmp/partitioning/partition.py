"""From an option to a Partition: which argument splits where, how the parts come together.

It is made from names and lengths alone; no tensor is seen here.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any

from dumpcmp.partitioning.annotation import Annotation, DimName, Dims, Reduce
from dumpcmp.partitioning.call import OpCall, Path
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.rules.ruling import Adjusted
from dumpcmp.partitioning.table import Entry


class Refused(PartitionError):  # noqa: N818
    """A partition that the op's annotation does not allow, and why."""


@dataclass(frozen=True, slots=True)
class Option:
    """Split operand `idx` (inputs first, then outputs) along its dim `dim` into `num` parts."""

    idx: int
    dim: int
    num: int = 2
    sync: bool = True  # False: leave out the communication that the op would need inside

    def __str__(self) -> str:
        return f"idx {self.idx}, dim {self.dim}, {self.num} parts{'' if self.sync else ', no sync'}"


def option_of(given: Mapping[str, Any], num: int) -> Option:
    """Read ``{"idx": 0, "dim": 1}``; `num` holds where the option does not say."""
    unknown = set(given) - {"idx", "dim", "num", "sync"}
    if unknown or not {"idx", "dim"} <= set(given):
        raise PartitionError(
            f"partition option {dict(given)} cannot be read",
            hint="write {'idx': 0, 'dim': 1}; 'num' and 'sync' may be added",
        )
    return Option(given["idx"], given["dim"], given.get("num", num), given.get("sync", True))


@dataclass(frozen=True, slots=True)
class Split:
    """Consecutive parts along `dim`, of these `lengths`."""

    dim: int
    lengths: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.lengths[:-1]))

    def __str__(self) -> str:
        return f"split {self.dim}"


class Everywhere(StrEnum):
    """What lies on every part: the same value, or terms whose sum is the value."""

    WHOLE = "whole"
    PARTIAL = "sum"


Share = Split | Everywhere


@dataclass(frozen=True, slots=True)
class Partition:
    """What each part gets and what becomes of its outputs. `num` 1 is the op itself."""

    num: int
    inputs: tuple[Share, ...]  # one per leaf of the call
    outputs: tuple[Share, ...]
    changes: tuple[tuple[tuple[Path, Any], ...], ...] = ()  # per part: arguments that change
    said: str = ""  # how the arguments change, in words
    synchronised: str = ""  # the generator function to run in place of the op

    def __str__(self) -> str:
        sides = (", ".join(map(str, side)) for side in (self.inputs, self.outputs))
        more = [self.said, "synchronised" if self.synchronised else ""]
        return "; ".join([" -> ".join(sides), *filter(None, more)])


def unpartitioned(num_inputs: int) -> Partition:
    """The op itself, on whole arguments, with as many outputs as it has."""
    return Partition(1, (Everywhere.WHOLE,) * num_inputs, (), ((),))


def partition_by(
    entry: Entry, annotation: Annotation, lengths: Mapping[str, int], option: Option
) -> Partition:
    """Decide how `option` splits the op, or refuse it with the reason."""
    name = _chosen(annotation, option)
    length = lengths.get(name.text)
    if length is None:
        raise Refused(f"the annotation '{annotation}' does not say how long {name.text!r} is")
    if option.num < 2 or length < option.num:
        raise Refused(f"{name.text!r} is {length} long: it cannot be split into {option.num} parts")
    units = _units(length, option.num)
    inputs = tuple(
        _placed(dims, name, lengths, units, Everywhere.WHOLE) for dims in annotation.inputs
    )
    without = Everywhere.PARTIAL if name.reduce is Reduce.SUM else Everywhere.WHOLE
    outputs = tuple(_placed(dims, name, lengths, units, without) for dims in annotation.outputs)
    adjusted = [a for a in entry.ruling.adjusted if a.name == name.text]
    changes = tuple(tuple(_changes(entry, adjusted, units, part)) for part in range(option.num))
    synchronised = entry.ruling.synchronised.get(name.text, "") if option.sync else ""
    said = ", ".join(_said(entry.call, change) for change in changes[0])
    return Partition(option.num, inputs, outputs, changes, said, synchronised)


def _chosen(annotation: Annotation, option: Option) -> DimName:
    operands = annotation.operands
    if not 0 <= option.idx < len(operands):
        raise Refused(f"there is no operand {option.idx} in '{annotation}'")
    dims = operands[option.idx]
    if dims is None:
        raise Refused(f"operand {option.idx} is '?' in '{annotation}': it is replicated")
    if not -len(dims) <= option.dim < len(dims):
        raise Refused(f"operand {option.idx} of '{annotation}' has no dim {option.dim}")
    name = dims[option.dim].leading
    if name.length is not None or name.reduce is Reduce.FROZEN:
        raise Refused(
            f"dim {option.dim} of operand {option.idx} is '{dims[option.dim]}' in '{annotation}': "
            f"it stays whole"
        )
    return name


def _units(length: int, num: int) -> tuple[int, ...]:
    """Parts of `length` as even as can be, the longer ones first."""
    return tuple(length // num + (part < length % num) for part in range(num))


def _placed(
    dims: Dims | None,
    name: DimName,
    lengths: Mapping[str, int],
    units: tuple[int, ...],
    otherwise: Share,
) -> Share:
    if dims is None:
        return Everywhere.WHOLE
    for i, dim in enumerate(dims):
        if dim.leading.text == name.text:
            others = [other for other in dim.names if other.text != name.text]
            inner = math.prod(other.length or lengths[other.text] for other in others)
            return Split(i, tuple(unit * inner for unit in units))
    return otherwise


def _changes(
    entry: Entry, adjusted: list[Adjusted], units: tuple[int, ...], part: int
) -> Iterator[tuple[Path, Any]]:
    values = dict(entry.arguments.values)
    for a in adjusted:
        if a.parameter not in values:
            continue
        values[a.parameter] = _changed(a, values[a.parameter], units, part)
        yield entry.arguments.paths[a.parameter], values[a.parameter]


def _changed(a: Adjusted, value: Any, units: tuple[int, ...], part: int) -> Any:
    if isinstance(value, list | tuple):
        position = a.position if a.position is not None else 0
        if a.position is None and len(value) != 1:
            raise Refused(f"{a.parameter}={value} is not one length that {a.name!r} could share")
        inside = _changed(Adjusted(a.name, a.parameter, how=a.how), value[position], units, part)
        return type(value)([*value[:position], inside, *value[position + 1 :]])
    if a.how == "share":
        return value if value == -1 else value * units[part] // sum(units)
    return value + sum(units[:part]) if a.how == "start" else value - sum(units[part + 1 :])


def _said(call: OpCall, change: tuple[Path, Any]) -> str:
    (side, key, *_), value = change
    if side == "kwargs":
        return f"{key} {call.kwargs[str(key)]} becomes {value}"
    return f"argument {key} {call.args[int(key)]} becomes {value}"


def every_option(annotation: Annotation, lengths: Mapping[str, int], num: int) -> list[Option]:
    """One option for each name that can be split, at the first dim that it leads."""
    options: dict[str, Option] = {}
    for idx, dims in enumerate(annotation.operands):
        for dim, named in enumerate(dims or ()):
            name = named.leading
            free = name.length is None and name.reduce is not Reduce.FROZEN
            if free and lengths.get(name.text, 0) >= num:
                options.setdefault(name.text, Option(idx, dim, num))
    return list(options.values())
