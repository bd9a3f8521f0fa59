"""Takes some rows of a tensor where it lies, so that only those travel."""

from __future__ import annotations

import torch
from torch import Tensor

from dumpcmp.nouns.record import Stored
from dumpcmp.nouns.sampled import EVENLY, ROWS, Sample, row_length
from dumpcmp.summary.gpu.device import Packed, lent
from dumpcmp.summary.summary import RAW_LIMIT, digest_of

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_KNOWN = 4096  # shapes whose places are kept


class Sampler:
    """Keeps so many rows of each tensor; one for a whole capture, so that places stay.

    All of it is launched and nothing waited for, so that a CUDA graph can take it in.
    """

    def __init__(self, num_rows: int) -> None:
        self._most = num_rows
        # By sample, dims and device: where each row lies, flat or along every dim but the last.
        self._places: dict[tuple[object, ...], tuple[Tensor, ...]] = {}

    def __call__(self, tensor: Tensor) -> Packed | None:
        """The rows that are kept of `tensor`, or None where that is all of it."""
        whole = tuple(tensor.shape)
        sample = Sample.of(self._most, whole)
        if sample.num_kept == sample.num_rows or tensor.numel() <= RAW_LIMIT:
            return None
        shape, dtype = (sample.num_kept, row_length(whole)), str(tensor.dtype)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            plain = tensor.detach()
            rows = self._rows(plain, sample, shape[1]).view(shape)
            stored = Stored(dtype.removeprefix("torch."), shape, ((ROWS, EVENLY),))
            return Packed(stored, rows, _digest(plain))

    def _rows(self, plain: Tensor, sample: Sample, row: int) -> Tensor:
        """The elements of the rows, by a gather that reads nothing else."""
        words = plain.view(_WORDS.get(plain.itemsize, plain.dtype))  # which any device gathers
        if plain.is_contiguous():
            (places,) = self._known((sample.num_rows,), sample, plain.device)
            return words.view(-1, row).index_select(0, places).view(plain.dtype)
        dims = tuple(plain.shape[:-1]) if plain.dim() > 1 else tuple(plain.shape)
        return words[self._known(dims, sample, plain.device)].view(plain.dtype)

    def _known(
        self, dims: tuple[int, ...], sample: Sample, device: torch.device
    ) -> tuple[Tensor, ...]:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _places(dims, sample, device)  # whose memory is the graph's own
        key = (dims, sample, device)
        if key not in self._places:
            if len(self._places) >= _MOST_KNOWN:
                self._places.clear()
            self._places[key] = _places(dims, sample, device)
        return self._places[key]


def _places(dims: tuple[int, ...], sample: Sample, device: torch.device) -> tuple[Tensor, ...]:
    """Where the rows lie along each of `dims`, computed on the device: nothing is sent there."""
    rows = torch.arange(sample.num_kept, device=device) * (sample.num_rows - 1)
    rows = rows.div(max(1, sample.num_kept - 1), rounding_mode="floor")
    found: list[Tensor] = []
    for size in reversed(dims):
        found.append(rows.remainder(size))
        rows = rows.div(size, rounding_mode="floor")
    return tuple(reversed(found))


def _digest(plain: Tensor) -> str:
    """Of all elements, where they lie on the host: it tells a tensor that was written to."""
    if plain.device.type != "cpu":
        return ""
    dense = plain.contiguous()
    return digest_of(lent(dense))
