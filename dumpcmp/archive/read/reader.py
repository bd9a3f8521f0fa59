"""An archive as a reader wants it: tensors by name, selections, tables, extremes, kernels."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dumpcmp.archive.paths import own_text
from dumpcmp.archive.read.captured import Captured
from dumpcmp.archive.read.filtering import Filter
from dumpcmp.nouns.errors import ArchiveError, MissingValueError
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.selection import Tap, closest, parse_layers, parse_steps
from dumpcmp.nouns.spoken import plural, spans
from dumpcmp.nouns.value import Value, to_torch, widen

if TYPE_CHECKING:
    import pandas as pd
    import torch

_BLOCK = 1 << 20  # elements widened at once


class Archive(Captured):
    """A run's directory of parts, read-only: Key -> Record, in order of execution.

        archive = Archive("d1")
        for record in archive.values():
            print(record.key, archive.load(record).numbers().mean())
        archive.tensor("layers.0.attn/linear", step=2)
        archive.select("layers.0.*", steps="0-1").to_pandas()

    Opening reads directory names only; a step's index is read when one of its Keys is asked
    for. An Archive can be pickled: it travels as its path. One that is still being written, or
    that a crash has cut short, opens too: `complete` is False and `problems` says why.
    """

    def __contains__(self, key: object) -> bool:
        """Whether there is a value of this Key, or, for a text, an op of this name."""
        if isinstance(key, str):
            return any(key in (each.op, each.op.plain) for each in self)
        return super().__contains__(key)

    def __repr__(self) -> str:
        return f"<Archive {self.path}: {'; '.join(filter(None, self._told().values()))}>"

    def _repr_html_(self) -> str:
        rows = {"archive": str(self.path), **self._told()}
        cells = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(told)}</td></tr>"
            for name, told in rows.items()
            if told
        )
        return f"<table>{''.join(cells)}</table>"

    def _told(self) -> dict[str, str]:
        runs = self.run.values()
        counted = self.complete and not self._filters
        count = sum(facts.get("num_records", 0) for facts in runs) if counted else 0
        models = (f"{model} {spans(self.steps(model))}" for model in self.models)
        return {
            "tokens": ", ".join(models) or "no model",
            "ranks": f"{len(self.ranks)} of {self.world_size} ranks" if self.world_size > 1 else "",
            "values": f"{count:,} {plural(count, 'value')}" if count else "",
            "selected": ", ".join(map(str, self._filters)),
            "state": "complete" if self.complete else "incomplete: " + "; ".join(self.problems),
        }

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
                f"of {record.key} only {record.sample or 'a Summary'} is kept",
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
            told = f"{self.path} has no step {wanted.step}"
            return MissingValueError(told, hint=f"it has {spans(steps)}")
        here = [key for model in models for key in self.keys_of(model, wanted.step)]
        same = [key for key in here if key.op == wanted.op]
        if not same:
            return _unknown(self.path, "op", wanted.op, {key.op for key in here})
        calls = {key.call for key in same}
        if wanted.call not in calls:
            told = f"{wanted.op} has no call {wanted.call}"
            return MissingValueError(told, hint=f"it has {spans(calls)}")
        slots = ", ".join(key.slot for key in same if key.call == wanted.call)
        return MissingValueError(f"{wanted.site} has no slot {wanted.slot}", hint=f"it has {slots}")

    def select(
        self,
        layers: str | Sequence[str] | None = None,
        steps: int | str | Iterable[int] | None = None,
        slots: str | Sequence[str] | None = None,
    ) -> Self:
        """An Archive of the values that these filters leave, found when they are asked for.

        They are written as for ``--layer`` and ``--token``: globs over ops, ``"0,2-3"`` or numbers.
        `slots` are globs too, ``"output.*"``, or kinds, ``"grad_input"``.
        """
        tap = Tap(parse_steps([steps] if isinstance(steps, int) else steps), parse_layers(layers))
        chosen = copy(self)
        vars(chosen).pop("calls", None)  # those of the whole, where they were asked for
        globs = (slots,) if isinstance(slots, str) else tuple(slots or ())
        chosen._filters = (*self._filters, Filter(tap, globs))
        return chosen

    def to_pandas(self) -> pd.DataFrame:
        """A table with a line for each value on each rank, without the elements."""
        import pandas as pd

        calls = self.calls
        lines = [
            _line(shard, calls.get(key.site)) | own_numbers(self, shard)
            for key in self
            for shard in self.shards(key)
        ]
        return pd.DataFrame(lines, columns=None if lines else list(_EMPTY))


def _unknown(path: Path, what: str, name: str, known: Iterable[str]) -> MissingValueError:
    near = ", ".join(closest(name, list(known))) or "none is like it"
    return MissingValueError(f"{path} has no {what} {name!r}", hint=f"closest: {near}")


_OF_RECORD = (
    "rank", "order", "dtype", "shape", "layout", "device", "kept", "nbytes", "digest", "same_as",
    "problem", "seen_in",
)  # fmt: skip
_OF_CALL = ("target", "source", "phase", "kernel")


def _line(record: Record, call: Call | None) -> dict[str, Any]:
    """A Record as a line of a table."""
    key, location = record.key, record.location
    line = {"model": key.model, "token": key.step, "op": str(key.op), "call": key.call}
    line |= {"slot": str(key.slot)} | {name: getattr(record, name, 0) for name in _OF_RECORD}
    line |= {"kept": str(record.kept), "same_as": str(record.same_as or "")}
    line |= {name: str(getattr(call, name, "")) for name in _OF_CALL}
    return line | {"nbytes": location.nbytes if location else 0}


def own_numbers(archive: Archive, record: Record) -> dict[str, float]:
    """The numbers that a user's own function gave of a value of which a Summary is kept."""
    told = dict(record.stored.attributes) if record.stored else {}
    if "reduced" not in told:
        return {}
    numbers = archive.load(record).bits.reshape(-1)
    try:
        names = json.loads(str(told["reduced"]))
        first = len(str(told["fields"]).split())
        return dict(zip(names, numbers[first : first + len(names)].tolist(), strict=True))
    except (KeyError, TypeError, ValueError):
        raise ArchiveError(
            f"{record.key}: the names of its numbers are damaged: {str(told['reduced'])[:80]!r}",
            hint="dumpcmp audit says which part of the archive has them",
        ) from None


