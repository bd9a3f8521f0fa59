"""Two tensors are one quantity if each element is, whatever a mask puts beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.shadows.fingerprints import (
    SAME,
    fingerprint,
    numbers_rounded_to,
    same,
    same_elements,
)

FILLINGS = (torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min, -1e9, -1e4)


def scores(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 4, 12, 12, generator=generator, dtype=torch.float64)


def masked(share: float, filling: float) -> Tensor:
    hidden = torch.rand(12, 12, generator=torch.Generator().manual_seed(9)) < share
    return torch.where(hidden, filling, torch.zeros((), dtype=torch.float64))


def are_same(one: Tensor, other: Tensor) -> tuple[bool, bool]:
    return same_elements(one, other), fingerprint(one).is_same(fingerprint(other))


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("share", [0.05, 0.4, 0.6, 0.95])
def test_what_a_mask_hides_does_not_hide_the_rest(share: float, filling: float) -> None:
    mask = masked(share, filling)
    one = scores() + mask
    assert are_same(one, scores() * (1 + 1e-14) + mask) == (True, True)
    assert are_same(one, scores() * (1 + 1e-6) + mask) == (False, False)
    assert are_same(one, scores(1) + mask) == (False, False)


@pytest.mark.parametrize("filling", FILLINGS)
def test_the_mask_itself_is_seen(filling: float) -> None:
    one = scores() + masked(0.6, filling)
    assert are_same(one, scores() + masked(0.61, filling)) == (False, False)
    assert are_same(one, scores() + masked(0.6, filling * 1.01)) == (False, False)
    assert are_same(masked(0.6, filling), masked(0.6, filling).flip(0)) == (False, False)


def test_zeros_that_were_computed_are_zeros() -> None:
    noise = torch.eye(12, dtype=torch.float64) + 1e-16 * scores()[0, 0]
    assert are_same(torch.eye(12, dtype=torch.float64), noise) == (True, True)


class Attending(nn.Module):
    """Scores that a mask hides in part, as Hugging Face's models write it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.heads, self.last, self.scale = nn.Linear(8, 24), nn.Linear(8, 4), scale

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.heads(x).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) * self.scale
        seen: Tensor = self.last((scores + mask).softmax(-1) @ value)
        return seen


def attended(path: Path, scale: float, filling: float, more: int) -> Path:
    torch.manual_seed(0)
    model = Attending(scale)
    mask = torch.full((12, 12), filling).triu(1)
    mask[:, 4 : 4 + more] = filling
    with dumpcmp.capture(model, path), torch.no_grad():
        model(torch.randn(2, 12, 8), mask)
    return path


@pytest.mark.parametrize("filling", [torch.finfo(torch.float32).min, -1e9])
@pytest.mark.parametrize("more", [0, 4])
def test_a_fault_in_what_is_masked_is_found(filling: float, more: int, tmp_path: Path) -> None:
    golden = attended(tmp_path / "golden", 0.5, filling, more)
    outcome = dumpcmp.compare(golden, attended(tmp_path / "mine", 0.6, filling, more))
    assert outcome.exit_code == 1, outcome.word
    first = outcome.first_divergence
    assert first is not None
    assert first.key.op == "<root>/mul"


@pytest.mark.parametrize(
    "dtypes, apart",
    [
        (("float64", "", "int8", "nonsense", "float8_e4m3fn"), SAME),
        (("float32",), 2.0**-20),
        (("float16", "float32"), 2.0**-7),
        (("bfloat16",), 2.0**-7),
    ],
)
def test_what_an_archive_says_of_its_numbers_lets_little_be_the_same(
    dtypes: tuple[str, ...], apart: float
) -> None:
    with numbers_rounded_to(dtypes):
        assert same() == apart
    assert same() == SAME
