"""Choices along a dim of scores (topk, sort, argmax, kthvalue, ...): right ones, and flips.

A choice is right where it is one that torch's own words allow for the scores: ties fall either
way, and NaN stands where torch puts it. Nothing is forgiven here, and no tolerance is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.replay import Choice, Flip
from dumpcmp.nouns.spoken import counted

SHOWN = 8  # flips that a Choice tells one by one, and indices that a Flip tells

ChoiceRule = Callable[["Selected", Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Selected:
    """Scores as rows, and what was chosen in each: indices, and the values where they were given.

    `ranks` are the scores by their order alone: equal scores have equal ranks, NaN the largest.
    """

    scores: Tensor  # [rows, n]
    indices: Tensor  # [rows, k]
    values: Tensor | None  # [rows, k]
    outer: tuple[int, ...]  # dims of the scores without the one that is chosen from

    @property
    def size(self) -> int:
        """How many there are to choose from in a row."""
        return self.scores.shape[1]

    @property
    def ranks(self) -> Tensor:
        """The scores as integers in the same order."""
        ordered, places = self.scores.sort(dim=1)
        new = ordered[:, 1:] != ordered[:, :-1]
        new &= ~(ordered[:, 1:].isnan() & ordered[:, :-1].isnan())
        dense = torch.zeros_like(places)
        dense[:, 1:] = new.cumsum(1)
        return torch.empty_like(places).scatter_(1, places, dense)

    def row(self, number: int) -> tuple[int, ...]:
        """The index of a row in the scores as they were given."""
        return place(number, self.outer)


def place(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element that is the `number`th of a tensor of `shape`."""
    found: list[int] = []
    for size in reversed(shape):
        number, index = divmod(number, size)
        found.append(index)
    return tuple(reversed(found))


def selection(scores: Tensor, dim: int | None, indices: Tensor, values: Tensor | None) -> Selected:
    """What was chosen along `dim` of `scores`, or of all of them, as rows."""
    if dim is None or not scores.ndim:
        flat = scores.reshape(1, -1)
        listed = None if values is None else values.reshape(1, -1)
        return Selected(flat, indices.reshape(1, -1), listed, ())
    dim %= scores.ndim
    outer = tuple(n for i, n in enumerate(scores.shape) if i != dim)

    def rows(chosen: Tensor) -> Tensor:
        whole = chosen if chosen.ndim == scores.ndim else chosen.unsqueeze(dim)
        return whole.movedim(dim, -1).reshape(-1, whole.shape[dim])

    return Selected(rows(scores), rows(indices), None if values is None else rows(values), outer)


# Whether a choice is right


def wrong_choice(chosen: Selected, rule: ChoiceRule, asked: Mapping[str, Any]) -> str:
    """Why `chosen` is no right choice; empty where it is."""
    if not chosen.indices.numel():
        return ""
    if said := _out_of_range(chosen):
        return said
    return _other_values(chosen) or rule(chosen, asked)


def _out_of_range(chosen: Selected) -> str:
    bad = (chosen.indices < 0) | (chosen.indices >= chosen.size)
    return _said(chosen, bad, f"is none of the {chosen.size} that there are")


def _other_values(chosen: Selected) -> str:
    if chosen.values is None:
        return ""
    if chosen.values.shape != chosen.indices.shape:
        return "gives out as values another shape than as indices"
    taken = chosen.scores.gather(1, chosen.indices)
    same = (taken == chosen.values) | (taken.isnan() & chosen.values.isnan())
    return _said(chosen, ~same, "does not have the value that is given out with it")


def _repeated(chosen: Selected) -> str:
    ordered, places = chosen.indices.sort(dim=1)
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    bad = torch.zeros_like(again).scatter_(1, places, again)
    return _said(chosen, bad, "is taken twice")


def _said(chosen: Selected, bad: Tensor, what: str) -> str:
    """A sentence on the first of the `bad` choices; empty where there is none."""
    if not bad.any():
        return ""
    row, column = (int(i) for i in bad.nonzero()[0])
    more = int(bad.any(1).sum()) - 1
    also = f"; so in {counted(more, 'more row')}" if more else ""
    index = int(chosen.indices[row, column])
    return f"in row {list(chosen.row(row))} index {index} {what}{also}"


