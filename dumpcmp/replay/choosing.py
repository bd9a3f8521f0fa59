"""Ops that choose (topk, sort, argmax, comparisons, ...): whether the choice is right, and flips.

A choice is right where it is a right one for the scores that the target itself was given. Another
one than golden's is then a flip, and golden's margin says what explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.op_names import OpSet, OpTable, plain_name
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Choice
from dumpcmp.replay import deciding, selecting
from dumpcmp.replay.selecting import ChoiceRule, Selected, compared, selection, wrong_choice

Tensors = Mapping[str, Tensor]  # by slot
Ends = tuple[Tensors, Tensors]  # what one side was given, and what it gave out
Requested = Mapping[str, Any]  # arguments by name; tensors in them are {"slot": ...}


@dataclass(frozen=True, slots=True)
class _Selector:
    """An op that chooses along a dim: its parameters, its rule, and what it gives out."""

    names: tuple[str, ...]
    rule: ChoiceRule
    sign: int = 1  # larger scores are chosen, or smaller ones
    needs_dim: bool = False  # without a dim it gives out a value and no choice
    dim: int | None = -1  # that it chooses along where none is given
    gives_values: bool = True  # the values first, and then the indices
    ordered: bool = False  # the order of what is chosen matters


_DIM = ("input", "dim", "keepdim")
_SORT = ("input", "dim", "descending", "stable")
_SELECTORS: OpTable[_Selector] = OpTable(
    {
        "topk": _Selector(
            ("input", "k", "dim", "largest", "sorted"), selecting.topk_rule, ordered=True
        ),
        "sort": _Selector(_SORT, selecting.sort_rule, -1, ordered=True),
        "msort": _Selector(("input",), selecting.sort_rule, -1, dim=0, ordered=True),
        "argsort": _Selector(_SORT, selecting.sort_rule, -1, gives_values=False, ordered=True),
        "argmax": _Selector(_DIM, selecting.largest_rule, dim=None, gives_values=False),
        "argmin": _Selector(_DIM, selecting.smallest_rule, -1, dim=None, gives_values=False),
        "max": _Selector(_DIM, selecting.largest_rule, needs_dim=True),
        "min": _Selector(_DIM, selecting.smallest_rule, -1, needs_dim=True),
        "kthvalue": _Selector(("input", "k", "dim", "keepdim"), selecting.kthvalue_rule),
        "median": _Selector(_DIM, selecting.median_rule, needs_dim=True),
        "nanmedian": _Selector(_DIM, selecting.nanmedian_rule, needs_dim=True),
        "mode": _Selector(_DIM, selecting.mode_rule),
        "multinomial": _Selector(
            ("input", "num_samples", "replacement"), selecting.draw_rule, gives_values=False
        ),
    }
)
_SEARCHES = OpTable({"searchsorted": ("bounds", "numbers"), "bucketize": ("numbers", "bounds")})
_WHERE = OpSet("nonzero where argwhere")


def function_of_choice(call: Call) -> str:
    """The function of a call under torch's name for it, whatever level it was captured at."""
    return plain_name(call.op.function)


def chooses(call: Call, given: Mapping[str, object], got: Mapping[str, object]) -> bool:
    """Whether a call that has these slots may give out another choice of the same scores."""
    function = function_of_choice(call)
    if function in _SELECTORS:
        selector = _SELECTORS[function]
        asked = arguments_by_name(call, selector.names)
        takes_one = isinstance(asked.get("dim", 0), int | None)
        return takes_one and not (selector.needs_dim and len(got) < 2)
    if function == "where":  # of a condition alone: it lists places
        return len(arguments_by_name(call, ("condition", "input", "other"))) == 1
    names = (deciding.COMPARISONS, _SEARCHES, _WHERE, deciding.ROUNDINGS, deciding.CASTS)
    return any(function in each for each in names) and "input.0" in given


