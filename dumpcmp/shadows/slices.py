"""Finds one quantity in another: as a slice of it along a dim, or as all of its slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.shadows.fingerprints import Fingerprint, fingerprint, same, same_elements
from dumpcmp.shadows.quantities import Quantity

_MOST_DIMS = 5  # that are put into every order
_STRIDES = (1, 2)  # neighbours, and every other one, as rotary embeddings pair them


class SlicePlace(NamedTuple):
    """Some indices of one dim."""

    dim: int
    first: int
    length: int
    stride: int


@dataclass(eq=False)
class Marginals:
    """The sums of a tensor over all dims but one, for each of its dims."""

    tensor: Tensor
    _along: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def _wide(self) -> Tensor:
        tensor = self.tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.to(torch.complex128))
        return torch.where(torch.isfinite(wide := tensor.to(torch.float64)), wide, 0.0)

    def along(self, dim: int) -> Tensor:
        """Sums of absolute values, and plain sums, at each index of `dim`: two rows."""
        if dim not in self._along:
            flat = self._wide.movedim(dim, 0).reshape(self._wide.shape[dim], -1)
            self._along[dim] = torch.stack((flat.abs().sum(1), flat.sum(1)))
        return self._along[dim]

    @property
    def dims(self) -> Iterator[tuple[int, int]]:
        """Each dim that can be cut, and its size."""
        return ((dim, size) for dim, size in enumerate(self._wide.shape) if size > 1)

    def size_of(self, dim: int) -> int:
        return self._wide.shape[dim]

    def is_nothing(self, dim: int, indices: Iterable[int]) -> bool:
        """Whether at these indices nothing stands, beside what stands elsewhere."""
        sizes = self.along(dim)[0]
        least = same() * float(sizes.mean())
        return all(float(sizes[at]) <= least for at in indices)

    def is_selected_from(self, whole: Marginals) -> bool:
        """Whether it is some indices of one dim of `whole`, by their sums, in whatever order."""
        shape, other = self._wide.shape, whole._wide.shape
        unequal = [dim for dim in range(len(shape)) if shape[dim : dim + 1] != other[dim : dim + 1]]
        if len(shape) != len(other) or len(unequal) != 1 or not self._wide.numel():
            return False
        own, held = self.along(unequal[0]), whole.along(unequal[0])
        order = held[0].argsort()
        held = held[:, order]
        least = same() * own[0].clamp(min=float(own[0].mean()))
        first = torch.searchsorted(held[0].contiguous(), own[0] - least)
        near = first.clamp(max=held.shape[1] - 1)
        apart = (held[:, near] - own).abs()
        return bool((apart <= 2 * least).all())

    def places_in_order(self, part: Quantity) -> Iterator[tuple[int, Sequence[int]]]:
        """The dim, and its indices in their order, that have the elements of `part`."""
        is_slice = False
        for dim, first, count, stride in self.slices_of(part.print):
            is_slice = True
            yield dim, range(first, first + count * stride, stride)
        if not is_slice and (found := self._selected(part.tensor)) is not None:
            yield found

    def slices_of(self, part: Fingerprint) -> Iterator[SlicePlace]:
        """Where a slice has the elements of `part`, in its order."""
        for place in self.places_of(part):
            dim, first, count, stride = place
            span = self._wide.narrow(dim, first, (count - 1) * stride + 1)
            held = span[(slice(None),) * dim + (slice(None, None, stride),)]
            if fingerprint(held).is_same(part):
                yield place

    def _selected(self, part: Tensor) -> tuple[int, Sequence[int]] | None:
        """The same of indices that are no slice, such as the first and the last quarter."""
        shape, other = part.shape, self.tensor.shape
        unequal = [dim for dim in range(len(shape)) if shape[dim : dim + 1] != other[dim : dim + 1]]
        if len(shape) != len(other) or len(unequal) != 1 or not part.numel():
            return None
        (dim,) = unequal
        own, held = Marginals(part).along(dim), self.along(dim)
        room = (2 * same() * own[0].clamp(min=float(own[0].mean()))).tolist()
        wanted, found = own.T.tolist(), enumerate(held.T.tolist())
        indices = []
        for least, sums in zip(room, wanted, strict=True):
            place = next((at for at, other in found if _are_near(sums, other, least)), None)
            if place is None:
                return None
            indices.append(place)
        chosen = self.tensor.index_select(dim, torch.tensor(indices, device=self.tensor.device))
        return (dim, indices) if same_elements(part, chosen) else None

    def places_of(self, part: Fingerprint) -> Iterator[SlicePlace]:
        """Where a slice has the sums of `part`."""
        numel = self._wide.numel()
        for dim, size in self.dims:
            each = numel // size
            count, rest = divmod(part.numel, each)
            if rest or not 0 < count < size:
                continue
            for stride in _STRIDES:
                yield from _windows(self.along(dim), part, dim, count, stride)


def _are_near(one: Sequence[float], other: Sequence[float], least: float) -> bool:
    return all(abs(a - b) <= least for a, b in zip(one, other, strict=True))


def _windows(
    sums: Tensor, part: Fingerprint, dim: int, count: int, stride: int
) -> Iterator[SlicePlace]:
    span = (count - 1) * stride + 1
    if span > sums.shape[1] or (stride > 1 and count == 1):
        return
    found = sums.unfold(1, span, 1)[..., ::stride].sum(-1)
    least = same() * part.size
    near = ((found[0] - part.size).abs() <= least) & ((found[1] - part.total).abs() <= least)
    for at in near.nonzero().flatten().tolist():
        yield SlicePlace(dim, at, count, stride)


def is_part(small: Tensor, large: Tensor) -> str:
    """Which indices of one dim of `large` make `small`, as ``dim 1: 5:6``; empty where none do."""
    if small.ndim != large.ndim:
        return ""
    unequal = [dim for dim in range(small.ndim) if small.shape[dim] != large.shape[dim]]
    if len(unequal) != 1 or not 0 < small.shape[unequal[0]] < large.shape[unequal[0]]:
        return ""
    (dim,) = unequal
    count = small.shape[dim]
    for first in range(large.shape[dim] - count + 1):
        if same_elements(small, large.narrow(dim, first, count)):
            return f"dim {dim}: {first}:{first + count}"
    return ""


def is_permuted_dims(one: Quantity, other: Quantity) -> bool:
    """Whether one has the elements of the other in another order of dims, in whatever shape."""
    return _permutes_into(one, other) or _permutes_into(other, one)


def _permutes_into(one: Quantity, other: Quantity) -> bool:
    tensor = one.tensor
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    if len(dims) > _MOST_DIMS:
        return False
    core = tensor.reshape([tensor.shape[dim] for dim in dims])
    orders = permutations(range(core.ndim))
    return any(fingerprint(core.permute(order)).is_same(other.print) for order in orders)


def is_covered(whole: Marginals, parts: Iterable[Fingerprint]) -> bool:
    """Whether `parts` are slices of `whole` along one dim, and together all of it."""
    places = (place for part in parts for place in whole.places_of(part))
    indices = ((dim, range(at, at + count * step, step)) for dim, at, count, step in places)
    return _are_all(whole, indices)


def is_covered_in_order(whole: Marginals, parts: Iterable[Quantity]) -> bool:
    """Whether `parts` have indices of one dim of `whole` in their order, and together all.

    Where nothing but what float64 leaves of zero stands, one index is as good as another.
    """
    left = {dim: set(range(size)) for dim, size in whole.dims}
    found = dict.fromkeys(left, 0)
    for part in parts:
        for dim, indices in whole.places_in_order(part):
            left[dim] -= set(indices)
            found[dim] += len(indices)
            if not left[dim] or (
                found[dim] >= whole.size_of(dim) and whole.is_nothing(dim, left[dim])
            ):
                return True
    return False


def _are_all(whole: Marginals, places: Iterable[tuple[int, Iterable[int]]]) -> bool:
    left = {dim: set(range(size)) for dim, size in whole.dims}
    for dim, indices in places:
        left[dim] -= set(indices)
        if not left[dim]:
            return True
    return False
