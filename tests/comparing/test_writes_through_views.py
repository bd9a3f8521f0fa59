"""What a step writes through a view is an effect of it, in every mode, be it read again or not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.op_names import plain_name
from dumpcmp.nouns.outcome import Outcome
from tests.choosing_cases import often

Put = Callable[[Tensor, Tensor], object]
HERE = torch.tensor([1])


def by_brackets(cache: Tensor, z: Tensor) -> None:
    cache[1:2] = z


def added_by_brackets(cache: Tensor, z: Tensor) -> None:
    row = cache[1]
    row += z[0]


# Ways to write the row z [1, 8] into the second of four rows.
PUTS: dict[str, Put] = {
    "narrow copy": lambda cache, z: cache.narrow(0, 1, 1).copy_(z),
    "narrow add": lambda cache, z: cache.narrow(0, 1, 1).add_(z),
    "select copy": lambda cache, z: cache.select(0, 1).copy_(z[0]),
    "slice copy": lambda cache, z: cache[1:2].copy_(z),
    "transpose copy": lambda cache, z: cache.transpose(0, 1)[:, 1].copy_(z[0]),
    "transpose index_copy": lambda cache, z: cache.t().index_copy_(1, HERE, z.t()),
    "view slice copy": lambda cache, z: cache.view(-1)[8:16].copy_(z.view(-1)),
    "unbind copy": lambda cache, z: cache.unbind(0)[1].copy_(z[0]),
    "view index_put": lambda cache, z: cache.view(4, 2, 4).index_put_((HERE,), z.view(1, 2, 4)),
    "brackets": by_brackets,
    "brackets added to": added_by_brackets,
    "out": lambda cache, z: torch.mul(z, 2.0, out=cache.narrow(0, 1, 1)),
}
COPIES: dict[str, Put] = {
    "clone": lambda cache, z: cache.clone().narrow(0, 1, 1).copy_(z),
    "picked rows": lambda cache, z: cache[[1]].copy_(z),
}
MODES = ("eager", "fx", "aten")
AT_LENGTH = ("narrow add", "slice copy", "view slice copy", "view index_put")
OFTEN = [put for put in PUTS if put not in AT_LENGTH]


def nothing(cache: Tensor, z: Tensor) -> None: ...


class Keeping(nn.Module):
    """A layer that writes what it computes into a cache: a buffer, an attribute, or an argument."""

    def __init__(self, put: Put, place: str, reads: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.put, self.reads = put, reads
        if place == "buffer":
            self.register_buffer("cache", torch.randn(4, 8))
        elif place == "attribute":
            self.cache = torch.randn(4, 8)

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        cache = self.cache if given is None else given
        z: Tensor = self.up(x)
        self.put(cache, z)
        y: Tensor = self.down(z)
        return y + cache.sum(0) if self.reads else y


def captured(path: Path, mode: str, put: Put, place: str = "buffer", reads: bool = False) -> Path:
    torch.manual_seed(0)
    model = Keeping(put, place, reads)
    args = [torch.randn(1, 8), *([torch.randn(4, 8)] if place == "argument" else [])]
    with dumpcmp.capture(model, path, mode=mode), torch.no_grad():
        model(*args)
    return path


def outcomes(
    tmp_path: Path, mode: str, put: Put, place: str = "buffer", reads: bool = False
) -> tuple[Outcome, Outcome, Outcome]:
    """Of the same program, of one that leaves the write out, and of one that writes another."""
    golden = captured(tmp_path / "golden", mode, put, place, reads)
    others: tuple[Put, ...] = (put, nothing, lambda cache, z: put(cache, 1.5 * z))
    found = [
        dumpcmp.compare(golden, captured(tmp_path / f"{number}", mode, other, place, reads))
        for number, other in enumerate(others)
    ]
    same, left_out, other = found
    return same, left_out, other


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("put", often(PUTS, *OFTEN))
def test_a_write_that_is_left_out_or_another_is_not_the_same(
    put: str, mode: str, tmp_path: Path
) -> None:
    """Nothing reads what was written: it is left to later steps."""
    same, left_out, other = outcomes(tmp_path, mode, PUTS[put])
    assert same.exit_code == 0, same.headline
    assert left_out.exit_code == 1, left_out.headline
    assert other.exit_code == 1, other.headline


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("place", "reads"), [("argument", False), ("attribute", False), ("buffer", True)]
)
def test_so_it_is_wherever_the_cache_lies(
    place: str, reads: bool, mode: str, tmp_path: Path
) -> None:
    same, left_out, other = outcomes(tmp_path, mode, PUTS["narrow copy"], place, reads)
    assert (same.exit_code, left_out.exit_code, other.exit_code) == (0, 1, 1)


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("put", COPIES)
def test_what_is_written_into_a_copy_is_nobodys(put: str, mode: str, tmp_path: Path) -> None:
    same, left_out, _ = outcomes(tmp_path, mode, COPIES[put], "argument")
    assert same.passed and left_out.passed, left_out.headline


WRITES = {"copy", "add", "index_copy", "index_put", "setitem", "mul"}


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", ["eager", "aten"])
@pytest.mark.parametrize("place", ["buffer", "argument"])
@pytest.mark.parametrize("put", PUTS)
def test_the_write_that_was_left_out_is_named_and_not_what_reads_it_next(
    put: str, place: str, mode: str, tmp_path: Path
) -> None:
    golden = captured(tmp_path / "golden", mode, PUTS[put], place, reads=True)
    outcome = dumpcmp.compare(golden, captured(tmp_path / "mine", mode, nothing, place, reads=True))
    root = outcome.first_divergence
    assert root is not None and plain_name(root.key.op.function) in WRITES, outcome.headline
    assert outcome.exit_code == 1 and "inputs are equal" not in outcome.headline
