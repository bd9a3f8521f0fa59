"""Runs a program again with golden's values in place of what some of its ops give."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.modes import PlainMode, parse_mode
from dumpcmp.dumping.programs import Dumped, dump
from dumpcmp.nouns.errors import CaptureError, SelectionError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.selection import closest, make_tap, names_key
from dumpcmp.nouns.spoken import counted
from dumpcmp.taps.distributed.ranks import world
from dumpcmp.taps.recording.grafts import GraftedCall, Grafts, ValueInPlace

_MODES = ("eager", "fx", "aten", "compiled")
_TRACED = ("fx", "compiled")  # modules are not called in it
_ALIKE = {"eager", "fx", "compiled"}  # they name ops alike
_CLEAR = 0.5  # times what the second nearest part is off: the nearest is meant


@dataclass(frozen=True, slots=True)
class GraftedRun:
    """A dump of a program that was given other values in some places."""

    dumped: Dumped
    done: Sequence[str]  # what was put in place of what
    missing: Sequence[str]  # calls of golden that the program did not make

    @property
    def text(self) -> str:
        """What was put in place, in a line or two."""
        lines = [f"put in place: {counted(len(self.done), 'value')}: {_some(self.done)}"]
        if self.missing:
            lines.append(f"never ran: {_some(self.missing)}")
        return "\n".join(lines)


def graft(
    program: Callable[[], object],
    golden: str | Path,
    at: str | Sequence[str],
    *,
    path: str | os.PathLike[str],
    rows: str | Sequence[int] | None = None,
    steps: str | Sequence[int] | None = None,
    in_float64: bool = False,
    mode: str | PlainMode = "eager",
    **options: Any,
) -> GraftedRun:
    """Dump `program` to `path` while the ops `at` give golden's values in place of their own.

        dumpcmp.graft(run, "d1", "layers.12.attn/softmax", path="d3")

    `at` names ops or values, as for ``dumpcmp explain``, with commas or as a list; `rows` only some
    indices of the first dim, and `steps` only some tokens. With `in_float64` an op's own result in
    float64 stands in place of it. `options` are those of a dump. Gradients go through the op as
    they would.
    """
    how = parse_mode(mode)
    if how.name not in _MODES:
        raise SelectionError(
            f"graft cannot put values into --mode {how.name}",
            hint=f"use one of {', '.join(_MODES)}",
        )
    names = at.split(",") if isinstance(at, str) else list(at)
    tap = make_tap(steps)
    naming = _Naming(Archive(golden), how.name, in_float64)
    places = naming.places(names, tap.selects_step)
    hidden = naming.hidden(names, tap.selects_step)
    grafts = Grafts(places, _rows(rows), naming.whole(places), hidden)
    dumped = dump(program, path, mode=how, grafts=grafts, **options)
    if dumped.error is None and not grafts.done:
        raise CaptureError(
            f"nothing was put in place: the program did not call {_some(grafts.missing)}",
            hint=f"dumpcmp show {dumped.path} lists what it did",
        )
    return GraftedRun(dumped, list(grafts.done.values()), grafts.missing)


def _rows(rows: str | Sequence[int] | None) -> Sequence[int] | None:
    if not isinstance(rows, str):
        return rows
    return [row for span in make_tap(rows).steps for row in span]


@dataclass(frozen=True)
class _Naming:
    """Which calls of a program are meant by names of golden's values."""

    archive: Archive
    mode: str  # of the program's run
    in_float64: bool

    def places(
        self, names: Sequence[str], selects: Callable[[int], bool]
    ) -> dict[GraftedCall, dict[str, ValueInPlace | None]]:
        """The calls, and golden's value for each of their results."""
        found: dict[GraftedCall, dict[str, ValueInPlace | None]] = {}
        for name in names:
            for key in filter(lambda key: selects(key.step), self._named(name.strip())):
                here = self._in_program(key)
                load = None if self.in_float64 else partial(_of_golden, self.archive, key)
                found.setdefault((here.step, str(here.op), here.call), {})[str(here.slot)] = load
        return found

    def whole(self, places: Mapping[GraftedCall, Collection[str]]) -> set[GraftedCall]:
        """Those of the calls of which golden gave nothing else."""
        given: dict[GraftedCall, set[str]] = {}
        for key in self.archive:
            if key.slot.is_output:
                given.setdefault((key.step, str(key.op), key.call), set()).add(str(key.slot))
        return {place for place, slots in places.items() if given.get(place) == set(slots)}

    def hidden(self, names: Sequence[str], selects: Callable[[int], bool]) -> dict[int, set[str]]:
        """Modules that a traced program does not call, by step: another stands for their result."""
        found: dict[int, set[str]] = {}
        for key in (key for name in names for key in self._named(name.strip())):
            if self.mode in _TRACED and key.op.is_module and key.op != ROOT and selects(key.step):
                prefix = f"{key.op}@{key.call}" if key.call else str(key.op)
                found.setdefault(key.step, set()).add(prefix)
        return found

    def _named(self, name: str) -> list[Key]:
        outputs = [key for key in self.archive if key.slot.is_output]
        keys = [key for key in outputs if names_key(key, name)]
        if not keys:
            near = ", ".join(closest(name, sorted({key.op for key in outputs})))
            raise SelectionError(
                f"golden has no value called {name!r}", hint=f"closest: {near or 'none'}"
            )
        return keys

    def _in_program(self, key: Key) -> Key:
        """The call of the program that gives what golden's `key` names."""
        is_alike = any({self.mode, other} <= _ALIKE or self.mode == other for other in self._modes)
        if key.op.is_module and (self.mode in _TRACED or key.op == ROOT):
            return self._by_function(key)
        if key.op.is_module or is_alike:
            return key
        for other in self.archive:
            is_around = other.op == key.op.module and other.slot.is_output
            if is_around and other.step == key.step and self.archive[other].same_as == key:
                return other
        raise SelectionError(
            f"golden was dumped in mode {', '.join(self._modes)}, and names its ops otherwise than "
            f"mode {self.mode}",
            hint=f"name a module, or dump golden with --mode {self.mode}",
        )

    @cached_property
    def _modes(self) -> list[str]:
        runs = [facts.get("run", {}) for facts in self.archive.run.values()]
        return sorted({str(run.get("mode", "")) for run in runs})

    def _by_function(self, key: Key) -> Key:
        """The function's result that a module gives out."""
        first = self.archive[key].same_as
        if first is None or not first.slot.is_output or first.op.is_module:
            raise SelectionError(
                f"{key.op} is a module, and no op in it is known to give its {key.slot}",
                hint="name the op: dumpcmp show lists them",
            )
        return first


