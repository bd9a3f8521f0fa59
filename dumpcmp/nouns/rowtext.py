"""Rows as text and back, so that a file can hold those of a long comparison."""

from __future__ import annotations

import json
import types
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

from dumpcmp.nouns.row import Metrics, Row

_Turn = Callable[[Any], Any]
_Both = tuple[_Turn | None, _Turn | None]  # into JSON and out of it; None where nothing changes
_PLAIN = (str, int, float, bool)


def pack_rows(rows: Sequence[Row]) -> bytes:
    """`rows` as compressed JSON; Metrics that several have are there once."""
    numbers: dict[int, int] = {}
    metrics: list[Metrics] = []
    listed = []
    for row in rows:
        one, told = row.metrics, _ROW_OUT(row)
        if one is not None:
            number = numbers.setdefault(id(one), len(metrics))
            if number == len(metrics):
                metrics.append(one)
            told[_METRICS_AT] = number
        listed.append(told)
    text = json.dumps([[_METRICS_OUT(one) for one in metrics], listed], default=_plain)
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpack_rows(content: bytes) -> list[Row]:
    """The rows that `pack_rows` packed."""
    text = zlib.decompress(content).decode("utf-8", "surrogatepass")
    listed, rows = json.loads(text)
    metrics = [_METRICS_IN(one) for one in listed]
    for told in rows:
        number = told[_METRICS_AT]
        told[_METRICS_AT] = None if number is None else metrics[number]
    return [_ROW_IN(told) for told in rows]


def _plain(value: Any) -> Any:
    return value.item()  # a number of numpy's


@cache
def _turns(kind: Any) -> _Both:
    """How a value of type `kind` becomes JSON, and how it is read back."""
    if kind in _PLAIN:
        return None, None
    if isinstance(kind, type) and issubclass(kind, str):
        return None, kind  # also of enums: they are texts
    if isinstance(kind, type) and issubclass(kind, Enum):
        return attrgetter("value"), kind
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (one for one in get_args(kind) if one is not type(None))
        return _optional(*_turns(inner))
    if get_origin(kind) is tuple:
        return _of_tuple(get_args(kind))
    return _of_fields(kind, ())


def _optional(out: _Turn | None, back: _Turn | None) -> _Both:
    def turned(turn: _Turn | None) -> _Turn | None:
        return turn and (lambda value: None if value is None else turn(value))

    return turned(out), turned(back)


def _of_tuple(kinds: tuple[Any, ...]) -> _Both:
    if kinds[-1:] == (...,):
        out, back = _turns(kinds[0])
        return (
            (lambda values: [out(v) for v in values]) if out else None,
            (lambda values: tuple(back(v) for v in values)) if back else tuple,
        )
    return None, tuple


def _of_fields(kind: Any, as_they_are: tuple[str, ...]) -> _Both:
    """Of a dataclass or a named tuple: a list of its fields."""
    names = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else list(kind._fields)
    hints = get_type_hints(kind)
    plain = (None, None)
    turns = [plain if name in as_they_are else _turns(hints[name]) for name in names]
    read = attrgetter(*names)
    outs = [(at, out) for at, (out, _) in enumerate(turns) if out]
    backs = [(at, back) for at, (_, back) in enumerate(turns) if back]

    def told(value: Any) -> list[Any]:
        found = list(read(value))
        for at, out in outs:
            found[at] = out(found[at])
        return found

    def made(found: list[Any]) -> Any:
        for at, back in backs:
            found[at] = back(found[at])
        return kind(*found)

    return told, made


def _both(kind: Any, *as_they_are: str) -> tuple[_Turn, _Turn]:
    out, back = _of_fields(kind, as_they_are)
    assert out and back
    return out, back


_METRICS_AT = [f.name for f in fields(Row)].index("metrics")
_METRICS_OUT, _METRICS_IN = _both(Metrics)
_ROW_OUT, _ROW_IN = _both(Row, "metrics")