_EMPTY = _line(Record(Key("", 0, "", 0, ""), 0, "", ()), None)  # for the columns of an empty table


def extremes(value: Value) -> str:
    """Smallest and largest element, and how many are NaN; of complex numbers their size."""
    low, high, num_nan = np.inf, -np.inf, 0
    flat = value.bits.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        numbers = widen(flat[start : start + _BLOCK], value.dtype)
        block = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
        unordered = np.isnan(block) if block.dtype.kind == "f" else np.zeros(block.shape, bool)
        num_nan += int(unordered.sum())
        if not unordered.all():
            low = min(low, block[~unordered].min())
            high = max(high, block[~unordered].max())
    told = [] if low > high else [f"{low:.6g} .. {high:.6g}"]
    return ", ".join([*told, *([f"{num_nan} NaN"] if num_nan else [])])


def excerpt(value: Value, most: int = 6) -> str:
    """The elements of `value`, the middle left out where there are many."""
    with np.printoptions(threshold=most**2, edgeitems=most // 2, precision=6, linewidth=88):
        return str(value.numbers())


def kernel_of(archive: Archive, call: Call) -> str:
    """What computes `call` in a compiled run, for a reader: its line, its kernel, the source."""
    lines = [f"{call.op}#{call.call}  {call.source}".rstrip()]
    if not call.is_compiled:
        return "\n".join([*lines, "  not compiled: this run has no kernels"])
    if call.is_removed:
        return "\n".join([*lines, "  no kernel computes it: the compiler folded or removed it"])
    lines.append(f"  {call.kernel}")
    if call.origins:
        lines.append(f"  together with {', '.join(call.origins)}")
    sources = (
        source_of(own_text(path), call.kernel)
        for (_, model, name), path in archive.texts.items()
        if model == call.model and name.startswith("code-")  # generated code
    )
    source = next(filter(None, sources), "  no source: it is called, not generated")
    return "\n".join([*lines, "", source])


def source_of(code: str, kernel: str) -> str:
    """The definition of `kernel` in generated `code`; empty if it has none."""
    begin = code.find(f"\n{kernel} = async_compile.")
    if begin < 0:
        return ""
    end = code.find("\n'''", begin)
    return code[begin + 1 : code.find("\n", end + 1)]