def arguments_by_name(call: Call, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a call by their names, as its JSON tells them."""
    told = argument_tree(call)
    given = zip(names, told.get("args", ()), strict=False)
    return {**dict(given), **told.get("kwargs", {})}


def choice_of(
    call: Call, given: Tensors, got: Tensors, golden_given: Tensors, golden_got: Tensors
) -> Choice | None:
    """What the target's `call` chose from what it was `given`, beside golden's choice.

    `given` and `got` are the target's tensors by slot, the others golden's; where golden's are not
    known the choice is judged all the same, and has no flips. None where the call does not choose.
    """
    if not chooses(call, given, got):
        return None
    found = _choice(call, (given, got), (golden_given, golden_got))
    return found and replace(found, only_follows=_only_follows(given, golden_given))


def _only_follows(given: Tensors, golden: Tensors) -> bool:
    """Whether integers alone were chosen from, and they were others on golden's side."""
    if any(tensor.is_floating_point() or tensor.is_complex() for tensor in given.values()):
        return False
    return not all(slot in golden and torch.equal(t, golden[slot]) for slot, t in given.items())


def _choice(call: Call, *sides: Ends) -> Choice | None:
    function = function_of_choice(call)
    if function in _SELECTORS:
        return _selected(_SELECTORS[function], call, *sides)
    if function in deciding.COMPARISONS:
        return _compared(call, function, *sides)
    if function in _SEARCHES:
        return _searched(call, function, *sides)
    if function in _WHERE:
        return _found(*sides)
    return _rounded(function, *sides)


def _selected(selector: _Selector, call: Call, target: Ends, golden: Ends) -> Choice | None:
    if selector.gives_values and not {"output.0", "output.1"} <= set(target[1]):
        return None  # values without their places are numbers like others
    asked = arguments_by_name(call, selector.names)
    chosen = _selection(selector, asked, target)
    if chosen.indices.shape[0] != chosen.scores.shape[0]:  # as ranks were laid together otherwise
        raise CheckError(
            f"it chose in {chosen.indices.shape[0]} rows, and was given {chosen.scores.shape[0]}"
        )
    wrong = wrong_choice(chosen, selector.rule, asked)
    found = Choice(num_rows=chosen.scores.shape[0])
    if _has(golden, target):
        ordered = selector.ordered and bool(asked.get("sorted", True))
        found = compared(
            _selection(selector, asked, golden),
            chosen,
            ordered=ordered,
            sign=_sign(selector, asked),
        )
    return replace(found, wrong=wrong)


def _sign(selector: _Selector, asked: Requested) -> int:
    if "descending" in selector.names:
        return 1 if asked.get("descending", False) else -1
    return selector.sign if asked.get("largest", True) else -selector.sign


def _selection(selector: _Selector, asked: Requested, side: Ends) -> Selected:
    given, got = side
    dim = asked.get("dim", selector.dim)
    values = got["output.0"] if selector.gives_values else None
    indices = got["output.1" if selector.gives_values else "output.0"]
    return selection(given["input.0"], dim, indices, values)


def _has(golden: Ends, target: Ends) -> bool:
    """Whether golden's values are known as well, slot by slot."""
    return all(
        set(theirs) <= set(ours) and bool(theirs)
        for ours, theirs in zip(golden, target, strict=True)
    )


def _compared(call: Call, function: str, target: Ends, golden: Ends) -> Choice:
    wrong = deciding.compared_numbers(function, _sides(call, target[0]), target[1]["output.0"])
    found = Choice(num_rows=target[1]["output.0"].numel())
    if _has(golden, target):
        sides = _sides(call, golden[0]), _sides(call, target[0])
        found = deciding.crossed(*sides, golden[1]["output.0"], target[1]["output.0"])
    return replace(found, wrong=wrong)


def _sides(call: Call, given: Tensors) -> list[deciding.Number]:
    """What a comparison compares: tensors, or the numbers among its arguments."""
    asked = arguments_by_name(call, ("input", "other"))
    first = asked.get("input", asked.get("self"))
    return [_number(side, given) for side in (first, asked.get("other"))]


def _number(told: Any, given: Tensors) -> deciding.Number:
    if isinstance(told, dict):
        return float(told["float"]) if "float" in told else given[told["slot"]]
    assert isinstance(told, int | float), "torch compares tensors and numbers"
    return told


def _searched(call: Call, function: str, target: Ends, golden: Ends) -> Choice:
    names = _SEARCHES[function]
    asked = arguments_by_name(call, names)
    wanted = {
        "bounds": ("bounds", "sorted_sequence", "boundaries"),
        "numbers": ("numbers", "input"),
    }

    def both(side: Ends) -> tuple[Tensor, Tensor]:
        told = {k: next(asked[n] for n in names if n in asked) for k, names in wanted.items()}
        first, second = (torch.as_tensor(_number(told[k], side[0])) for k in wanted)
        return first, second

    sorter = asked.get("sorter")
    known = {**asked, "sorter": target[0][sorter["slot"]] if isinstance(sorter, dict) else None}
    got = target[1]["output.0"]
    wrong = deciding.bounded(known, *both(target), got)
    found = Choice(num_rows=got.numel())
    if _has(golden, target) and known["sorter"] is None:
        sides = both(golden), both(target)
        found = deciding.crossed_boundaries(*sides, golden[1]["output.0"], got)
    return replace(found, wrong=wrong)


def _rounded(function: str, target: Ends, golden: Ends) -> Choice | None:
    given, got = target[0]["input.0"], target[1]["output.0"]
    keeps = function in deciding.CASTS and got.dtype.is_floating_point
    if keeps or not given.dtype.is_floating_point:
        return None
    wrong = deciding.rounded_numbers(function, given, got)
    found = Choice(num_rows=got.numel())
    if _has(golden, target):
        sides = golden[0]["input.0"], given
        found = deciding.crossed_whole(function, *sides, golden[1]["output.0"], got)
    return replace(found, wrong=wrong)


def _found(target: Ends, golden: Ends) -> Choice:
    """Of nonzero: the places that are listed are those of the mask, in order."""
    mask = target[0]["input.0"] != 0
    wrong = (
        "" if torch.equal(_places(target[1]), mask.nonzero()) else "the places listed are not so"
    )
    ours = golden[0].get("input.0")
    if ours is None or ours.shape != mask.shape:
        return Choice(wrong, mask.numel())
    theirs = target[0]["input.0"].double()
    margins = selecting.apart(ours.double(), torch.zeros(()))
    found = deciding.flipped(
        (ours != 0).long(), mask.long(), margins, selecting.apart(ours.double(), theirs)
    )
    return replace(found, wrong=wrong)


def _places(got: Tensors) -> Tensor:
    """The places that nonzero gave out, as one table: it may give them dim by dim."""
    listed = [got[slot] for slot in sorted(got, key=lambda slot: int(slot.rpartition(".")[2]))]
    return listed[0] if listed[0].ndim > 1 else torch.stack(listed, 1)
