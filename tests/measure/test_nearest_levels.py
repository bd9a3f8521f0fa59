"""Whether a tensor is another one, rounded to levels: in groups, and to each of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.quantised import affine, normal, short, symmetric
from dumpcmp.judge.replaying import is_unbiased
from dumpcmp.judge.tolerances import QUANTISED
from dumpcmp.measure.nearest_levels import quantised_from
from dumpcmp.nouns.value import value_of


def weight() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(96, 128, generator=draw) * torch.exp(torch.randn(96, 1, generator=draw) / 3)


def group_of(golden: Tensor, target: Tensor, word: str) -> str:
    found = quantised_from(value_of(golden), value_of(target), QUANTISED[word])
    return found.group if found else ""


@pytest.mark.parametrize(
    ("encode", "size", "most", "word", "group"),
    [
        (symmetric, 128, 127, "int8", "each row"),
        (symmetric, 96 * 128, 127, "int8", "the whole"),
        (affine, 128, 255, "int8", "each row"),
        (symmetric, 32, 7, "int4", "groups of 32"),
        (affine, 64, 15, "int4", "groups of 64"),
        (normal, 64, 1, "nf4", "groups of 64"),
        (short, 128, 448, "fp8", "groups of 16"),  # they have scales that are smaller, too
    ],
)
def test_levels_are_found(
    encode: Callable[..., object], size: int, most: int, word: str, group: str
) -> None:
    golden = weight()
    codes = encode(golden, size, most)
    target = codes.dequantised(golden.shape, golden.dtype)  # type: ignore[attr-defined]
    assert group_of(golden, target, word) == group
    other = "int4" if word != "int4" else "int8"
    assert not group_of(golden, target, other)


def test_columns_have_scales_too() -> None:
    golden = weight()
    codes = symmetric(golden.T.contiguous(), 96, 127)
    target = codes.dequantised(golden.T.shape, golden.dtype).T.contiguous()
    assert group_of(golden, target, "int8") == "each column"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda golden, target: target * 1.01,
        lambda golden, target: target.roll(1, 0),
        lambda golden, target: golden + 1e-4 * torch.sin(golden * 1e5),  # near, and on no levels
        lambda golden, target: target.index_fill(0, torch.tensor([5]), 0.0),
        lambda golden, target: torch.where(target == target.max(), -target, target),
        lambda golden, target: torch.where(target == target.max(), torch.nan, target),
        lambda golden, target: golden * 1.002,
    ],
)
def test_what_is_off_is_not_on_levels(spoil: Callable[[Tensor, Tensor], Tensor]) -> None:
    golden = weight()
    target = symmetric(golden, 128, 127).dequantised(golden.shape, golden.dtype)
    assert group_of(golden, target, "int8")
    assert not group_of(golden, spoil(golden, target), "int8")


def test_in_a_short_dtype_levels_are_rounded_once_more() -> None:
    golden = weight().bfloat16()
    target = symmetric(golden, 128, 127).dequantised(golden.shape, torch.bfloat16)
    assert group_of(golden, target, "int8") == "each row"


def test_vectors_integers_and_other_shapes_are_none() -> None:
    golden = weight()
    assert not group_of(golden[0], golden[0], "int8")
    assert not group_of(golden, golden.to(torch.int32), "int8")
    assert not group_of(golden, golden[:1], "int8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_of_levels_makes_numbers_smaller(dtype: torch.dtype) -> None:
    golden = torch.randn(256, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    target = normal(golden, 64, 1).dequantised(golden.shape, dtype)
    found = quantised_from(value_of(golden), value_of(target), QUANTISED["nf4"])
    assert found is not None and found.gain < -0.004
    assert is_unbiased(found)


def test_few_large_elements_are_larger_or_smaller_by_chance() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(40):
        columns = torch.exp(2 * torch.randn(64, generator=draw))
        golden = torch.randn(24, 64, generator=draw) * columns
        target = short(golden, golden.numel(), 448).dequantised(golden.shape, golden.dtype)
        found = quantised_from(value_of(golden), value_of(target), QUANTISED["fp8"])
        assert found is not None and is_unbiased(found)
        larger = quantised_from(value_of(golden), value_of(1.05 * target), QUANTISED["fp8"])
        assert larger is None or not is_unbiased(larger)


def test_tokens_that_hardly_differ_are_off_alike() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(40):
        golden = torch.randn(64, generator=draw) + 0.001 * torch.randn(48, 64, generator=draw)
        target = short(golden, golden.numel(), 448).dequantised(golden.shape, golden.dtype)
        found = quantised_from(value_of(golden), value_of(target), QUANTISED["fp8"])
        assert found is not None and is_unbiased(found)


def test_few_elements_show_no_levels_of_short_floats() -> None:
    golden = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    assert group_of(golden, golden * (1 + 2.0**-23), "fp8") == ""


@pytest.mark.parametrize("shape", [(65, 32), (256, 128)])
def test_numbers_without_gaps_are_no_short_floats(shape: tuple[int, int]) -> None:
    golden = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02
    rounded = quantised_from(value_of(golden), value_of(golden.bfloat16()), QUANTISED["fp8"])
    assert rounded is None
    scale = golden.abs().max() / 448
    short = ((golden / scale).to(torch.float8_e4m3fn).float() * scale).bfloat16()
    assert quantised_from(value_of(golden), value_of(short), QUANTISED["fp8"]) is not None
