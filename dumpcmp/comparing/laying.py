"""The step that lays pairs out: which ranks hold both sides, in what layout, and what to read.

A Task is as small as a worker needs: paths and Records.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dumpcmp.align.listing import Listing
from dumpcmp.align.pairing import pair_values
from dumpcmp.comparing.side import Shares, Side
from dumpcmp.comparing.ways import Ways
from dumpcmp.judge import RoundingChecker
from dumpcmp.judge.tolerances import FIT
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.layouts import RANKS, Layout, Mode, parse_layout
from dumpcmp.nouns.op_names import WorkSet
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.row import Closeness, Cut, DimOrder, LaidOut, Measured, Pair, PairedBy, Trouble
from dumpcmp.nouns.value import Kind, dtype_named

_NUMBER = re.compile(r"\d+")


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A pair to measure, and the reference that both may be held against. Equals itself only."""

    golden: Shares
    target: Shares
    closeness: Closeness
    reference: Shares | None = None
    limit: float = 0.0  # rel_l2 up to which a layout that nobody stated fits, and replicas agree
    assumed: Layout | None = None  # of a like value, where no layout fits
    also: tuple[Key, ...] = ()  # the target's modules that give the value once more
    known: Layout | None = None  # as measuring found it
    golden_part: Cut | None = None  # of a value that the other side has in several
    target_part: Cut | None = None
    turn: DimOrder | None = None  # the order in which the target's dims are golden's
    own: tuple[str, ...] = ()  # metrics that the user asks for besides
    is_beside: bool = False  # no calls are partners: the values only seem to be the same
    is_share: bool = False  # made of what other ranks have shares of, too, by ranks that are fewer
    on: str = "cpu"  # the device to measure on, and to run ops again on

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return self.golden.nbytes + self.target.nbytes

    @property
    def is_sampled(self) -> bool:
        """Whether some rows are all that is left of either side."""
        return self.golden.is_sampled or self.target.is_sampled

    @property
    def is_partitioned(self) -> bool:
        """Whether either side may be a share of a value."""
        return self.golden.is_partitioned or self.target.is_partitioned

    def of_rank(self, rank: int) -> Task:
        """The same of what one rank has."""
        return replace(self, golden=self.golden.of_rank(rank), target=self.target.of_rank(rank))


@dataclass(frozen=True, slots=True)
class Handover:
    """A value of a collective without a partner, to be checked by what the ranks gave to it."""

    path: Path
    keys: tuple[Key, ...]  # of one value: one for each microbatch
    nbytes: int = 0


Job = Task | Handover


def lay_out(
    pairs: Sequence[Pair],
    golden: Side,
    target: Side,
    finer: Side | None,
    ways: Ways,
    closeness: Closeness,
) -> dict[Pair, Job]:
    """The work on each pair; a value that repeats is measured where it first appears.

    Unless the user states how it lies where it appears again, or it may be a term in one of them.
    """
    partners = _partners(golden, finer) if finer else {}
    partitioned = golden.facts.num_ranks > 1 or target.facts.num_ranks > 1
    rule = RoundingChecker()
    work: dict[Pair, Job] = {}
    again = _given_again(pairs) if partitioned else {}
    for pair in pairs:
        if pair.golden is None or pair.target is None:
            if pair.by is PairedBy.COLLECTIVE:
                work[pair] = _handover(pair.key, target if pair.target else golden)
            continue
        if pair.repeats and not (
            golden.states(pair.golden)
            or target.states(pair.target)
            or (partitioned and _is_of_terms(pair, pair.repeats))
        ):
            continue
        other = partners.get(pair.golden)
        ours, theirs = golden.shares(pair.golden), target.shares(pair.target)
        in_shares = partitioned or ours.is_in_microbatches or theirs.is_in_microbatches
        work[pair] = Task(
            ours,
            theirs,
            closeness,
            Shares(finer.archive.path, finer.listing.values[other]) if finer and other else None,
            FIT * rule.limit(ways.conditions(pair)) if in_shares else 0.0,
            golden_part=pair.golden_part,
            target_part=pair.target_part,
            turn=pair.turn,
            is_beside=pair.by is PairedBy.VALUE,
            also=tuple(again.get(pair, ())),
            is_share=partitioned and _is_share(pair.target, target.listing),
        )
    return work


def _is_share(key: Key, listing: Listing) -> bool:
    """Whether some ranks alone run a call, on their shares of what others have shares of, too."""
    holders = {record.rank for record in listing.values[key]}
    if len(holders) == listing.num_ranks:
        return False
    taken = (other for other in listing.sites[key.site] if other.slot.kind == "input")
    origins = {origin for other in taken for origin in listing.origins(other)}
    return any(
        record.rank not in holders
        for origin in origins
        if not origin.slot.is_weight
        for record in listing.values.get(origin, ())
    )