def _of_golden(archive: Archive, key: Key, own: Tensor) -> Tensor:
    """Golden's value, in the part that this rank has."""
    shards = {record.rank: record for record in archive.shards(key)}
    rank = world().rank
    like = [r for r in (rank, *shards) if r in shards and shards[r].shape == tuple(own.shape)]
    if like:
        found = archive.tensor(shards[like[0]])
        if len(shards) != world().size:
            _check_no_term(key, found, own)
        return found
    whole = archive.tensor(next(iter(shards.values())))
    if len(shards) == 1 and (part := _part_like(whole, own)) is not None:
        return part
    raise CaptureError(
        f"golden's {key.op} has shape {list(whole.shape)}, and the program's {list(own.shape)}",
        hint="golden must be of the same ranks, or the value lie on them in whole parts of one dim",
    )


def _check_no_term(key: Key, whole: Tensor, own: Tensor) -> None:
    """Refuse what may be a term of a sum over ranks: as a whole it would count more than once."""
    near = own.detach().to("cpu", torch.float64)
    apart = float(torch.linalg.vector_norm(near - whole.double()))
    if not apart <= _CLEAR * float(torch.linalg.vector_norm(whole.double())):
        raise CaptureError(
            f"golden's {key.op} is far from what rank {world().rank} has of it, which may be a "
            "term of a sum over ranks",
            hint="name the op that adds the terms up, or dump golden on the same ranks",
        )


def _part_like(whole: Tensor, own: Tensor) -> Tensor | None:
    """The part of `whole`, cut along one dim, that is by far the nearest to `own`."""
    if whole.dim() != own.dim():
        return None
    cut = [d for d in range(whole.dim()) if whole.shape[d] != own.shape[d]]
    if len(cut) != 1 or not own.shape[cut[0]] or whole.shape[cut[0]] % own.shape[cut[0]]:
        return None
    parts = torch.split(whole, own.shape[cut[0]], cut[0])
    near = own.detach().to("cpu", torch.float64)
    apart = [float(torch.linalg.vector_norm(near - part.double())) for part in parts]
    order = sorted(range(len(parts)), key=apart.__getitem__)
    is_clear = apart[order[0]] <= _CLEAR * apart[order[1]]
    return parts[order[0]] if is_clear else None


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more
