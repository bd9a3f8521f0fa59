"""Lays two values side by side whole, each from one record or from the shards of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dumpcmp.align.mesh.culprits import describe, likeliest
from dumpcmp.align.mesh.declared import Declarations, on_mesh
from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.solve import Question, Solved, Unsolved, solve, supposing
from dumpcmp.align.mesh.unshard import Disagreement, Load, Plan, plan_unshard, unshard
from dumpcmp.nouns.dtypes import Kind
from dumpcmp.nouns.errors import AlignError, LayoutError
from dumpcmp.nouns.layouts import Layout, Mesh, complete, parse_layout, placed
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.value import Value

_NEAR = 0.1  # rel_l2 below which the closest layout is the right one, and the values are wrong


class AssemblyError(AlignError):
    """Shards that do not become a whole value, and why: the row is inconclusive."""


@dataclass(frozen=True)
class RunFacts:
    """What assembling needs to know of a run besides the records of a value."""

    num_ranks: int = 1
    missing_ranks: tuple[int, ...] = ()
    declared: Declarations = field(default_factory=Declarations)


@dataclass(frozen=True, slots=True)
class Held:
    """What the ranks of one run hold of a value, and how to read it."""

    records: tuple[Record, ...]
    load: Callable[[Record], Value]
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def slot(self) -> str:
        """The slot that the value is in."""
        return self.records[0].key.slot

    def shards(self) -> list[Shard]:
        """Each rank's share with all that is known of its layout: recorded, then declared."""
        whole = self.facts.num_ranks == 1  # what users declare speaks of partitioned runs
        declared = None if whole else self.facts.declared.layout_of(self.records[0].key)
        return [self._shard(record, declared) for record in self.records]

    def _shard(self, record: Record, declared: Layout | None) -> Shard:
        layout = parse_layout(record.layout)
        if declared is not None:
            layout = complete(declared.expanded(len(record.shape)), layout)
            mesh, num_ranks = self.facts.declared.mesh, self.facts.num_ranks
            layout = on_mesh(layout, mesh, num_ranks, record.rank)
        return Shard(record.rank, record.shape, layout, record.digest)

    def loader(self) -> Load:
        """Reads the shard at a position."""
        return lambda position: self.load(self.records[position])


@dataclass(frozen=True, slots=True)
class Assembled:
    """A whole value, how it came about, and what was noticed on the way."""

    value: Value
    note: str = ""  # empty where there was nothing to assemble
    layout: str = ""
    disagreements: tuple[Disagreement, ...] = ()
    plan: Plan | None = None
    load: Load | None = None


def assemble(
    golden: Held, target: Held, limit: float, assumed: Layout | None = None
) -> tuple[Assembled, Assembled]:
    """Both values whole. What neither layout nor user says is solved from the other side.

    `limit` is the relative error up to which a solved layout fits; `assumed` is the layout of a
    like value, taken where nothing fits.
    """
    ours, theirs = _stated(golden), _stated(target)
    ours = ours or _replicas(golden, theirs.value.shape if theirs else None)
    if ours is None and theirs is None:
        return _jointly(golden, target, limit)
    if ours is None:
        assert theirs is not None
        return _solved(golden, _question(golden, golden.slot, theirs.value, limit)), theirs
    theirs = theirs or _replicas(target, ours.value.shape)
    question = _question(target, golden.slot, ours.value, limit)
    return ours, theirs or _solved(target, question, assumed)


def explain(golden: Assembled, target: Assembled, limit: float) -> str:
    """What a difference between the two looks like: factors, ranks, shards in wrong places."""
    said = [str(found) for found in target.disagreements if found.rel_l2 > limit]
    ranks = describe(golden.value, target.value, target.plan, target.load, limit)
    return "; ".join([*said[:3], *([ranks] if ranks else [])])


def _stated(held: Held) -> Assembled | None:
    """The value as its layouts say; None where they do not say all."""
    shards = held.shards()
    if len(shards) == 1 and not shards[0].layout.place and not shards[0].layout.axes:
        return Assembled(held.load(held.records[0]))
    if not all(_is_said(shard) for shard in shards):
        return None
    plan = plan_unshard(shards)
    _check_complete(held, plan)
    whole = unshard(plan, held.loader())
    return _assembled(held, plan, whole.value, "layout", whole.disagreements)


def _is_said(shard: Shard) -> bool:
    layout = shard.layout
    return bool(layout.dims or not shard.shape) and bool(layout.place) and not layout.open_axes


def _assembled(
    held: Held,
    plan: Plan,
    value: Value,
    how: str,
    disagreements: tuple[Disagreement, ...] = (),
) -> Assembled:
    layout = str(plan.layout)
    return Assembled(value, f"{how} '{layout}'", layout, disagreements, plan, held.loader())