def topk_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:
    """The k largest or smallest, each once, in order unless order was not asked for."""
    if chosen.indices.shape[1] != asked.get("k", chosen.indices.shape[1]):
        return f"takes {chosen.indices.shape[1]} and not {asked['k']} of each row"
    sign = 1 if asked.get("largest", True) else -1
    ranks = sign * chosen.ranks
    taken = ranks.gather(1, chosen.indices)
    left = ranks.scatter(1, chosen.indices, torch.iinfo(ranks.dtype).min).amax(1, keepdim=True)
    worse = "is taken though one that is left out stands before it"
    said = _repeated(chosen) or _said(chosen, taken < left, worse)
    return said or (_disorder(chosen, taken) if asked.get("sorted", True) else "")


def _disorder(chosen: Selected, taken: Tensor) -> str:
    bad = torch.zeros_like(taken, dtype=torch.bool)
    bad[:, 1:] = taken[:, 1:] > taken[:, :-1]
    return _said(chosen, bad, "stands behind one that it should stand before")


def sort_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:
    """Each index once, in order; equal scores in the order of their indices if it is stable."""
    if chosen.indices.shape[1] != chosen.size:
        return f"orders {chosen.indices.shape[1]} of {chosen.size}"
    sign = 1 if asked.get("descending", False) else -1
    taken = sign * chosen.ranks.gather(1, chosen.indices)
    said = _repeated(chosen) or _disorder(chosen, taken)
    if said or not asked.get("stable", False):
        return said
    bad = torch.zeros_like(taken, dtype=torch.bool)
    bad[:, 1:] = taken[:, 1:] == taken[:, :-1]
    bad[:, 1:] &= chosen.indices[:, 1:] < chosen.indices[:, :-1]
    return _said(chosen, bad, "stands behind an equal one of a higher index in a stable sort")


def largest_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:  # noqa: ARG001
    """One that nothing exceeds; NaN exceeds everything."""
    ranks = chosen.ranks
    bad = ranks.gather(1, chosen.indices) < ranks.amax(1, keepdim=True)
    return _said(chosen, bad, "is not where the largest score is")


def smallest_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:  # noqa: ARG001
    """One that exceeds nothing; NaN comes before everything here, too."""
    ranks = chosen.ranks.masked_fill(chosen.scores.isnan(), -1)
    bad = ranks.gather(1, chosen.indices) > ranks.amin(1, keepdim=True)
    return _said(chosen, bad, "is not where the smallest score is")


def _nth(chosen: Selected, ranks: Tensor, number: Tensor) -> str:
    taken = ranks.gather(1, chosen.indices)
    before, upto = (ranks < taken).sum(1, True), (ranks <= taken).sum(1, True)
    bad = (before >= number) | (upto < number)
    return _said(chosen, bad, "is not where the score of that place in the order is")


def kthvalue_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:
    """The kth smallest."""
    return _nth(chosen, chosen.ranks, torch.tensor(asked.get("k", 1)))


