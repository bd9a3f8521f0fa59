"""Parts of values that ranks have, by the layouts that say which elements they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dumpcmp.align.mesh.regions import portion_of
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.value import Portion


def stated_portion(record: Record) -> Portion | None:
    """Which part of its whole a rank has; None where nobody says, or it is a term of a sum."""
    try:
        layout = parse_layout(record.layout) if record.layout else None
        if layout is None or layout.over or layout.divided_by:
            return None
        return portion_of(record.layout, record.shape)
    except LayoutError:
        return None


def part_at(whole: Tensor, portion: Portion) -> Tensor | None:
    """The elements of `whole` that a rank has; None if they are of another whole."""
    if tuple(whole.shape) != portion.whole:
        return None
    found = whole
    for dim, held in enumerate(portion.dims):
        found = found.index_select(dim, torch.from_numpy(held).to(torch.int64))
    return found


def make_up(portions: Iterable[Portion], shape: tuple[int, ...]) -> bool:
    """Whether all parts together are the whole."""
    held = torch.zeros(shape, dtype=torch.bool)
    for portion in portions:
        if portion.whole != shape:
            return False
        held[torch.meshgrid([torch.from_numpy(dim) for dim in portion.dims], indexing="ij")] = True
    return bool(held.all())


def joined(parts: Sequence[Tensor], portions: Sequence[Portion | None]) -> Tensor | None:
    """The whole of which ranks have parts; None if one does not say which, or has all of it."""
    known = [portion for portion in portions if portion is not None]
    if len(known) < len(parts) or not make_up(known, known[0].whole):
        return None
    if any(portion.shape == portion.whole for portion in known):
        return None
    whole = parts[0].new_zeros(known[0].whole)
    for part, portion in zip(parts, known, strict=True):
        places = torch.meshgrid([torch.from_numpy(dim) for dim in portion.dims], indexing="ij")
        whole[places] = part
    return whole
