"""Finds the rows of one tensor among those of others, whatever tensor and order they are in.

A row is a tensor's last dim, or a share of it where ranks may hold one. Batches, sequences and
tokens that are cut, packed, dispatched or padded keep their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumpcmp.shadows.fingerprints import same, weights_of

_MOST_LOOKED_AT = 8  # rows of nearly one sum, of which the sizes are looked at


@dataclass(eq=False)
class RowIndex:
    """Rows by two sums over their elements."""

    shares: tuple[int, ...] = (1,)  # into how many a row may be cut
    _added: dict[int, list[Tensor]] = field(default_factory=dict)  # by the length of a row
    _sorted: dict[int, Tensor] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> None:
        """Let the rows of `tensor` be found."""
        for share in self.shares:
            if tensor.ndim and tensor.numel() and tensor.shape[-1] % share == 0:
                rows = _sums(tensor, tensor.shape[-1] // share)
                self._added.setdefault(tensor.shape[-1] // share, []).append(rows)
                self._sorted.pop(tensor.shape[-1] // share, None)

    def has_all(self, tensor: Tensor) -> bool:
        """Whether each row of `tensor` is one of those, or nothing but zeros."""
        if not tensor.ndim or not tensor.numel():
            return False
        held = self._rows(tensor.shape[-1])
        if held is None:
            return False
        wanted = _sums(tensor, tensor.shape[-1])
        wanted = wanted[:, wanted[1] > 0]
        return bool(_are_among(wanted, held).all())

    def _rows(self, length: int) -> Tensor | None:
        if length not in self._sorted and length in self._added:
            every = torch.cat(self._added[length], 1)
            self._sorted[length] = every[:, every[0].argsort()]
        return self._sorted.get(length)


def _sums(tensor: Tensor, length: int) -> Tensor:
    """Of each row: the sum of its elements by random weights, and of their sizes."""
    rows = tensor.detach().reshape(-1, length)
    if rows.is_complex():
        rows = torch.view_as_real(rows.to(torch.complex128)).reshape(len(rows), -1)
    rows = rows.to(torch.float64)
    rows = torch.where(torch.isfinite(rows), rows, 0.0)
    weights = weights_of(rows.shape[1]).to(rows.device)
    return torch.stack((rows @ weights, rows.abs().sum(1)))


def _are_among(wanted: Tensor, held: Tensor) -> Tensor:
    ordered = held[0].contiguous()
    room = same() * wanted[1]
    first = torch.searchsorted(ordered, wanted[0] - room)
    found = torch.zeros(wanted.shape[1], dtype=torch.bool, device=wanted.device)
    for ahead in range(_MOST_LOOKED_AT):
        at = (first + ahead).clamp(max=held.shape[1] - 1)
        apart = (held[:, at] - wanted).abs()
        found |= (apart <= room).all(0)
    return found


def shares_for(num_ranks: int) -> tuple[int, ...]:
    """Into how many parts ranks may have cut a row."""
    return tuple(n for n in range(1, num_ranks + 1) if num_ranks % n == 0)


def index_of(tensors: Iterable[Tensor], shares: tuple[int, ...]) -> RowIndex:
    """An index of the rows of all of `tensors`."""
    found = RowIndex(shares)
    for tensor in tensors:
        found.add(tensor)
    return found


def laid_out_as(whole: Tensor, shapes: list[tuple[int, ...]]) -> Iterator[list[Tensor]]:
    """The ways in which ranks may hold `whole`, each in a shape of its own, in their order."""
    if all(_numel(shape) == whole.numel() for shape in shapes):
        yield [whole.reshape(shape) for shape in shapes]
        return
    for dim in range(whole.ndim):
        sizes = [shape[dim] if len(shape) == whole.ndim else 0 for shape in shapes]
        others = {shape[:dim] + shape[dim + 1 :] for shape in shapes}
        if others != {tuple(whole.shape[:dim] + whole.shape[dim + 1 :])} or not all(sizes):
            continue
        if sum(sizes) == whole.shape[dim]:
            yield list(torch.split(whole, sizes, dim))
        elif len(shapes) == 1 and whole.shape[dim] % sizes[0] == 0:  # one rank of several
            yield from ([part] for part in torch.split(whole, sizes[0], dim))
        elif len(set(sizes)) == 1 and whole.shape[dim] % sizes[0] == 0:  # replicas of parts
            parts = torch.split(whole, sizes[0], dim)
            if len(shapes) % len(parts) == 0:
                times = len(shapes) // len(parts)
                yield [parts[at // times] for at in range(len(shapes))]
                yield [parts[at % len(parts)] for at in range(len(shapes))]


def _numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
