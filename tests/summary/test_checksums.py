"""Checksums: the same from numpy and from torch, and those of shards add up to the whole's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dumpcmp.nouns.value import Portion, value_of
from dumpcmp.summary.checksums import added, checksum, spelled
from dumpcmp.summary.gpu.memory import DeviceRow
from dumpcmp.summary.gpu.weigher import Weigher, device_checksum
from dumpcmp.summary.packing import unpack
from dumpcmp.summary.summary import DEFAULT

DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int64,
    torch.bool, torch.complex64,
]  # fmt: skip


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return (4 * torch.randn(shape)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (3, 4097), (300, 1000)], ids=str)
def test_numpy_and_torch_agree_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = some(dtype, *shape)
    assert spelled(int(device_checksum(tensor))) == checksum(value_of(tensor))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_the_checksums_of_shards_add_up(dtype: torch.dtype, dim: int) -> None:
    whole = some(dtype, 96, 130)
    found, other = [], []
    for part, piece in enumerate(whole.chunk(2, dim)):
        dims = [np.arange(size) for size in whole.shape]
        dims[dim] = np.arange(piece.shape[dim]) + part * piece.shape[dim]
        portion = Portion(tuple(whole.shape), tuple(dims))
        found.append(checksum(value_of(piece.contiguous()), portion))
        other.append(spelled(int(device_checksum(piece.contiguous(), portion))))
    assert added(found) == added(other) == checksum(value_of(whole))
    assert added([*found, ""]) == ""


def test_a_checksum_sees_one_bit_and_two_places() -> None:
    tensor = some(torch.float32, 64, 64)
    seen = {checksum(value_of(tensor))}
    other = tensor.clone()
    other.view(torch.int32)[3, 4] ^= 1
    seen.add(checksum(value_of(other)))
    seen.add(checksum(value_of(tensor.flip(0))))
    seen.add(checksum(value_of(tensor.T.contiguous())))
    assert len(seen) == 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bit_in_two_elements_is_seen(dtype: torch.dtype) -> None:
    """Of float64, two flipped signs add 2**63 twice, unless bits are folded."""
    size = dtype.itemsize if not dtype.is_complex else dtype.itemsize // 2
    words = np.random.default_rng(0).integers(0, 256, 600 * size).astype(np.uint8)
    words = words.view(f"<u{size}")
    bits = range(8 * size) if dtype is not torch.bool else range(1)
    seen = set()
    for bit in bits:
        for places in ([3, 4], [10, 599], range(600)):
            other = words.copy()
            other[list(places)] ^= words.dtype.type(1 << bit)
            seen.add(checksum(value_of(torch.from_numpy(other.view(np.uint8)).view(dtype))))
    assert checksum(value_of(torch.from_numpy(words.view(np.uint8)).view(dtype))) not in seen
    assert len(seen) == 3 * len(bits)


def test_a_checksum_of_known_elements() -> None:
    """The vector of docs/format.md."""
    assert checksum(value_of(torch.arange(1, 10001, dtype=torch.int32))) == "1ac27d1ad56de61a"


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_summary_has_the_checksum_of_its_tensor(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    tensor = some(torch.bfloat16, 100, 333)
    made = Weigher(DEFAULT)(tensor.to(device))
    assert made is not None
    found = unpack(made.stored, made.numbers.cpu().numpy(), "bfloat16", (100, 333))
    assert found.checksum == checksum(value_of(tensor))
    assert bool(found.digest) == (device == "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(513,), (3, 4097), (300, 1000), (700, 16384)], ids=str)
def test_kernels_take_the_checksum_that_the_host_takes(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Also a second time, when all is settled, of what begins anywhere, and of what is strided."""
    weigh, tensor = Weigher(DEFAULT), some(dtype, *shape).cuda()
    other = tensor.cpu().view(-1).view(torch.uint8).flip(0).view(dtype).view(shape).cuda()
    shifted = torch.empty(tensor.numel() + 1, dtype=dtype, device="cuda")[1:].view(shape)
    shifted.copy_(tensor)
    turned = tensor.reshape(shape[-1], -1)
    for given in (tensor, other, shifted, turned.T, tensor):
        made = weigh(given)
        assert isinstance(made, DeviceRow)
        numbers = made.numbers.cpu().numpy()
        found = unpack(made.stored, numbers, str(dtype)[6:], tuple(given.shape))
        assert found.checksum == checksum(value_of(given.contiguous()))
        assert found.digest == "" and found.count >= given.numel()
