"""Summaries of parameters, with checksums, so that it is known whether two are the same."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dumpcmp.nouns.value import Portion
from dumpcmp.summary.checksums import PAGE, checksum, line_factors, page_factors
from dumpcmp.summary.gpu.device import (
    CHECKSUM_DIGEST,
    Packed,
    Summariser,
    flat_indices,
    lent,
    with_told,
)
from dumpcmp.summary.gpu.memory import DeviceRow
from dumpcmp.summary.packing import DIGEST_WORDS, HEAD, Reduction
from dumpcmp.summary.summary import Recipe

_CHUNK = 1024 * PAGE  # elements that are widened together
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Weigher:
    """Takes Summaries that tell of a tensor whether it is the same, on any device.

    With `alike` they look the same wherever they are taken: the checksum lies in the place of the
    digest. Otherwise one that is taken on the host has both.
    """

    def __init__(
        self, recipe: Recipe, reduction: Reduction | None = None, *, alike: bool = False
    ) -> None:
        self._summarise = Summariser(recipe, reduction, checksum=True)
        self._alike = alike

    def taped(self, tensor: Tensor) -> Packed | None:
        """The same inside of a CUDA graph that is being captured, if it can be taken there."""
        return self._summarise.taped(tensor)

    def __call__(self, tensor: Tensor, portion: Portion | None = None) -> Packed | DeviceRow | None:
        """The Summary of `tensor` with a checksum, or None where the tensor itself is smaller."""
        made = self._summarise(tensor, portion)
        if made is None or CHECKSUM_DIGEST in made.stored.attributes:
            return made
        with torch._C.DisableTorchFunction(), torch.no_grad():
            plain = tensor.detach().contiguous()
            if plain.device.type == "cpu":
                found = checksum(lent(plain), portion)
                if not self._alike:
                    stored = with_told(made.stored, "checksum", found)
                    return Packed(stored, made.numbers, made.digest)
                halves = (int(found[:8], 16), int(found[8:], 16), 0, 0)
                words = torch.tensor(halves, dtype=torch.float64)
            else:
                words = _split(device_checksum(plain, portion))
            numbers = torch.cat([made.numbers[: HEAD - DIGEST_WORDS], words, made.numbers[HEAD:]])
            return Packed(with_told(made.stored, *CHECKSUM_DIGEST), numbers, made.digest)


def device_checksum(plain: Tensor, portion: Portion | None = None) -> Tensor:
    """The checksum of a contiguous tensor where it lies, as a signed word of 64 bits."""
    if plain.is_complex():
        plain, portion = torch.view_as_real(plain), portion.in_parts() if portion else None
    words = plain.view(-1).view(_WORDS[plain.element_size()])
    lines = _signed(line_factors(), plain.device)
    total = torch.zeros((), dtype=torch.int64, device=plain.device)
    if portion is not None:
        places = flat_indices(portion, plain.device)
        pages = _signed(page_factors(0, -(-int(np.prod(portion.whole)) // PAGE)), plain.device)
        return (_wide(words) * lines[places % PAGE] * pages[places // PAGE]).sum()
    for low in range(0, words.numel(), _CHUNK):
        piece = _wide(words[low : low + _CHUNK])
        piece = torch.nn.functional.pad(piece, (0, -piece.numel() % PAGE)).view(-1, PAGE)
        pages = _signed(page_factors(low // PAGE, low // PAGE + len(piece)), plain.device)
        total += ((piece * lines).sum(1) * pages).sum()
    return total


def _signed(words: np.typing.NDArray[np.uint64], device: torch.device) -> Tensor:
    return torch.from_numpy(words.view(np.int64)).to(device, non_blocking=True)


def _wide(words: Tensor) -> Tensor:
    """`words` as 64 bits, the upper ones 0; what has so many is folded, as in `checksums`."""
    wide = words.long()
    if words.itemsize < 8:
        return wide & ((1 << 8 * words.itemsize) - 1)
    return wide ^ ((wide >> 32) & 0xFFFFFFFF) ^ ((wide >> 48) & 0xFFFF)


def _split(total: Tensor) -> Tensor:
    """A word of 64 bits as numbers of 32, the highest first, in the place of a digest."""
    high, low = (total >> 32) & 0xFFFFFFFF, total & 0xFFFFFFFF
    none = torch.zeros_like(total)
    return torch.stack([high, low, none, none]).double()
