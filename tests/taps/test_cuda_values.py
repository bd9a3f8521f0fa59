"""Values of a GPU, bit for bit: any size, type, stride and stream, and where memory is short."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.write import ring as rings
from dumpcmp.archive.write.part import Octets, Part
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.errors import CaptureWarning
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.value import DTYPES
from dumpcmp.taps.recording import transfers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SIZES = (0, 1, 100, 4096, 999_983, 1 << 20, 5 << 20, (40 << 20) + 12, 130 << 20)


class Giver(nn.Module):
    """Takes tensors, and overwrites them once they are taken."""

    def forward(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            tensor.view(-1).view(torch.uint8).zero_()


def bytes_of(tensor: Tensor) -> bytes:
    dense = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return dense.numpy().tobytes()


def random_bits(nbytes: int, dtype: torch.dtype) -> Tensor:
    bits = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")
    bits = bits & 1 if dtype is torch.bool else bits
    return bits[: nbytes // dtype.itemsize * dtype.itemsize].view(dtype)


def check(path: Path, expected: list[bytes]) -> None:
    archive = Archive(path)
    archive.checks_digests = True
    for number, content in enumerate(expected):
        found = archive[Key("Giver", 0, "<root>", 0, f"input.{number}")]
        assert found.device == "cuda:0"
        assert archive.load(found).bits.tobytes() == content, f"value {number}"
    assert audit(path).sound


def dump(path: Path, tensors: list[Tensor], buffer: int | None = None) -> None:
    expected = [bytes_of(tensor) for tensor in tensors]
    keep = Retention(buffer=buffer)
    with dumpcmp.capture(None, path, level="modules", keep=keep):
        Giver()(*tensors)
    check(path, expected)


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_in_every_size(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    dump(tmp_path / "d", [random_bits(nbytes, dtype) for nbytes in SIZES])


class Taker(nn.Module):
    def forward(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            tensor.zero_()


@pytest.mark.parametrize("cloned", [0, 64 << 20, 1 << 30])
@pytest.mark.parametrize("buffer", [8 << 20, None])
def test_strided_and_overwritten_whatever_memory_there_is(
    cloned: int, buffer: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "CLONED_NBYTES", cloned)
    monkeypatch.setattr(rings, "LENT_REACH", 16 << 20)
    whole = torch.randn(3, 1500, 5000, device="cuda")
    views = [
        whole.clone().transpose(0, 2),
        whole.clone()[:, ::3, 1:],
        torch.randn(7, device="cuda").clone()[::2],
        torch.randn(6000, 5000, device="cuda").clone().t(),
        torch.randn((), device="cuda"),
        torch.randn(3, 1, device="cuda").expand(3, 5).clone(),
    ]
    expected = [bytes_of(view) for view in views]
    with dumpcmp.capture(None, tmp_path / "d", level="modules", keep=Retention(buffer=buffer)):
        Taker()(*views)
    archive = Archive(tmp_path / "d")
    for number, content in enumerate(expected):
        found = archive[Key("Taker", 0, "<root>", 0, f"input.{number}")]
        assert archive.load(found).bits.tobytes() == content, f"view {number}"
        assert found.stride == views[number].stride()


def test_a_tensor_of_gigabytes(tmp_path: Path) -> None:
    dump(tmp_path / "d", [random_bits((8 << 30) + 6, torch.bfloat16)])
    dump(tmp_path / "e", [random_bits(2 << 30, torch.float32)], buffer=64 << 20)


def test_streams_whose_values_are_overwritten_at_once(tmp_path: Path) -> None:
    class Streams(nn.Module):
        def forward(self, x: Tensor) -> None:
            for number in range(8):
                side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    y = x + number
                    act(y)
                    y.fill_(-1)

    act = nn.Identity()
    x = torch.zeros(3 << 20, device="cuda")
    with dumpcmp.capture(None, tmp_path / "d", level="functions"):
        Streams()(x)
    archive = Archive(tmp_path / "d")
    for number in range(8):
        found = archive[Key("Streams", 0, "<root>/add", number, "output.0")]
        assert (archive.load(found).numbers() == number).all()


def test_a_full_disk_stops_the_capture_and_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = [0], Part.write

    def full(part: Part, content: Octets, address: int) -> None:
        written[0] += len(content)
        if written[0] > 900 << 20:  # more than all threads have in hand at once
            raise OSError(errno.ENOSPC, "No space left on device")
        write(part, content, address)

    monkeypatch.setattr(Part, "write", full)
    x = torch.ones(10 << 20, device="cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with dumpcmp.capture(None, tmp_path / "d"):
            for _ in range(30):
                x = nn.Identity()(x) + 1
    assert [w.category for w in caught] == [CaptureWarning] and "No space" in str(caught[0].message)
    assert (x == 31).all(), "the program is as it would be, and the device too"
    archive = Archive(tmp_path / "d")
    archive.checks_digests = True
    assert not archive.complete
    kept = [key for key in archive if archive[key].kept is Kept.FULL]
    assert len(kept) > 4
    assert all(archive[key].problem for key in set(archive) - set(kept)), "a link to what was lost"
    for key in kept:
        numbers = archive.load(archive[key]).numbers()
        assert (numbers == numbers.flat[0]).all()
    with dumpcmp.capture(None, tmp_path / "e"):
        monkeypatch.undo()
        nn.Identity()(x)
    assert audit(tmp_path / "e").sound
