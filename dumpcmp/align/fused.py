"""The pass for compiled targets: what a fused kernel keeps to itself, and values seen before.

A compiled run tells of every op in its graphs, also of those that no kernel stores: such a call
has the kernel's name and no values. What golden holds of it is not missing, it is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.pair import Pair
from dumpcmp.nouns.row import PairedBy

_INNER = ("inner", "grad_inner")  # slots of what an op computes on its way, with fusion off


def by_provenance(
    pairs: Sequence[Pair], golden: Listing, target: Listing, kernel_of: Callable[[Pair], str]
) -> Iterator[Pair]:
    """`pairs`, with what a compiled target explains of them.

    What golden had before, such as a module's output, is laid beside the partner of its first
    appearance. `kernel_of` names the kernel in which the target computes the call of a pair, and
    is empty for what was not compiled.
    """
    both = [(pair.golden, pair.target) for pair in pairs if pair.golden and pair.target]
    partners = {golden.first(ours): theirs for ours, theirs in reversed(both)}
    for pair in pairs:
        kernel = kernel_of(pair)
        if pair.target is not None:
            by = PairedBy.PROVENANCE if kernel and pair.by is PairedBy.KEY else pair.by
            by = PairedBy.TWIN if target.record(pair.target).is_twin else by
            inner = pair.golden is None and pair.target.slot.kind in _INNER
            yield replace(pair, by=by, inside=kernel if inner else "")
            continue
        assert pair.golden is not None
        origin = golden.first(pair.golden)
        partner = partners.get(origin)
        if partner is not None:
            twin = target.record(partner).is_twin
            yield replace(pair, target=partner, by=PairedBy.TWIN if twin else PairedBy.PROVENANCE)
        else:
            yield replace(pair, inside=kernel_of(replace(pair, golden=origin)) or kernel)
