"""What an Archive and a selection of it share: values by name, as tensors, as a table."""

from __future__ import annotations

import html
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dumpcmp.nouns.errors import ArchiveError, MissingValueError
from dumpcmp.nouns.key import Key, Op, Site, Slot
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.selection import Tap, closest, parse_layers, parse_steps, spelled
from dumpcmp.nouns.value import Value, to_torch

if TYPE_CHECKING:
    import pandas as pd
    import torch


class ValueMap(Mapping[Key, Record]):
    """The values of a run by Key, in order of execution."""

    path: Path

    @property
    @abstractmethod
    def models(self) -> tuple[str, ...]:
        """The names of the root modules that ran."""

    @abstractmethod
    def steps(self, model: str) -> tuple[int, ...]:
        """The steps of `model` that any rank has captured."""

    @abstractmethod
    def keys_of(self, model: str, step: int) -> Iterator[Key]:
        """The Keys of one step, in order of execution; each once, whatever ranks hold it."""

    @abstractmethod
    def shards(self, key: Key) -> tuple[Record, ...]:
        """The Records of `key` on all ranks that have it, lowest rank first."""

    @abstractmethod
    def load(self, record: Record) -> Value:
        """The elements of `record`, mapped from the file: nothing is read until it is used."""

    @abstractmethod
    def load_own(self, record: Record) -> Value:
        """The elements of `record` in memory that may be written to, and never reaches the file."""

    @property
    @abstractmethod
    def calls(self) -> dict[Site, Call]:
        """The calls by Site, each as the lowest rank that has it saw it."""

    @abstractmethod
    def _told(self) -> dict[str, str]:
        """What a reader wants to know at a glance."""

    def __iter__(self) -> Iterator[Key]:
        for model in self.models:
            for step in self.steps(model):
                yield from self.keys_of(model, step)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        """Whether there is a value of this Key, or, for a text, an op of this name."""
        if isinstance(key, Key):
            return bool(self.shards(key))
        return isinstance(key, str) and any(key in (each.op, each.op.plain) for each in self)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.path}: {'; '.join(filter(None, self._told().values()))}>"
        )

    def _repr_html_(self) -> str:
        rows = {type(self).__name__: str(self.path), **self._told()}
        cells = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(told)}</td></tr>"
            for name, told in rows.items()
            if told
        )
        return f"<table>{''.join(cells)}</table>"

    def tensor(
        self,
        op: str | Key | Record,
        *,
        step: int = 0,
        slot: str = "output.0",
        call: int = 0,
        model: str | None = None,
        rank: int | None = None,
    ) -> torch.Tensor:
        """A value as a torch tensor, by the name of its op, by its Key, or by its Record.

            archive.tensor("layers.0.attn/linear", step=2, slot="input.0")

        A large value is mapped, copy-on-write: nothing is read until it is used, and a change to
        the tensor never reaches the file nor another tensor. `model` and `rank` may be left out
        where only one has the value, or all ranks have the same.
        """
        if not isinstance(op, Key | Record):
            op = self._key(Op(op), step, call, Slot(slot), model)
        record = op if isinstance(op, Record) else self._shard(op, rank)
        if record.kept is Kept.SUMMARY:
            raise ArchiveError(
                f"of {record.key} only a Summary is kept",
                hint="archive.load(archive[key]) gives its numbers; --keep full keeps the elements",
            )
        return to_torch(self.load_own(record), share=True)

    def _key(self, op: Op, step: int, call: int, slot: Slot, model: str | None) -> Key:
        models = self.models if model is None else (model,)
        keys = [Key(name, step, op, call, slot) for name in models]
        found = [key for key in keys if key in self]
        if len(found) > 1:
            raise ArchiveError(
                f"{op} ran in {' and in '.join(key.model for key in found)}",
                hint=f"say which: model={found[0].model!r}",
            )
        if not found:
            raise self._missing(keys)
        return found[0]

    def _shard(self, key: Key, rank: int | None) -> Record:
        shards = self.shards(key)
        if not shards:
            raise self._missing([key])
        ranks = ", ".join(str(shard.rank) for shard in shards)
        if rank is not None:
            chosen = [shard for shard in shards if shard.rank == rank]
            if not chosen:
                raise MissingValueError(f"rank {rank} has no {key}", hint=f"it is on rank {ranks}")
            return chosen[0]
        if len({shard.digest or shard.rank for shard in shards}) > 1:
            raise ArchiveError(
                f"{key} lies in shards on ranks {ranks}",
                hint=f"say which: rank={shards[0].rank}; archive.shards(key) lists them",
            )
        return shards[0]

    def _missing(self, keys: Sequence[Key]) -> MissingValueError:
        """Say which part of the name is wrong, and what there is instead."""
        wanted = keys[0] if keys else Key("", 0, "", 0, "")
        models = [key.model for key in keys]
        if not set(models) & set(self.models):
            return _unknown(self.path, "model", wanted.model, self.models)
        steps = {step for model in models for step in self.steps(model)}
        if wanted.step not in steps:
            known = spans(steps)
            return MissingValueError(
                f"{self.path} has no step {wanted.step}", hint=f"it has {known}"
            )
        here = [key for model in models for key in self.keys_of(model, wanted.step)]
        same = [key for key in here if key.op == wanted.op]
        if not same:
            return _unknown(self.path, "op", wanted.op, {key.op for key in here})
        calls = {key.call for key in same}
        if wanted.call not in calls:
            hint = f"it has {spans(calls)}"
            return MissingValueError(f"{wanted.op} has no call {wanted.call}", hint=hint)
        slots = ", ".join(key.slot for key in same if key.call == wanted.call)
        return MissingValueError(f"{wanted.site} has no slot {wanted.slot}", hint=f"it has {slots}")

    def select(
        self,
        layers: str | Sequence[str] | None = None,
        steps: int | str | Iterable[int] | None = None,
        slots: str | Sequence[str] | None = None,
    ) -> Selected:
        """The values that these filters leave, found when they are asked for.

        They are written as for ``--layer`` and ``--token``: globs over ops, ``"0,2-3"`` or numbers.
        `slots` are globs too, ``"output.*"``, or kinds, ``"grad_input"``.
        """
        tap = Tap(parse_steps([steps] if isinstance(steps, int) else steps), parse_layers(layers))
        return Selected(self, tap, (slots,) if isinstance(slots, str) else tuple(slots or ()))

    def to_pandas(self) -> pd.DataFrame:
        """A table with a line for each value on each rank, without the elements."""
        import pandas as pd

        calls = self.calls
        lines = [_line(shard, calls.get(key.site)) for key in self for shard in self.shards(key)]
        return pd.DataFrame(lines, columns=None if lines else list(_EMPTY))


