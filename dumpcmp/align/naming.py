"""The passes by names: calls of one name and number are partners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dumpcmp.align.beside import laid_beside, left_values, paired_values
from dumpcmp.align.cuttings import apart, cut_gradients, is_cut
from dumpcmp.align.gradient_terms import without_terms
from dumpcmp.align.kindred import by_order
from dumpcmp.align.partners import Partners
from dumpcmp.align.recomputing import computed_again
from dumpcmp.align.renaming import unwrapped
from dumpcmp.align.sweeping import Sweep
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.record import Phase
from dumpcmp.nouns.row import Pair, PairedBy
from dumpcmp.nouns.value import dtype_named

_ROUNDS = 4  # by flow and by order in turn, while either finds partners
Naming = Callable[[Op], str | None]  # what an op is to be called in a pass; None leaves it out


def by_names(sides: Partners) -> list[Pair]:
    """Pair by names first, and by the flow from there on.

    The ranks of a partitioned run hold shards, whose shapes and bytes tell little: what a call
    takes is known by the calls that gave it.
    """
    _by_name(sides, PairedBy.MAPPING, sides.renaming.renamed, unwrapped)
    _by_name(sides, PairedBy.KEY, sides.unmapped, lambda op: op)
    _by_name(sides, PairedBy.PREFIX, lambda op: sides.unmapped(op) and unwrapped(op), unwrapped)
    sweep = Sweep.of(sides)
    for _ in range(_ROUNDS):
        found = len(sides.taken)
        sweep.run()
        by_order(sides, sweep)
        if len(sides.taken) == found:
            break
    sweep.settle()
    _by_name(sides, PairedBy.KEY, sides.golden_name, unwrapped, same_number=False)
    cut = cut_gradients(sides)
    whole = apart(sides, [*paired_values(sides, sweep), *left_values(sides)], cut)
    pairs = list(without_terms(sides, list(whole)))
    beside = zip(pairs, laid_beside(sweep, pairs), strict=True)
    placed = [old if is_cut(sides, new, cut) else new for old, new in beside]
    return computed_again(sides, list(_framed(sides, placed)))


def _by_name(
    sides: Partners,
    by: PairedBy,
    golden_name: Naming,
    target_name: Naming,
    same_number: bool = True,
) -> None:
    """Pair the calls that are left and have the same name, step and number.

    Where an op ran more often on one side, its numbers say nothing: `same_number` leaves such
    calls to their order among the others.
    """
    golden = _named(((site, site) for site in sides.golden_left()), golden_name)
    target = _named(((site, sides.terms[site]) for site in sides.target_left()), target_name)
    for name, calls in golden.items():
        others = target.get(name, {})
        if same_number and len(calls) != len(others):
            continue
        for number in calls.keys() & others.keys():
            if len(calls[number]) != 1 or len(others[number]) != 1:
                continue
            golden_call, target_call = calls[number][0], others[number][0]
            if same_number or _give_alike(sides, golden_call, target_call):
                sides.pair(golden_call, target_call, by)


def _give_alike(sides: Partners, golden: Site, target: Site) -> bool:
    """Whether two calls give out numbers of one kind: a name alone makes none of integers."""
    ours, theirs = (
        [
            dtype_named(listing.record(key).dtype).kind
            for key in listing.sites[site]
            if _is_made(key)
        ]
        for listing, site in ((sides.golden, golden), (sides.target, target))
    )
    return not ours or not theirs or ours == theirs


def _is_made(key: Key) -> bool:
    return key.slot.is_output and not key.op.is_module


def _named(
    sites: Iterable[tuple[Site, Site]], name: Naming
) -> dict[tuple[str, int, str], dict[int, list[Site]]]:
    """Calls by (model, step, name) and by their number; each is given with its terms."""
    found: dict[tuple[str, int, str], dict[int, list[Site]]] = {}
    for site, terms in sites:
        op = name(terms.op)
        if op is not None:
            calls = found.setdefault((terms.model, terms.step, op), {})
            calls.setdefault(terms.call, []).append(site)
    return found


def _framed(sides: Partners, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """`pairs`; values that stand alone and only frame others, beside the partners of those.

    A module computes nothing itself: what it takes and gives are values of the functions in it, so
    a side that shows no modules has them all the same. A wrapper shows its module's values again,
    and what a function adds to a parameter's gradient is that gradient where it is the only one.
    A piece that golden alone cuts, such as the rows of one expert, may be paired where it is taken.
    """
    both = [pair for pair in reversed(pairs) if pair.both]
    ours = {sides.golden.first(pair.golden): pair.target for pair in both if pair.golden}
    theirs = {sides.target.first(pair.target): pair.golden for pair in both if pair.target}
    for pair in pairs:
        golden, target = pair.golden, pair.target
        if golden and not target and (_frames(golden) or _is_piece(sides, golden)):
            target = ours.get(sides.golden.first(golden))
        elif target and not golden and _frames(target):
            golden = theirs.get(sides.target.first(target))
        framed = golden is not pair.golden or target is not pair.target
        yield Pair(golden, target, PairedBy.VALUE) if framed else pair


def _frames(key: Key) -> bool:
    return key.op.is_module or key.slot.is_gradient


def _is_piece(sides: Partners, key: Key) -> bool:
    """Whether it is one of several values that a function of the forward pass gave out."""
    call = sides.golden.calls.get(key.site)
    if not key.slot.is_output or call is None or call.phase is not Phase.FORWARD:
        return False
    return sum(other.slot.is_output for other in sides.golden.sites[key.site]) > 1
