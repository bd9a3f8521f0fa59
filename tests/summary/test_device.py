"""Laws of summaries taken by torch: the same numbers as those taken on the host."""

import math

import numpy as np
import pytest
import torch

from dumpcmp.nouns.value import Portion, value_of
from dumpcmp.summary.gpu.device import Summariser
from dumpcmp.summary.packing import Reduction, unpack
from dumpcmp.summary.summary import RAW_LIMIT, Recipe, Summary, summarise
from tests.summary.test_summary import sums_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.int64, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip
SHAPES = [(513,), (16_384,), (3, 40, 700), (129, 16_384)]
RECIPES = [Recipe(), Recipe(0), Recipe(256, 9, 3), Recipe(512, 0, 1, 16)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return str(request.param)


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(shape, generator=generator) * 3
    return (numbers.abs() if dtype is torch.uint8 else numbers).to(dtype)


def away(tensor: torch.Tensor, recipe: Recipe, reduction: Reduction | None = None) -> Summary:
    """The summary by the form that devices use, also for a tensor on the host."""
    row = Summariser(recipe, reduction)._away(tensor)
    return unpack(row.stored, row.numbers.cpu().numpy(), "", tuple(tensor.shape))


def alike(got: Summary, expected: Summary) -> None:
    for name in ("count", "num_nan", "num_posinf", "num_neginf", "num_zero", "whole", "recipe"):
        assert getattr(got, name) == getattr(expected, name), name
    for name in ("min", "max", "mean", "std", "norm", "sum", "sum_squares"):
        one, two = getattr(got, name), getattr(expected, name)
        assert one == pytest.approx(two, rel=1e-11, abs=1e-9, nan_ok=True), name
    if expected.sketch is not None:
        segments = zip(got.segments, expected.segments, strict=True)
        pairs = [(sums_of(got), sums_of(expected)), *((g.sums, e.sums) for g, e in segments)]
        for mine, its in pairs:
            assert torch.allclose(torch.tensor(mine), torch.tensor(its), 1e-11, 1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_device_takes_the_summary_that_the_host_takes(
    device: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = drawn(shape, dtype)
    alike(away(tensor.to(device), Recipe()), summarise(value_of(tensor)))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_any_recipe(device: str, recipe: Recipe) -> None:
    tensor = drawn((37, 2000), torch.float32)
    alike(away(tensor.to(device), recipe), summarise(value_of(tensor), recipe))


def test_short_floats_give_the_same_bits(device: str) -> None:
    tensor = drawn((64, 4096), torch.bfloat16)
    got, expected = away(tensor.to(device), Recipe()), summarise(value_of(tensor))
    assert (sums_of(got) == sums_of(expected)).all()


def called(summariser: Summariser, tensor: torch.Tensor) -> Summary:
    row = summariser(tensor)
    assert row is not None
    return unpack(row.stored, row.numbers.cpu().numpy(), "", tuple(tensor.shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_summariser_takes_many_tensors_of_one_shape(device: str, dtype: torch.dtype) -> None:
    summariser = Summariser(Recipe())
    for tensor in drawn((4, 3, 40, 700), dtype):
        alike(called(summariser, tensor.to(device)), summarise(value_of(tensor)))
        lying = tensor.to(device).transpose(0, 1).contiguous().transpose(0, 1)
        alike(called(summariser, lying), summarise(value_of(tensor)))


def test_a_known_shape_may_begin_anywhere_and_lie_anyhow(device: str) -> None:
    summariser, numbers = Summariser(Recipe()), drawn((300, 301), torch.bfloat16).to(device)
    room = torch.empty(90_301, dtype=torch.bfloat16, device=device)
    for tensor in (numbers, room[:90_300].view(300, 301), room[1:].view(300, 301)):
        tensor.copy_(numbers)
        alike(called(summariser, tensor), summarise(value_of(numbers.cpu())))
    weight = torch.nn.Parameter(numbers)
    alike(called(summariser, weight), summarise(value_of(numbers.cpu())))
    turned = drawn((301, 300), torch.bfloat16)
    alike(called(summariser, turned.to(device).t()), summarise(value_of(turned.t().contiguous())))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_streams_do_not_share_scratch_memory() -> None:
    summariser = Summariser(Recipe())
    tensors = [drawn((129, 16_384), torch.bfloat16).cuda() * n for n in range(1, 5)]
    streams = [torch.cuda.Stream() for _ in tensors]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    rows = []
    for _ in range(8):
        for tensor, stream in zip(tensors, streams, strict=True):
            with torch.cuda.stream(stream):
                rows.append((tensor, summariser(tensor)))
    torch.cuda.synchronize()
    for tensor, row in rows:
        assert row is not None
        got = unpack(row.stored, row.numbers.cpu().numpy(), "", tuple(tensor.shape))
        assert (sums_of(got) == sums_of(summarise(value_of(tensor.cpu())))).all()


def test_nonfinite_elements(device: str) -> None:
    tensor = drawn((3, 20_000), torch.float32)
    tensor[0, 5], tensor[1, 6], tensor[2, 7] = math.nan, math.inf, -math.inf
    alike(away(tensor.to(device), Recipe()), summarise(value_of(tensor)))
    lost = torch.full((600,), math.nan)
    alike(away(lost.to(device), Recipe()), summarise(value_of(lost)))


def test_strided_tensors_are_summarised_in_their_own_order(device: str) -> None:
    tensor = drawn((90, 70), torch.float32)
    expected = summarise(value_of(tensor.t().contiguous()))
    alike(away(tensor.to(device).t(), Recipe()), expected)


def test_the_host_takes_a_digest_and_small_tensors_stay_whole() -> None:
    row = Summariser(Recipe())(drawn((600,), torch.float32))
    assert row is not None
    assert row.digest == summarise(value_of(drawn((600,), torch.float32))).digest
    assert Summariser(Recipe())(torch.ones(RAW_LIMIT)) is None


def test_reductions_stay_on_the_device_and_cannot_harm(device: str) -> None:
    tensor = drawn((600,), torch.float32).to(device)
    kept = away(tensor, Recipe(), lambda x: {"top": x.abs().max(), "two": 2})
    assert kept.reduced == {"top": pytest.approx(float(tensor.abs().max())), "two": 2.0}
    broken = away(tensor, Recipe(), lambda x: x.nothing)
    assert broken.reduced == {} and "AttributeError" in broken.reduce_problem


PLACES = {
    "rows": (np.arange(20, 40), np.arange(90)),
    "columns": (np.arange(60), np.arange(0, 90, 3)),
    "both": (np.array([5, 4, 50]), np.arange(30, 90)),
}


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(256, 1, 2, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("where", PLACES)
def test_shards_are_keyed_on_their_whole(
    device: str, where: str, dtype: torch.dtype, recipe: Recipe
) -> None:
    dims = PLACES[where]
    shard = drawn(tuple(dim.size for dim in dims), dtype)
    portion = Portion((60, 90), dims)
    row = Summariser(recipe)._away(shard.to(device), portion)
    got = unpack(row.stored, row.numbers.cpu().numpy(), "", tuple(shard.shape))
    alike(got, summarise(value_of(shard), recipe, portion))
