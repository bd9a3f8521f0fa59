"""Takes some rows of a tensor where it lies, so that only those travel."""

from __future__ import annotations

import torch
from torch import Tensor

from dumpcmp.nouns.record import Stored
from dumpcmp.nouns.sampled import EVENLY, ROWS, Sample, row_length
from dumpcmp.summary.gpu.device import Packed, lent
from dumpcmp.summary.summary import RAW_LIMIT, digest_of

# What devices cannot gather as it is, and integers of the same width, which they can.
_WORDS = {
    torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8, torch.uint16: torch.int16,
    torch.uint32: torch.int32, torch.uint64: torch.int64,
}  # fmt: skip
_MOST_KNOWN = 4096  # shapes whose places are kept


class Sampler:
    """Keeps so many rows of each tensor; one for a whole capture, so that places stay.

    All of it is launched and nothing waited for, so that a CUDA graph can take it in.
    """

    def __init__(self, num_rows: int) -> None:
        self._most = num_rows
        # By shape and dtype: which rows, and how they lie in an archive; None: all of it is kept.
        self._kept: dict[tuple[torch.Size, torch.dtype], tuple[Sample, Stored] | None] = {}
        # By sample, dims, device and stream: where each row lies, flat or along the dims.
        self._places: dict[tuple[object, ...], tuple[Tensor, ...]] = {}

    def __call__(self, tensor: Tensor) -> Packed | None:
        """The rows that are kept of `tensor`, or None where that is all of it."""
        kind = (tensor.shape, tensor.dtype)
        try:
            kept = self._kept[kind]
        except KeyError:
            if len(self._kept) >= _MOST_KNOWN:
                self._kept.clear()
            kept = self._kept[kind] = self._chosen(*kind)
        if kept is None:
            return None
        sample, stored = kept
        with torch._C.DisableTorchFunction(), torch.no_grad():
            word = _WORDS.get(tensor.dtype)
            if word is None:
                rows = self._rows(tensor, sample, stored.shape)
            else:
                rows = self._rows(tensor.view(word), sample, stored.shape).view(tensor.dtype)
            return Packed(stored, rows, _digest(tensor))

    def _chosen(self, shape: torch.Size, dtype: torch.dtype) -> tuple[Sample, Stored] | None:
        whole = tuple(shape)
        sample = Sample.of(self._most, whole)
        if sample.num_kept == sample.num_rows or shape.numel() <= RAW_LIMIT:
            return None
        name, held = str(dtype).removeprefix("torch."), (sample.num_kept, row_length(whole))
        return sample, Stored(name, held, ((ROWS, EVENLY),))

    def _rows(self, tensor: Tensor, sample: Sample, shape: tuple[int, ...]) -> Tensor:
        """The elements of the rows, by a gather that reads nothing else."""
        if tensor.is_contiguous():
            (places,) = self._known((sample.num_rows,), sample, tensor.device)
            return tensor.view(-1, shape[1]).index_select(0, places)
        dims = tuple(tensor.shape[:-1]) if tensor.dim() > 1 else tuple(tensor.shape)
        return tensor[self._known(dims, sample, tensor.device)].reshape(shape)

    def _known(
        self, dims: tuple[int, ...], sample: Sample, device: torch.device
    ) -> tuple[Tensor, ...]:
        stream = 0
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return _places(dims, sample, device)  # whose memory is the graph's own
            stream = torch.cuda.current_stream(device).cuda_stream  # which alone waits for them
        key = (dims, sample, device, stream)
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


def _digest(tensor: Tensor) -> str:
    """Of all elements, where they lie on the host: it tells a tensor that was written to."""
    if not tensor.is_cpu:
        return ""
    dense = tensor.contiguous()
    return digest_of(lent(dense))
