"""The tables of the sketch on a device, as kernels and tensor operations want them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dumpcmp.summary.gpu.rows import Room
from dumpcmp.summary.sketch import BLOCK, RUN, hash_of


@dataclass(eq=False)
class Tables:
    """The tables of one seed on one device."""

    device: torch.device
    seed: int
    rooms: dict[tuple[int, ...], Room] = field(default_factory=dict, repr=False)  # of launches
    _turns: Tensor | None = field(default=None, repr=False)
    _packed_turns: Tensor | None = field(default=None, repr=False)
    _folds: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _places: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def turns(self, end: int) -> Tensor:
        """Rotation, offset and sign of blocks 0 to at least `end`, one int32 row each."""
        if self._turns is None or self._turns.shape[1] < end:
            count = max(4096, 1 << (end - 1).bit_length())
            columns = hash_of(self.seed).turns(np.arange(count, dtype=np.int64))
            self._turns = torch.from_numpy(np.stack(columns).astype(np.int32)).to(self.device)
        return self._turns

    def packed_turns(self, end: int) -> Tensor:
        """The same in one int32: rotation, offset from bit 8, and bit 16 for a negative sign."""
        turns = self.turns(end)
        if self._packed_turns is None or self._packed_turns.shape[0] != turns.shape[1]:
            rotation, offset, common = turns
            self._packed_turns = rotation + (offset << 8) + ((common < 0).to(torch.int32) << 16)
        return self._packed_turns

    @cached_property
    def signs(self) -> Tensor:
        """+1 and -1 for each bit of the 512 sign words."""
        return torch.from_numpy(hash_of(self.seed).signs).to(self.device).view(512, RUN)

    @cached_property
    def half_words(self) -> Tensor:
        """The sign words as pairs of int32, the low half first."""
        return torch.from_numpy(hash_of(self.seed).words.view(np.int32)).to(self.device)

    def places(self, size: int) -> Tensor:
        """What goes to each eight of `size` buckets of a turned block, and -1 behind it."""
        if size not in self._places:
            found = np.sort(_sources(self.seed, size), 1) if size else np.full((8, 1), BLOCK)
            width = 1 << max(0, int((found < BLOCK).sum(1).max(initial=1)) - 1).bit_length()
            found = np.where(found < BLOCK, found, -1)[:, :width].astype(np.int32)
            table = np.ascontiguousarray(found.reshape(-1, 8, width).transpose(0, 2, 1))
            self._places[size] = torch.from_numpy(table).to(self.device)
        return self._places[size]

    def fold(self, turned: Tensor, size: int) -> Tensor:
        """The `size` buckets that the sums of turned blocks add up to, in a fixed order."""
        if size not in self._folds:
            self._folds[size] = torch.from_numpy(_sources(self.seed, size)).to(self.device)
        padded = torch.nn.functional.pad(turned, (0, 1))
        return padded[self._folds[size]].sum(1)


def _sources(seed: int, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """For each bucket and each run of a block: which element goes there, or BLOCK for none."""
    lane = (np.arange(size)[:, None] - hash_of(seed).bases[None, :]) & (size - 1)
    return np.where(lane < RUN, lane + RUN * np.arange(256), BLOCK)
