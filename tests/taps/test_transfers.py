"""What copies of a GPU are made of, held to laws that need none: pieces, places, memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dumpcmp.taps.recording.pages import Pages, address_of
from dumpcmp.taps.recording.transfers import Landing, pieces

TENSORS = {
    "dense": torch.arange(1000.0).view(10, 100),
    "transposed": torch.arange(1000.0).view(10, 100).t(),
    "sliced": torch.arange(1000).view(10, 100)[::3, 5::7],
    "expanded": torch.arange(7.0).expand(9, 7),
    "one row": torch.arange(900.0).view(1, 30, 30).transpose(1, 2),
    "scalar": torch.tensor(3.0),
    "bytes": torch.arange(200, dtype=torch.uint8)[::2],
    "complex": torch.randn(20, 30, dtype=torch.complex64).t(),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("most", [16, 100, 1 << 20])
def test_pieces_are_the_tensor_in_row_major_order(tensor: Tensor, most: int) -> None:
    found = list(pieces(tensor, most))
    assert all(piece.nbytes <= most for piece in found)
    assert torch.equal(torch.cat([piece.reshape(-1) for piece in found]), tensor.reshape(-1))


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("split", [1, 64, 333, 10_000])
def test_pieces_land_one_after_another_wherever_memory_is_split(tensor: Tensor, split: int) -> None:
    room = bytearray(tensor.nbytes)
    ends = [*range(split, tensor.nbytes, split), tensor.nbytes]
    landing = Landing(memoryview(room), ends)
    for piece in pieces(tensor, 48):
        landing.take(piece)
    assert bytes(room) == bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())


class Runtime:
    """Stands for CUDA's runtime: remembers what is registered, and refuses beyond a limit."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.registered: dict[int, int] = {}
        self.most = most

    def cudaHostRegister(self, address: int, nbytes: int, _: int) -> int:
        if nbytes > self.most:
            return 2
        self.registered[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


def test_a_copy_is_split_between_registered_ranges_and_never_leaves_them(runtime: Runtime) -> None:
    pages = Pages()
    pages.lend(4096, 1000)
    assert not runtime.registered, "nothing is registered before a device needs it"
    assert pages.ends(4096, 1000) == [1000] and pages.ends(4100, 500) == [500]
    assert pages.ends(4096, 1001) == [] and pages.ends(4000, 200) == []
    pages.lend(5096, 500)
    pages.lend(5596, 500)
    assert pages.ends(5000, 1000) == [96, 596, 1000]
    assert pages.ends(5096, 500) == [500] and pages.ends(7000, 1) == []
    pages.give_back()
    assert not runtime.registered and pages.ends(4096, 10) == []


def test_memory_that_cannot_be_registered_is_not_used(runtime: Runtime) -> None:
    runtime.most, pages = 100, Pages()
    pages.lend(0, 64)
    pages.lend(64, 4096)
    assert pages.ends(0, 64) == [64] and "error 2" in pages.problem
    assert pages.ends(0, 128) == [] and pages.ends(64, 8) == []


def test_an_address_is_where_a_view_begins() -> None:
    room = memoryview(bytearray(100))
    assert address_of(room[40:]) == address_of(room) + 40