class Selected(ValueMap):
    """The values of an archive that a selection leaves; made by `select`."""

    def __init__(self, held: ValueMap, tap: Tap, slots: tuple[str, ...] = ()) -> None:
        self.path, self._held, self._tap, self._slots = held.path, held, tap, slots

    def _selects(self, key: Key) -> bool:
        return (
            self._tap.selects_step(key.step)
            and self._tap.selects_op(key.op)
            and (
                not self._slots
                or any(fnmatchcase(key.slot, s) or key.slot.kind == s for s in self._slots)
            )
        )

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(model for model in self._held.models if self.steps(model))

    def steps(self, model: str) -> tuple[int, ...]:
        return tuple(filter(self._tap.selects_step, self._held.steps(model)))

    def keys_of(self, model: str, step: int) -> Iterator[Key]:
        return filter(self._selects, self._held.keys_of(model, step))

    def shards(self, key: Key) -> tuple[Record, ...]:
        return self._held.shards(key) if self._selects(key) else ()

    def __getitem__(self, key: Key) -> Record:
        if not self._selects(key):
            raise KeyError(key)
        return self._held[key]

    def load(self, record: Record) -> Value:
        return self._held.load(record)

    def load_own(self, record: Record) -> Value:
        return self._held.load_own(record)

    @cached_property
    def calls(self) -> dict[Site, Call]:
        """The calls of the ops and steps that are selected."""
        tap = self._tap
        return {
            site: call
            for site, call in self._held.calls.items()
            if tap.selects_step(site.step) and tap.selects_op(site.op)
        }

    def _told(self) -> dict[str, str]:
        steps = ",".join(map(spelled, self._tap.steps))
        named = {
            "layers": " ".join(self._tap.layers),
            "steps": steps,
            "slots": " ".join(self._slots),
        }
        return {name: told and f"{name} {told}" for name, told in named.items()}


def _unknown(path: Path, what: str, name: str, known: Iterable[str]) -> MissingValueError:
    near = ", ".join(closest(name, list(known))) or "none is like it"
    return MissingValueError(f"{path} has no {what} {name!r}", hint=f"closest: {near}")


def spans(numbers: Iterable[int]) -> str:
    """Numbers as ``0-3, 7``."""
    runs = groupby(enumerate(sorted(numbers)), lambda each: each[1] - each[0])
    spans = ([number for _, number in run] for _, run in runs)
    return ", ".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)


def _line(record: Record, call: Call | None) -> dict[str, Any]:
    """A Record as a line of a table."""
    key, location = record.key, record.location
    return {
        "model": key.model,
        "token": key.step,
        "op": str(key.op),
        "call": key.call,
        "slot": str(key.slot),
        "rank": record.rank,
        "order": record.order,
        "dtype": record.dtype,
        "shape": record.shape,
        "layout": record.layout,
        "device": record.device,
        "kept": str(record.kept),
        "nbytes": location.nbytes if location else 0,
        "digest": record.digest,
        "same_as": str(record.same_as or ""),
        "problem": record.problem,
        "seen_in": record.seen_in,
        "target": call.target if call else "",
        "source": call.source if call else "",
        "phase": str(call.phase) if call else "",
        "kernel": call.kernel if call else "",
    }


_EMPTY = _line(Record(Key("", 0, "", 0, ""), 0, "", ()), None)  # for the columns of an empty table
