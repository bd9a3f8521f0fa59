"""Reads what torchair's FX mode writes, and numbers that msit's converter has left of tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dumpcmp.importing.foreign import ArraySource, Foreign, Listed
from dumpcmp.importing.numpy_file import NpyFile, NpzFile
from dumpcmp.nouns.budgets import ZIP, Spending
from dumpcmp.nouns.record import Source

_LETTERS = "uint32"  # of an argument that is no array: numpy keeps a letter in four bytes


class FxFile(NpyFile):
    """One tensor, or a word that an op was given: its letters as numbers."""

    def listed(self) -> Listed:
        (value,) = super().listed().values
        header = self._header
        if header.dtype.kind == "U" and header.is_plain:
            letters = (*header.shape, header.dtype.itemsize // 4)
            value = replace(value, dtype=_LETTERS, shape=letters, problem="")
        return Listed((value,))


class ConvertedGeFile(NpzFile):
    """Numbers of each tensor of a task: a row an input in `inputs`, a row an output in `outputs`.

    It is made of a GE dump by hand, as the documents of msit show.
    """

    def listed(self) -> Listed:
        spending, kinds = Spending(ZIP, self.path, 0), ("input", "output")
        for kind in kinds:
            spending.name(self._num_rows(kind))  # rows of no elements take no bytes
        return Listed(
            tuple(self._row(kind, n) for kind in kinds for n in range(self._num_rows(kind)))
        )

    def _num_rows(self, kind: str) -> int:
        shape = self._header(f"{kind}s").shape if f"{kind}s" in self._members else ()
        return shape[0] if shape else 0

    def _row(self, kind: str, number: int) -> Foreign:
        header = self._header(f"{kind}s")
        return replace(header.value(self, f"{kind}.{number}"), shape=header.shape[1:])

    def has(self, value: Foreign) -> bool:
        kind, _, number = value.name.partition(".")
        is_row = number.isdecimal() and int(number) < self._num_rows(kind)
        return is_row and value == self._row(kind, int(number))

    def source(self, value: Foreign) -> Source:
        kind, _, number = value.name.partition(".")
        member = f"{kind}s"
        header = self._header(member)
        with self._member(member) as file:
            self._read(file, member, header.nbytes)
            content = self._read(file, member, header.total - header.nbytes)
        return ArraySource(np.ascontiguousarray(header.array(content)[int(number)]))
