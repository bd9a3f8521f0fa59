"""CPU tensors able to put their elements where an archive wants them, and their digests."""

import ctypes

import torch
import xxhash
from torch import Tensor, UntypedStorage


def digest_of(tensor: Tensor) -> str:
    """xxh3_128 of the dense bytes of a CPU tensor."""
    dense = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    return xxhash.xxh3_128_hexdigest(_bytes_of(dense))


def digest_of_all(storage: UntypedStorage) -> str:
    """xxh3_128 of all bytes of a CPU storage, whatever tensors lie in it."""
    nbytes = storage.nbytes() if storage.data_ptr() else 0
    room = (ctypes.c_char * nbytes).from_address(storage.data_ptr()) if nbytes else b""
    return xxhash.xxh3_128_hexdigest(room)


def _bytes_of(tensor: Tensor) -> ctypes.Array[ctypes.c_char]:
    """The memory of a contiguous CPU tensor, without a copy; `tensor` must outlive it."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


class HostSource:
    """A tensor in host memory. It is copied at once, because the program may change it next."""

    __slots__ = ("digest", "nbytes", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self.digest = ""  # xxh3_128 of what was copied, known after the copy

    def copy_into(self, room: memoryview) -> None:
        """Copy the elements densely into `room`, and take their digest while they are hot."""
        if not self.nbytes:
            self.digest = xxhash.xxh3_128_hexdigest(b"")
            return
        target = (ctypes.c_char * self.nbytes).from_buffer(room)
        if self.tensor.is_contiguous():
            ctypes.memmove(target, self.tensor.data_ptr(), self.nbytes)
        else:
            dense = torch.frombuffer(room, dtype=self.tensor.dtype).view(self.tensor.shape)
            dense.copy_(self.tensor.detach())
        self.digest = xxhash.xxh3_128_hexdigest(target)