def _replicas(held: Held, shape: Shape | None) -> Assembled | None:
    """The value that all ranks hold alike, if they do and it has `shape`."""
    first = held.records[0]
    alike = all(record.digest == first.digest != "" for record in held.records)
    if not alike or (shape is not None and first.shape != shape):
        return None
    ranks = sorted({record.rank for record in held.records})
    note = f"the same on {len(ranks)} ranks" if len(ranks) > 1 else ""
    return Assembled(held.load(first), note, "replicated")


def _check_complete(held: Held, plan: Plan) -> None:
    if plan.missing:
        lost = ", ".join(map(str, held.facts.missing_ranks)) or "unknown"
        raise AssemblyError(
            f"nobody holds {', '.join(plan.missing[:4])} of '{plan.layout}' (missing ranks: {lost})"
        )


def _question(held: Held, slot: str, golden: Value, limit: float) -> Question:
    reduced = slot.startswith(("grad.", "param.", "buffer.", "rng."))  # or a fault, not a layout
    return Question(
        golden,
        held.shards(),
        limit,
        may_be_partial=golden.dtype.kind in (Kind.FLOAT, Kind.COMPLEX) and not reduced,
        may_be_scaled=slot.startswith(("grad_input", "grad_output")),
    )


def _solved(held: Held, question: Question, assumed: Layout | None = None) -> Assembled:
    found = solve(question, held.loader(), assumed)
    if isinstance(found, Solved):
        return _fitted(held, found)
    return _unsolved(held, question, found, assumed)


def _fitted(held: Held, found: Solved) -> Assembled:
    note = f"layout solved (rel_l2 {found.rel_l2:.1g})"
    return _assembled(held, found.plan, found.whole.value, note, found.whole.disagreements)


def _unsolved(held: Held, question: Question, found: Unsolved, assumed: Layout | None) -> Assembled:
    """What nothing fits, by the layout that explains it best; an error where none does."""
    load = held.loader()
    plan, how = likeliest(question, load), "layout that some ranks fit"
    if plan is None and held.facts.missing_ranks:
        lost = ", ".join(map(str, held.facts.missing_ranks))
        raise AssemblyError(f"without rank {lost} no layout fits; {found}")
    if plan is None and found.rel_l2 <= _NEAR:
        plan, how = supposing(question, parse_layout(found.closest)), "closest layout"
    if plan is None and assumed is not None:
        plan, how = supposing(question, assumed), "layout of its like"
    if plan is None:
        raise AssemblyError(str(found))
    whole = unshard(plan, load)
    return _assembled(held, plan, whole.value, how, whole.disagreements)


def _jointly(golden: Held, target: Held, limit: float) -> tuple[Assembled, Assembled]:
    """Two values whose layouts nobody knows: rank by rank, or by layouts that fit each other."""
    ours, theirs = golden.shards(), target.shards()
    if [s.shape for s in ours] == [s.shape for s in theirs] and len(ours) > 1:
        return _side_by_side(golden), _side_by_side(target)
    for plan in _guesses(ours):
        whole = unshard(plan, golden.loader())
        solved = solve(_question(target, golden.slot, whole.value, limit), target.loader())
        if isinstance(solved, Solved):
            ours_whole = _assembled(
                golden, plan, whole.value, "layout guessed", whole.disagreements
            )
            return ours_whole, _fitted(target, solved)
    raise AssemblyError(
        "no layout is known on either side, and none fits both: state one with --layout"
    )


def _side_by_side(held: Held) -> Assembled:
    values = [held.load(record) for record in held.records]
    stacked = Value(values[0].dtype, np.stack([value.bits for value in values]))
    return Assembled(stacked, "compared rank by rank", "ranks")


def _guesses(shards: Sequence[Shard]) -> Iterator[Plan]:
    """Layouts over one axis of all ranks: shards of each dim, merged parts, partial terms."""
    ndim = len(shards[0].shape)
    mesh = Mesh((("ranks", len(shards)),))
    for text in _sentences(ndim):
        layout = parse_layout(text)
        said = [replace(s, layout=placed(layout, mesh, n)) for n, s in enumerate(shards)]
        try:
            plan = plan_unshard(said)
        except LayoutError:
            continue
        if not plan.missing:
            yield plan


def _sentences(ndim: int) -> Iterator[str]:
    names = [f"d{n}" for n in range(ndim)]
    for word in ("{}[ranks]", "(a b)[ranks:interleaved]", "(a b c)[ranks:interleaved]"):
        for n in range(ndim):
            yield " ".join([*names[:n], word.format(names[n]), *names[n + 1 :]])
    yield " ".join(names) + "[ranks:partial]"
