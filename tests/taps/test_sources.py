"""Laws of copies into the ring: the same bytes with the compiled core and without it."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from dumpcmp.taps.recording import sources
from dumpcmp.taps.recording.sources import HostSource, digest_of

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128)


def strided(draw: random.Random) -> torch.Tensor:
    """A tensor that lies in its storage in any way: cut, turned, spread, expanded, or dense."""
    dtype = draw.choice(DTYPES)
    shape = [draw.choice((1, 2, 3, 5, 8, 17)) for _ in range(draw.randint(0, 4))]
    tensor = torch.randn(shape).mul(50).to(dtype)
    for _ in range(draw.randint(0, 3)):
        dims = list(range(tensor.dim()))
        match draw.randint(0, 3):
            case 0:
                tensor = tensor.permute(draw.sample(dims, len(dims)))
            case 1 if dims:
                dim = draw.choice(dims)
                low = draw.randint(0, tensor.shape[dim])
                tensor = tensor.movedim(dim, 0)[low :: draw.randint(1, 3)].movedim(0, dim)
            case 2:
                tensor = tensor.unsqueeze(-1).expand(*tensor.shape, draw.randint(1, 4))
            case _:
                tensor = tensor.contiguous()
    return tensor


def laid(tensor: torch.Tensor) -> tuple[bytes, str, str]:
    source, room = HostSource(tensor), bytearray(tensor.nbytes)
    source.copy_into(memoryview(room))
    return bytes(room), source.digest, digest_of(tensor)


@pytest.mark.skipif(sources.GATHER is None, reason="the compiled core is not built")
@pytest.mark.parametrize("seed", range(8))
def test_both_ways_lay_the_same_bytes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    tensors = [strided(draw) for _ in range(100)]
    by_core = [laid(tensor) for tensor in tensors]
    monkeypatch.setattr(sources, "GATHER", None)
    assert by_core == [laid(tensor) for tensor in tensors]
    dense = [torch.tensor(list(content), dtype=torch.uint8) for content, _, _ in by_core]
    for tensor, octets in zip(tensors, dense, strict=True):
        assert torch.equal(octets.view(tensor.dtype).view(tensor.shape), tensor)


@pytest.mark.skipif(sources.GATHER is None, reason="the compiled core is not built")
@pytest.mark.parametrize(
    "size, shape, stride",
    [
        (3, (2,), (1,)),
        (4, (3,), (1,)),
        (4, (2, 1), (1,)),
        (4, (2,), (-1,)),
        (4, (1,) * 65, (1,) * 65),
    ],
)
def test_what_does_not_fit_is_refused(size: int, shape: Any, stride: Any) -> None:
    numbers = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="gather"):
        sources.GATHER(bytearray(8), numbers.ctypes.data, size, shape, stride)