def median_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:  # noqa: ARG001
    """The lower of the two in the middle, or a NaN where there is one."""
    odd = chosen.scores.isnan()
    middle = torch.full_like(chosen.indices, (chosen.size + 1) // 2)
    number = torch.where(odd.any(1, keepdim=True), chosen.size, middle)
    return _nth(chosen, chosen.ranks, number)


def nanmedian_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:  # noqa: ARG001
    """The same, of those that are numbers."""
    count = (~chosen.scores.isnan()).sum(1, True)
    return _nth(chosen, chosen.ranks, torch.where(count == 0, chosen.size, (count + 1) // 2))


def mode_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:  # noqa: ARG001
    """One that nothing is more frequent than."""
    ranks = chosen.ranks
    counts = torch.zeros_like(ranks).scatter_add_(1, ranks, torch.ones_like(ranks))
    taken = counts.gather(1, ranks.gather(1, chosen.indices))
    bad = taken < counts.amax(1, keepdim=True)
    return _said(chosen, bad, "does not have the most frequent score")


def draw_rule(chosen: Selected, asked: Mapping[str, Any]) -> str:
    """What can be drawn at all: of a weight above zero, and without replacement only once."""
    bad = ~(chosen.scores.gather(1, chosen.indices) > 0)
    said = _said(chosen, bad, "is drawn with a probability of zero")
    return said or ("" if asked.get("replacement", False) else _repeated(chosen))


# Where two choices differ


def compared(golden: Selected, target: Selected, *, ordered: bool, sign: int) -> Choice:
    """The rows in which the target chose otherwise than golden, with golden's margins there.

    `sign` is 1 where larger scores are chosen or stand first, -1 where smaller ones do; `ordered`
    says whether the order of what is chosen was asked for.
    """
    num_rows = target.scores.shape[0]
    if golden.scores.shape != target.scores.shape or golden.indices.shape != target.indices.shape:
        return Choice(num_rows=num_rows)
    rows = (golden.indices != target.indices).any(1).nonzero()[:, 0]
    if not rows.numel():
        return Choice(num_rows=num_rows)
    ours, theirs = golden.indices[rows], target.indices[rows]
    scores = golden.scores[rows].double()
    margins = _swapped(scores, ours, theirs, sign)
    if ordered:
        margins = torch.maximum(margins, _inverted(scores, theirs, sign))
    noises = apart(scores, target.scores[rows].double()).amax(1)
    flips = (
        Flip(target.row(int(rows[i])), *_taken(ours[i], theirs[i]), float(margins[i]), float(n))
        for i, n in ((i, noises[i]) for i in least_explained(margins, noises))
    )
    return Choice("", num_rows, rows.numel(), tuple(flips))


def _swapped(scores: Tensor, ours: Tensor, theirs: Tensor, sign: int) -> Tensor:
    """How far apart the scores are of what one side alone chose, at most; 0 where it is the same.

    Indices out of range were told already; here they are what is nearest to them.
    """
    last = scores.shape[1] - 1
    chosen = torch.zeros((2, *scores.shape), dtype=torch.bool)
    for mask, indices in zip(chosen, (ours, theirs), strict=True):
        mask.scatter_(1, indices.clamp(0, last), True)
    left, new = chosen[0] & ~chosen[1], chosen[1] & ~chosen[0]
    kept = (sign * scores).masked_fill(~left, -torch.inf).amax(1)
    lost = (sign * scores).masked_fill(~new, torch.inf).amin(1)
    found = apart(kept, lost)
    return torch.where(left.any(1) & new.any(1), found, torch.zeros_like(found))


def _inverted(scores: Tensor, theirs: Tensor, sign: int) -> Tensor:
    """How much golden's scores, in the order of the target's choice, rise where they should not."""
    line = sign * scores.gather(1, theirs.clamp(0, scores.shape[1] - 1))
    lowest = line.cummin(1).values
    return torch.where(line > lowest, apart(line, lowest), torch.zeros_like(line)).amax(1)


def apart(one: Tensor, other: Tensor) -> Tensor:
    """The distance of numbers: 0 between equal infinities and between NaNs, else infinite."""
    same = (one == other) | (one.isnan() & other.isnan())
    far = (one - other).abs()
    return torch.where(same, 0.0, torch.where(far.isnan(), torch.inf, far))


def least_explained(margins: Tensor, noises: Tensor) -> list[int]:
    """The first few flips: those whose margin is the most of the noise, then the widest."""
    share = torch.where(margins == 0, 0.0, margins / noises)  # infinite where there is no noise
    wide = margins.argsort(descending=True, stable=True)
    order = wide[share[wide].argsort(descending=True, stable=True)]
    return [int(i) for i in order[:SHOWN]]


def _taken(ours: Tensor, theirs: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What golden alone and the target alone took; of the same in another order, what moved."""
    left, new = ours[~torch.isin(ours, theirs)], theirs[~torch.isin(theirs, ours)]
    if not (left.numel() or new.numel()):
        left, new = ours[ours != theirs], theirs[ours != theirs]
    return tuple(left[:SHOWN].tolist()), tuple(new[:SHOWN].tolist())
