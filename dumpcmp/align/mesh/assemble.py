"""Lays two values side by side whole, each from one record or from the shards of all ranks."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from dumpcmp.align.mesh.culprits import (
    about_ranks,
    about_whole,
    errors_of_ranks,
    likeliest,
    some_fit,
)
from dumpcmp.align.mesh.guesses import guesses
from dumpcmp.align.mesh.held import (
    AssemblyError,
    Held,
    LackingShardError,
    LostShardError,
    TermsError,
)
from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.solve import Question, Solved, solve, supposing
from dumpcmp.align.mesh.unshard import (
    Disagreement,
    Load,
    Plan,
    Whole,
    distance,
    plan_unshard,
    squares,
    unshard,
)
from dumpcmp.judge.tolerances import NEAREST
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.layouts import Layout, ReduceOp
from dumpcmp.nouns.row import Metrics
from dumpcmp.nouns.spoken import ranks_named
from dumpcmp.nouns.value import Kind, Value

_MOST_SCALED = 64  # ranks of which it is asked whether they hold a multiple
_NUMBERS = (Kind.FLOAT, Kind.COMPLEX)
_ACTIVATIONS = frozenset(("grad_input", "grad_output"))  # slots of their gradients
_SLACK = 1.1  # of sums of squares, which are rounded
_SAID = 3  # disagreements of replicas that an explanation quotes


class Basis(StrEnum):
    """What a whole value rests on, in the words of its note."""

    ALONE = ""  # one record is the value
    STATED = "layout"  # recorded, or declared by the user
    REPLICAS = "the same on"  # all ranks that have it
    SOLVED = "layout solved"  # from the other side's value
    SOME_FIT = "layout that some ranks fit"  # and the others are wrong
    CLOSEST = "closest layout"  # of those that do not fit
    ASSUMED = "layout of its like"
    GUESSED = "layout guessed"  # and the other side fits it
    BY_RANK = "compared rank by rank"  # as nobody knows a layout on either side


@dataclass(frozen=True, slots=True)
class Assembled:
    """A whole value, how it came about, and what was noticed on the way."""

    value: Value
    basis: Basis = Basis.ALONE
    note: str = ""  # the basis in words, for the row; empty where there was nothing to assemble
    disagreements: tuple[Disagreement, ...] = ()
    plan: Plan | None = None  # None where no layout was needed
    load: Load | None = None
    ranks: tuple[int, ...] = ()  # whose values were laid one upon the other, each for itself
    counts: tuple[int, ...] = ()  # of the elements that each of `ranks` has

    @property
    def layout(self) -> str:
        """The layout as a sentence; empty where none was needed."""
        return str(self.plan.layout) if self.plan else ""


def assemble(
    golden: Held,
    target: Held,
    limit: float,
    assumed: Layout | None = None,
    known: Layout | None = None,
) -> tuple[Assembled, Assembled]:
    """Both values whole. What neither layout nor user says is solved from the other side.

    `limit` is the relative error up to which a solved layout fits; `assumed` is the layout of a
    like value, taken where nothing fits; `known` is what the target's was found to be before. What
    a rank that stopped has no share of may be a term, where it is not golden's.
    """
    sides = _assembled(golden, target, limit, assumed, known)
    values = sides[0].value, sides[1].value
    is_whole = values[0].shape == values[1].shape
    for held in (golden, target):
        if held.lost and not is_whole:
            raise LostShardError(f"{held.lost}; what is there is no whole value")
        if held.lost and not held.slot.is_weight and distance(*values).rel_l2 > limit:
            raise LostShardError(f"{held.lost}; what is there may be a term of it")
    return sides


def _assembled(
    golden: Held, target: Held, limit: float, assumed: Layout | None, known: Layout | None
) -> tuple[Assembled, Assembled]:
    ours = _stated(golden)
    theirs = _stated(target, ours.value.shape if ours else None)
    ours = ours or _replicas(golden, theirs.value.shape if theirs else None)
    if ours is None and _is_of_some_laps(golden, target):
        lacking = set(range(len(golden.records))) - {record.rank for record in target.records}
        raise LackingShardError(f"golden runs it for every rank, {ranks_named(lacking)} not")
    if ours is None and theirs is None:
        return _jointly(golden, target, limit, assumed)
    if ours is None:
        assert theirs is not None
        return _solved(golden, _question(golden, golden.slot, theirs.value, limit)), theirs
    theirs = theirs or _replicas(target, ours.value.shape)
    if theirs is None:
        question = _question(target, golden.slot, ours.value, limit)
        theirs = _as_known(target, question, known) or _solved(target, question, assumed)
    return ours, theirs


def on_shared_ranks(golden: Held, target: Held, limit: float) -> tuple[Assembled, Assembled] | None:
    """Both values rank by rank where few ranks have one of them, if they agree there.

    Of runs on as many ranks one may do more, such as to log what it has. None where all have both,
    or somebody says how the value is laid out.
    """
    if not golden.facts.num_ranks == target.facts.num_ranks > 1 or golden.lost or target.lost:
        return None
    one, other = ({record.rank for record in held.records} for held in (golden, target))
    if one == other or any(record.layout for record in (*golden.records, *target.records)):
        return None
    ours, theirs = (_on(held, one & other) for held in (golden, target))
    shapes = [[record.shape for record in held.records] for held in (ours, theirs)]
    if not ours.records or shapes[0] != shapes[1] or any(s.layout.dims for s in ours.shards()):
        return None
    sides = _side_by_side(ours, theirs), _side_by_side(theirs, theirs)
    return sides if distance(sides[0].value, sides[1].value).rel_l2 <= limit else None


def _on(held: Held, ranks: Set[int]) -> Held:
    return replace(held, records=tuple(each for each in held.records if each.rank in ranks))


def _as_known(held: Held, question: Question, known: Layout | None) -> Assembled | None:
    """The value by a layout that was found before; several meshes may have two axes."""
    if known is None or "ranks0" in known.axes or not (plan := supposing(question, known)):
        return None
    return _by_plan(held, plan, Basis.SOLVED)


def explain(golden: Assembled, target: Assembled, metrics: Metrics, limit: float) -> str:
    """What a difference between the two looks like: factors, ranks, shards in wrong places."""
    said = [str(found) for found in target.disagreements if found.rel_l2 > limit][:_SAID]
    said += about_whole(golden.value, target.value, metrics.gain, limit)
    if target.plan and target.load and len(target.plan.shards) > 1:
        question = Question(golden.value, target.plan.shards, target.load, limit)
        said += about_ranks(question, target.plan)
    return "; ".join(said)


def by_rank(golden: Assembled, target: Assembled, limit: float) -> tuple[tuple[int, float], ...]:
    """How far each rank's shard is from golden's region for it."""
    if target.basis is Basis.BY_RANK:
        sides = zip(_by_themselves(golden), _by_themselves(target), strict=True)
        errors = [distance(*values).rel_l2 for values in sides]
        return tuple(zip(target.ranks, errors, strict=True))
    if target.plan is None or target.load is None or len(target.plan.shards) < 2:
        return ()
    question = Question(golden.value, target.plan.shards, target.load, limit)
    return errors_of_ranks(question, target.plan)


def _stated(held: Held, golden_shape: Shape | None = None) -> Assembled | None:
    """The value as its layouts say; None where they do not say all."""
    shards = held.shards()
    if len(shards) == 1 and not shards[0].layout.coordinates and not shards[0].layout.axes:
        return Assembled(held.load(held.records[0]))
    if not all(_is_said(shard) for shard in shards):
        return None
    plan = plan_unshard(shards, golden_shape)
    if plan.missing:
        lost = held.lost or "missing ranks: unknown"
        raise LostShardError(
            f"nobody holds {', '.join(plan.missing[:4])} of '{plan.layout}' ({lost})"
        )
    return _by_plan(held, plan, Basis.STATED)


def _is_said(shard: Shard) -> bool:
    said = shard.layout
    return bool(said.dims or not shard.shape) and bool(said.coordinates) and not said.open_axes


def _by_plan(
    held: Held, plan: Plan, basis: Basis, whole: Whole | None = None, detail: str = ""
) -> Assembled:
    whole = whole or unshard(plan, held.loader())
    note = f"{basis}{detail} '{plan.layout}'"
    return Assembled(whole.value, basis, note, whole.disagreements, plan, held.loader())


def _replicas(held: Held, shape: Shape | None) -> Assembled | None:
    """The value that all ranks hold alike, if they do and it has `shape`."""
    first = held.records[0]
    alike = all(record.digest == first.digest != "" for record in held.records)
    if not alike or (shape is not None and first.shape != shape):
        return None
    num_ranks = len({record.rank for record in held.records})
    note = f"{Basis.REPLICAS} {num_ranks} ranks" if num_ranks > 1 else ""
    return Assembled(held.load(first), Basis.REPLICAS, note)


def _question(held: Held, slot: Slot, golden: Value, limit: float) -> Question:
    kinds = {slot.kind, held.slot.kind}  # golden's may be the part that one function gave
    reduced = not kinds.isdisjoint(("grad", "param", "buffer", "rng"))  # or a fault, not a layout
    return Question(
        golden,
        held.shards(),
        held.loader(),
        limit,
        may_be_partial=golden.dtype.kind in _NUMBERS and not reduced,
        may_be_scaled=not _ACTIVATIONS.isdisjoint((slot.kind, held.slot.kind)) or held.is_backward,
        sample_dim=int(held.is_transposed),
    )


def _solved(held: Held, question: Question, assumed: Layout | None = None) -> Assembled:
    """The value by the layout that fits, or that explains it best; an error where none does."""
    found = solve(question, assumed)
    if isinstance(found, Solved):
        return _fitted(held, found)
    if summed := _if_summed(question):  # which is no accident, as some ranks that fit may be
        raise TermsError(summed)
    if plan := likeliest(question):
        return _by_plan(held, plan, Basis.SOME_FIT)
    if held.lost:
        raise LostShardError(f"{held.lost}; without it no layout fits; {found}")
    if plan := _multiple(question):
        return _by_plan(held, plan, Basis.CLOSEST)
    if found.closest and found.rel_l2 <= NEAREST:
        return _by_plan(held, found.closest, Basis.CLOSEST)
    plan = supposing(question, assumed) if assumed is not None else None
    if plan and (question.golden.dtype.kind in _NUMBERS or some_fit(question, plan)):
        return _by_plan(held, plan, Basis.ASSUMED)
    raise AssemblyError(str(found))


def added(held: Held, golden: Value, slot: Slot, limit: float) -> Assembled | None:
    """The value that `held` is once its terms are added up, if any layout gives golden's."""
    found = solve(_question(held, slot, golden, limit))
    return _fitted(held, found) if isinstance(found, Solved) else None


