"""Laws of tensors with gaps: kernels read them as they lie, and find what a dense copy has."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dumpcmp.summary.gpu.device import Summariser
from dumpcmp.summary.gpu.gaps import Runs, runs_of
from dumpcmp.summary.gpu.memory import DeviceRow
from dumpcmp.summary.summary import Recipe

SHAPES = [(3, 5, 64), (2, 3, 4, 32), (6, 96), (2, 2, 3, 2, 64), (7, 1, 32), (64,), (1, 1)]


def offsets(runs: Runs, count: int) -> list[int]:
    """Where the elements lie in order, by the arithmetic of the kernel."""
    found = []
    for at in range(count):
        run, within = divmod(at, runs.length)
        row, near = divmod(run, runs.num_near)
        sheet, mid = divmod(row, runs.num_mid)
        found.append(within + near * runs.near + mid * runs.mid + sheet * runs.far)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_runs_lead_to_every_element_in_order(shape: tuple[int, ...]) -> None:
    numbers = torch.arange(4 * int(np.prod(shape))).view(4 * shape[0], *shape[1:])
    cut = numbers[::2][:, :32] if len(shape) == 2 else numbers[: 2 * shape[0] : 2]
    seen = 0
    for order in itertools.permutations(range(numbers.ndim)):
        for tensor in (cut.permute(order), numbers.permute(order)):
            runs = runs_of(tensor.shape, tensor.stride(), 2)
            if runs is None:
                continue
            seen += 1
            expected = tensor.reshape(-1).tolist()
            assert offsets(runs, len(expected)) == expected
    assert seen or max(shape) < 32 or len(shape) == 1


def test_what_kernels_cannot_read_has_no_runs() -> None:
    wide = torch.empty(8, 6, 64)
    assert runs_of(wide.shape, wide.stride(), 4) is None  # no gaps
    for tensor in (
        wide[..., :48],  # runs of no multiple of 32
        wide[..., ::2],  # elements apart
        wide.transpose(1, 2),
        torch.empty(8, 66)[:, :64],  # runs that begin at odd places
        torch.empty(2, 2, 2, 2, 64).permute(3, 1, 0, 2, 4),  # more dims than it has
        torch.empty(0, 4, 64)[:, ::2],
    ):
        assert runs_of(tensor.shape, tensor.stride(), 4) is None
    assert runs_of((1 << 20, 2048), (4096, 1), 2) is None  # more than 32 bits count


def test_a_repeated_row_lies_where_the_first_does() -> None:
    tensor = torch.empty(40, 64).expand(3, 40, 64)
    assert runs_of(tensor.shape, tensor.stride(), 2) == Runs(1, 2560, 3, 1, 0, 0, 0)


def spread(kind: str, dtype: torch.dtype) -> Tensor:
    """A tensor with gaps on the GPU."""
    drawn = torch.randn(4, 300, 3, 8, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    if kind == "not finite":
        drawn.view(-1)[12345::70001] = torch.inf
        drawn.view(-1)[777::90001] = torch.nan
    q, k, _ = drawn.cuda().unbind(2)
    if kind == "turned":
        return k.transpose(1, 2)
    if kind == "few":
        return k[:1, :70].transpose(1, 2)
    return q


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["apart", "turned", "few", "not finite"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_tensor_with_gaps_has_the_row_of_its_copy(dtype: torch.dtype, kind: str) -> None:
    summariser = Summariser(Recipe())
    tensor = spread(kind, dtype)
    expected = summariser(tensor.contiguous())
    assert isinstance(expected, DeviceRow)
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    summariser(tensor)  # which compiles
    row = summariser(tensor)
    assert isinstance(row, DeviceRow)
    again: Any = row.again
    assert again.takes_gaps
    more = torch.cuda.memory_stats()["allocation.all.allocated"] - allocated
    assert more <= 2  # a Batch, but no copies
    fill = again(tensor.data_ptr(), tensor)
    third = bytearray(row.batch.row_nbytes)
    fill(memoryview(third))
    assert torch.equal(row.numbers.view(torch.int64), expected.numbers.view(torch.int64))
    assert bytes(third) == row.numbers.cpu().numpy().tobytes()