def _given_again(pairs: Sequence[Pair]) -> dict[Pair, list[Key]]:
    """The modules that give what a pair is, as the op inside of them did."""
    found: dict[Pair, list[Key]] = defaultdict(list)
    for pair in pairs:
        if pair.repeats and pair.target and pair.target.op.is_module and pair.target.slot.is_output:
            found[pair.repeats].append(pair.target)
    return found


def _is_of_terms(pair: Pair, first: Pair) -> bool:
    """Whether terms of a sum, which may be right in one of the two places, are none in the other.

    A parameter's gradient must have been added up; what one call gave of it need not.
    """
    return pair.key.slot.is_parameter_gradient != first.key.slot.is_parameter_gradient


def _partners(golden: Side, finer: Side) -> dict[Key, Key]:
    """Golden's values and what they are in the reference."""
    pairs = pair_values(golden.listing, finer.listing)
    return {pair.golden: pair.target for pair in pairs if pair.golden and pair.target}


def _handover(key: Key, side: Side) -> Handover:
    keys = dict.fromkeys(record.key for record in side.listing.values[key])
    return Handover(side.archive.path, tuple(keys))


# Functions after which elements stand elsewhere, so that what is given tells not how they lie.
_REARRANGING = WorkSet(
    """
    argsort cat chunk embedding expand flatten flip gather getitem index index_add index_copy
    index_put index_select masked_select nonzero one_hot pad permute repeat repeat_interleave
    reshape roll scatter scatter_add setitem sort split split_with_sizes stack take topk transpose
    tril triu unbind unflatten unfold unique view
    """
)
# Functions that may drop elements of what they are given: what is left tells not how that lay.
_DROPPING = WorkSet("index_fill masked_fill masked_scatter mul where")
_Likeness = Callable[[Task], Sequence[Hashable]]  # what it has in common with others


def look_again(
    work: Mapping[Pair, Job], measured: Mapping[Pair, Measured], likeness: _Likeness
) -> dict[Pair, Task]:
    """The pairs that no layout fitted and that have a like one of a known layout: with that.

    Integers are left open but to their likes: what they count or point at may be a rank's own.
    """
    known: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for pair, task in work.items():
        laid = measured[pair].laid
        if isinstance(task, Task) and laid and (sentence := _said(task, laid)):
            for name in likeness(task):
                known[name][sentence] += 1
    again = {}
    for pair, task in work.items():
        if isinstance(task, Task) and measured[pair].trouble is Trouble.UNSOLVED:
            sentences = next((known[name] for name in likeness(task) if name in known), None)
            layout = parse_layout(sentences.most_common(1)[0][0]) if sentences else None
            is_number = dtype_named(task.golden.first.dtype).kind in (Kind.FLOAT, Kind.COMPLEX)
            may = is_number or likeness is _by_likes
            if layout is not None and layout != task.assumed and may:
                again[pair] = replace(task, assumed=layout)
    return again


def _said(task: Task, laid: LaidOut) -> str:
    """The layout of the target's value, also of what all ranks hold alike."""
    if laid.layout or not laid.is_replicated:
        return laid.layout
    dims = " ".join(f"d{n}" for n in range(len(task.golden.first.shape)))
    return f"{dims}[{RANKS}:{Mode.REPLICATED}]"


def _by_likes(task: Task) -> Sequence[Hashable]:
    """What lies in other layers and steps as it does; a module's output as what an op gave it."""
    return list(dict.fromkeys(map(like, (task.target.first.key, *task.also))))


def _by_value(task: Task) -> Sequence[Hashable]:
    """The same value, wherever the target takes it."""
    first = task.target.first
    return [first.same_as or first.key]


def _by_call(task: Task) -> Sequence[Hashable]:
    """What an op that keeps elements in their places was given, and gave, of one size."""
    key, shapes = task.target.first.key, (task.golden.first.shape, task.target.first.shape)
    function = key.op.function
    if key.op.is_module or function in _REARRANGING:
        return []
    if function in _DROPPING and key.slot.is_input:
        return []
    return [(key.site, key.slot.is_gradient, *shapes)]


LIKENESSES: tuple[_Likeness, ...] = (_by_likes, _by_value, _by_call)  # as they are asked


def like(key: Key) -> Key:
    """What `key` and its likes in other layers and steps have in common."""
    return replace(key, step=0, op=Op(_NUMBER.sub("*", key.op)))


def is_partial(laid: LaidOut) -> bool:
    """Whether the target's ranks hold terms of a sum."""
    return any(p.mode is Mode.PARTIAL for p in parse_layout(laid.layout).over)
