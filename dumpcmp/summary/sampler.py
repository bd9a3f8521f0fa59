"""Takes some rows of a tensor where it lies, so that only those travel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dumpcmp.nouns.record import Stored
from dumpcmp.nouns.sampled import EVENLY, ROWS, Sample, row_length
from dumpcmp.summary.gpu.device import Packed, lent
from dumpcmp.summary.summary import RAW_LIMIT, digest_of

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_KNOWN = 4096  # shapes whose places are kept


class Sampler:
    """Keeps so many rows of each tensor; one for a whole capture, so that places stay."""

    def __init__(self, num_rows: int) -> None:
        self._most = num_rows
        # By shape and device: where each row lies along every dim but the last.
        self._places: dict[tuple[torch.Size, torch.device], tuple[Tensor, ...]] = {}

    def __call__(self, tensor: Tensor) -> Packed | None:
        """The rows that are kept of `tensor`, or None where that is all of it."""
        sample = Sample.of(self._most, tuple(tensor.shape))
        if sample.num_kept == sample.num_rows or tensor.numel() <= RAW_LIMIT:
            return None
        with torch._C.DisableTorchFunction(), torch.no_grad():
            plain = tensor.detach()
            rows = self._rows(plain, sample)
        shape = (sample.num_kept, row_length(tuple(tensor.shape)))
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Packed(Stored(dtype, shape, ((ROWS, EVENLY),)), rows.view(shape), _digest(plain))

    def _rows(self, plain: Tensor, sample: Sample) -> Tensor:
        """The elements of the rows; a gather that reads nothing else, and waits for nobody."""
        word = _WORDS.get(plain.itemsize, plain.dtype)  # which every device can gather
        return plain.view(word)[self._indices(plain, sample)].view(plain.dtype)

    def _indices(self, plain: Tensor, sample: Sample) -> tuple[Tensor, ...]:
        place = (plain.shape, plain.device)
        if place not in self._places:
            if len(self._places) >= _MOST_KNOWN:
                self._places.clear()
            dims = plain.shape[:-1] if plain.dim() > 1 else plain.shape
            indices = np.unravel_index(sample.rows, dims)
            self._places[place] = tuple(torch.from_numpy(i).to(plain.device) for i in indices)
        return self._places[place]


def _digest(plain: Tensor) -> str:
    """Of all elements, where they lie on the host: it tells a tensor that was written to."""
    if plain.device.type != "cpu":
        return ""
    dense = plain.contiguous()
    return digest_of(lent(dense))