def _multiple(question: Question) -> Plan | None:
    """The layout by which the value is as many times golden's as there are shards, or that part."""
    golden, num = question.golden, len(question.shards)
    if golden.dtype.name not in ("float32", "float64") or not 1 < num <= _MOST_SCALED:
        return None
    for factor in (num, 1 / num):
        if _is_too_much(question, factor):
            continue
        found = solve(replace(question, golden=times(golden, factor), may_be_partial=False))
        if isinstance(found, Solved):
            return found.plan
    return None


def _is_too_much(question: Question, factor: float) -> bool:
    """Whether all shards together have not what makes `factor` times golden: no layout fits."""
    least = factor * max(0.0, 1 - question.limit)
    wanted = least**2 * squares(question.golden, question.golden)[1]
    shards = map(question.load, range(len(question.shards)))
    return wanted > _SLACK * sum(squares(shard, shard)[1] for shard in shards)


def times(value: Value, factor: float) -> Value:
    """`factor` times a value of float32 or float64."""
    return Value(value.dtype, (value.bits.astype(np.float64) * factor).astype(value.bits.dtype))


def _if_summed(question: Question) -> str:
    """Whether the ranks hold terms of what must be reduced, as gradients of parameters must."""
    number = question.golden.dtype.kind in _NUMBERS
    if question.may_be_partial or not number:
        return ""
    found = solve(replace(question, may_be_partial=True))
    if not isinstance(found, Solved):
        return ""
    is_mean = any(one.argument == ReduceOp.AVG for one in found.plan.layout.over)
    word = "mean" if is_mean else "sum"
    return f"each rank has its own term of it, and their {word} is golden's value"


