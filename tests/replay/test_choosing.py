"""A choice is right for the scores it was made from, or wrong; another than golden's is a flip."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Choice
from dumpcmp.replay.choosing import choice_of

NAN, INF = math.nan, math.inf


def called(function: str, *args: Any, **kwargs: Any) -> Call:
    """A call of `function` as a capture writes it down; its tensors are the arguments "x", "y"."""
    slots = {"x": {"slot": "input.0"}, "y": {"slot": "input.1"}}
    told = [slots.get(arg, arg) if isinstance(arg, str) else arg for arg in args]
    return Call(
        "M", 0, Op(f"m/{function}"), 0, 0, arguments=json.dumps({"args": told, "kwargs": kwargs})
    )


def slots(kind: str, *tensors: Tensor) -> dict[str, Tensor]:
    return {f"{kind}.{i}": tensor for i, tensor in enumerate(tensors)}


def chosen(call: Call, given: Tensor, *got: Tensor) -> Choice:
    """The choice that gave out `got`, beside nothing."""
    found = choice_of(call, slots("input", given), slots("output", *got), {}, {})
    assert found is not None
    return found


def between(call: Call, golden: Tensor, target: Tensor) -> Choice:
    """Both choices as torch makes them, of golden's scores and of the target's."""
    function = getattr(torch, call.op.function)
    told = json.loads(call.arguments)
    args, kwargs = told["args"][1:], told["kwargs"]

    def run(scores: Tensor) -> dict[str, Tensor]:
        got = function(scores, *args, **kwargs)
        return slots("output", *([got] if isinstance(got, Tensor) else got))

    sides = [(slots("input", scores), run(scores)) for scores in (target, golden)]
    found = choice_of(call, *sides[0], *sides[1])
    assert found is not None
    return found


CALLS = [
    called("topk", "x", 2, -1),
    called("topk", "x", 3, 0, False),
    called("topk", "x", k=2, sorted=False),
    called("sort", "x"),
    called("sort", "x", 0, True),
    called("sort", "x", stable=True, dim=0),
    called("argsort", "x", descending=True),
    called("argmax", "x", -1),
    called("argmax", "x"),
    called("argmin", "x", 0, True),
    called("max", "x", 1),
    called("min", "x", dim=0, keepdim=True),
    called("kthvalue", "x", 3),
    called("median", "x", 1),
    called("nanmedian", "x", dim=0),
    called("mode", "x", 1),  # the last: torch counts every NaN apart
]


def scores(kind: str, seed: int) -> Tensor:
    torch.manual_seed(seed)
    made = torch.randn(5, 6)
    match kind:
        case "ties":
            made = made.mul(2).round()
        case "nan":
            made[torch.rand(5, 6) < 0.2] = NAN
        case "inf":
            made[torch.rand(5, 6) < 0.3] = -INF
        case "bfloat16":
            made = made.bfloat16()
        case "integers":
            made = made.mul(3).long()
    return made


KINDS = ("plain", "ties", "inf", "bfloat16", "integers", "nan")
CASES = [(call, kind) for kind in KINDS for call in CALLS[: -1 if kind == "nan" else None]]


@pytest.mark.parametrize("call, kind", CASES, ids=[f"{c.op.function}-{kind}" for c, kind in CASES])
def test_what_torch_chooses_is_right_and_a_flip_is_within_twice_the_noise(
    call: Call, kind: str
) -> None:
    for seed in range(5):
        golden = scores(kind, seed)
        noise = torch.randn(golden.shape) * 0.2
        target = golden + (noise.round() if kind == "integers" else noise).to(golden.dtype)
        found = between(call, golden, target)
        assert found.wrong == ""
        assert found.num_flipped >= len(found.flips)
        if call.op.function != "mode":  # what is most frequent hangs on equality, not on size
            assert all(flip.margin <= 2 * flip.noise + 1e-12 for flip in found.flips)
        assert between(call, golden, golden).num_flipped == 0


ROW = torch.tensor([[0.1, 0.5, 0.3, 0.2]])


def taken(*indices: int) -> tuple[Tensor, Tensor]:
    places = torch.tensor([indices])
    return ROW.gather(1, places), places


@pytest.mark.parametrize(
    "call, got, said",
    [
        (called("topk", "x", 2), taken(1, 3), "left out stands before"),
        (called("topk", "x", 2), taken(2, 1), "stands behind one"),
        (called("topk", "x", 2), taken(1, 1), "taken twice"),
        (called("topk", "x", 2), (ROW[:, :2], torch.tensor([[1, 4]])), "none of the 4"),
        (called("topk", "x", 2), (ROW[:, 2:], torch.tensor([[1, 2]])), "does not have the value"),
        (called("topk", "x", 2, -1, False), taken(0, 2), "left out stands before"),
        (called("topk", "x", 2), taken(1, 2, 3), "takes 3 and not 2"),
        (called("sort", "x"), taken(0, 3, 1, 2), "stands behind one"),
        (called("sort", "x", -1, True), taken(1, 2, 3, 3), "taken twice"),
        (called("argsort", "x"), taken(0, 3, 1, 2)[1:], "stands behind one"),
        (called("argmax", "x", -1), (torch.tensor([2]),), "largest"),
        (called("argmin", "x", -1), (torch.tensor([3]),), "smallest"),
        (called("max", "x", 1), (torch.tensor([0.3]), torch.tensor([2])), "largest"),
        (called("kthvalue", "x", 2), (torch.tensor([0.3]), torch.tensor([2])), "of that place"),
        (called("median", "x", 1), (torch.tensor([0.3]), torch.tensor([2])), "of that place"),
        (called("multinomial", "x", 2), (torch.tensor([[1, 1]]),), "taken twice"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_told(call: Call, got: tuple[Tensor, ...], said: str) -> None:
    assert said in chosen(call, ROW, *got).wrong


def test_a_choice_that_cannot_be_drawn_is_wrong() -> None:
    weights = torch.tensor([[0.5, 0.0, 0.5]])
    assert (
        "probability of zero"
        in chosen(called("multinomial", "x", 1), weights, torch.tensor([[1]])).wrong
    )
    assert not chosen(called("multinomial", "x", 1), weights, torch.tensor([[2]])).wrong


def test_ties_may_fall_either_way_but_not_in_a_stable_sort() -> None:
    equal, order = torch.zeros(1, 3), torch.tensor([[2, 0, 1]])
    assert not chosen(called("sort", "x"), equal, equal, order).wrong
    said = chosen(called("sort", "x", stable=True), equal, equal, order).wrong
    assert "stable" in said
    golden = slots("input", equal), slots("output", equal, torch.tensor([[0, 1, 2]]))
    target = slots("input", equal), slots("output", equal, order)
    found = choice_of(called("sort", "x"), *target, *golden)
    assert found is not None and found.num_flipped == 1
    assert found.flips[0].is_tie and found.flips[0].golden == (0, 1, 2)


def test_a_flip_tells_the_row_the_experts_the_margin_and_the_noise() -> None:
    golden = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.30, 0.2, 0.4]])
    target = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.24, 0.25, 0.4]])
    found = between(called("topk", "x", 2), golden, target)
    (flip,) = found.flips
    assert (found.num_rows, found.num_flipped) == (2, 1)
    assert (flip.row, flip.golden, flip.target) == ((1,), (1,), (2,))
    assert flip.margin == pytest.approx(0.1, rel=1e-5)
    assert flip.noise == pytest.approx(0.06, rel=1e-5)


@pytest.mark.parametrize("function", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_comparisons_are_right_or_told(function: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    golden = torch.randn(40).mul(2).round().to(dtype)
    target = golden + torch.randn(40).mul(2).to(dtype)
    call = called(function, "x", 1)
    found = between(call, golden, target)
    assert found.wrong == "" and found.num_flipped
    assert all(flip.margin <= 2 * flip.noise for flip in found.flips)
    broken = getattr(torch, function)(target, 1).clone()
    broken[7] = ~broken[7]
    assert "the first at [7]" in chosen(call, target, broken).wrong


def test_a_comparison_of_two_tensors_has_the_noise_of_both() -> None:
    call, other = called("gt", "x", "y"), torch.tensor([1.0, 1.0])
    golden = slots("input", torch.tensor([1.1, 3.0]), other)
    target = slots("input", torch.tensor([1.1, 3.0]), torch.tensor([1.2, 1.0]))
    got = [slots("output", torch.gt(*side.values())) for side in (golden, target)]
    found = choice_of(call, target, got[1], golden, got[0])
    assert found is not None and found.num_flipped == 1
    assert found.flips[0].margin == pytest.approx(0.1, rel=1e-5)
    assert found.flips[0].noise == pytest.approx(0.2, rel=1e-5)


@pytest.mark.parametrize("function", ["floor", "ceil", "round", "trunc", "sign", "long"])
def test_roundings_flip_within_the_noise(function: str) -> None:
    torch.manual_seed(0)
    golden = torch.randn(200).mul(3)
    target = golden + torch.randn(200) * 0.1
    call = called(function, "x")
    got = [slots("output", getattr(side, function)()) for side in (golden, target)]
    found = choice_of(call, slots("input", target), got[1], slots("input", golden), got[0])
    assert found is not None and found.wrong == "" and found.num_flipped
    assert all(flip.margin <= 2 * flip.noise for flip in found.flips)
    broken = {"output.0": got[1]["output.0"] + 1}
    told = choice_of(call, slots("input", target), broken, {}, {})
    assert told is not None and "elements are not so" in told.wrong


def test_places_among_boundaries_flip_within_the_noise() -> None:
    torch.manual_seed(0)
    bounds, golden = torch.randn(9).sort().values, torch.randn(300)
    target = golden + torch.randn(300) * 0.05
    names = ("bucketize", "x", "y"), ("searchsorted", "y", "x")
    for call in (called(*name, right=True) for name in names):
        sides = [slots("input", each, bounds) for each in (target, golden)]
        got = [slots("output", torch.bucketize(e, bounds, right=True)) for e in (target, golden)]
        found = choice_of(call, sides[0], got[0], sides[1], got[1])
        assert found is not None and found.wrong == "" and found.num_flipped
        assert all(0 < flip.margin <= 2 * flip.noise for flip in found.flips)
        told = choice_of(call, sides[0], {"output.0": got[0]["output.0"] + 1}, {}, {})
        assert told is not None and told.wrong


def test_the_places_of_a_mask_are_listed_as_they_are() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    rows, columns = mask.nonzero(as_tuple=True)
    assert not chosen(called("where", "x"), mask, rows, columns).wrong
    assert not chosen(called("nonzero", "x"), mask, mask.nonzero()).wrong
    assert chosen(called("nonzero", "x"), mask, mask.nonzero().flip(0)).wrong


def test_a_mask_that_puts_numbers_lists_no_places() -> None:
    mask = torch.tensor([True, False])
    call = called("where", "x", 0.0, {"float": "-inf"})
    assert (
        choice_of(call, {"input.0": mask}, {"output.0": torch.where(mask, 0, -1)}, {}, {}) is None
    )


@pytest.mark.parametrize("call", [called("max", "x"), called("add", "x", "y"), called("to", "x")])
def test_what_chooses_nothing_is_no_choice(call: Call) -> None:
    assert choice_of(call, slots("input", ROW), slots("output", ROW), {}, {}) is None


def test_values_whose_places_nobody_stored_are_no_choice() -> None:
    scores = torch.randn(4, 8)
    call, taken = called("topk", "x", 2), slots("input", scores)
    values = slots("output", scores.topk(2).values)
    assert choice_of(call, taken, values, taken, values) is None


def test_choices_in_other_rows_than_there_were_scores_are_not_judged() -> None:
    with pytest.raises(CheckError, match="it chose in 2 rows, and was given 4"):
        chosen(called("argmax", "x", -1), torch.randn(4, 3), torch.tensor([0, 1]))