def _fitted(held: Held, found: Solved) -> Assembled:
    detail = f" (rel_l2 {found.rel_l2:.1g})"
    return _by_plan(held, found.plan, Basis.SOLVED, found.whole, detail)


def _is_of_some_laps(golden: Held, target: Held) -> bool:
    """Whether golden has a value for each rank, and fewer ranks have one of that shape."""
    laps, shares = golden.shards(), target.shards()
    return (
        laps[0].layout.is_in_laps
        and len(shares) < len(laps)
        and {lap.shape for lap in laps} >= {share.shape for share in shares}
    )


def _jointly(
    golden: Held, target: Held, limit: float, assumed: Layout | None
) -> tuple[Assembled, Assembled]:
    """Two values whose layouts nobody knows: rank by rank, or by layouts that fit each other.

    Where none does, by the layout of a like value.
    """
    ours, theirs = golden.shards(), target.shards()
    beside = None
    if [s.shape for s in ours] == [s.shape for s in theirs] and len(ours) > 1:
        beside = _side_by_side(golden, target), _side_by_side(target, target)
        fits = distance(beside[0].value, beside[1].value).rel_l2 <= limit
        if fits or not ours[0].layout.is_in_laps:
            return beside
    likely: list[tuple[float, Plan, Plan]] = []
    for plan in guesses(ours):
        whole = unshard(plan, golden.loader())
        question = _question(target, golden.slot, whole.value, limit)
        found = solve(question)
        if isinstance(found, Solved):
            return _by_plan(golden, plan, Basis.GUESSED, whole), _fitted(target, found)
        if assumed is not None and (like := supposing(question, assumed)):
            error = distance(whole.value, unshard(like, target.loader()).value).rel_l2
            likely.append((error, plan, like))
    if ours[0].layout.is_carried:
        last = Assembled(golden.load(golden.records[-1]), Basis.GUESSED, "the last lap")
        found = solve(_question(target, golden.slot, last.value, limit))
        if isinstance(found, Solved):
            return last, _fitted(target, found)
        raise AssemblyError("golden carries it from lap to lap, and each rank begins anew")
    if beside is not None:
        return beside
    if not likely:
        raise AssemblyError(
            "no layout is known on either side, and none fits both: state one with --layout"
        )
    _, plan, like = min(likely, key=lambda one: one[0])
    return _by_plan(golden, plan, Basis.GUESSED), _by_plan(target, like, Basis.ASSUMED)


def _side_by_side(held: Held, target: Held) -> Assembled:
    """What each rank has, one upon the other; in one line where some have more than others."""
    values = [held.load(record) for record in held.records]
    bits = [value.bits for value in values]
    is_even = len({value.shape for value in values}) == 1
    laid = np.stack(bits) if is_even else np.concatenate([each.reshape(-1) for each in bits])
    ranks = tuple(record.rank for record in target.records)
    counts = tuple(value.numel for value in values)
    whole = Value(values[0].dtype, laid)
    return Assembled(whole, Basis.BY_RANK, Basis.BY_RANK, ranks=ranks, counts=counts)


def _by_themselves(beside: Assembled) -> list[Value]:
    """The elements of each rank, of values that were laid one upon the other."""
    line = beside.value.line()
    ends = np.cumsum(beside.counts)[:-1]
    return [Value(line.dtype, bits) for bits in np.split(line.bits, ends)]
