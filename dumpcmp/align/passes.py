"""The passes for special runs: what kernels of compiled targets keep, and what collectives move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from dumpcmp.align.listing import Listing
from dumpcmp.align.mesh.deliveries import collective_keys, is_collective, source_of
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.row import Pair, PairedBy

_INNER = ("inner", "grad_inner")  # slots of what an op computes on its way, with fusion off


def by_provenance(
    pairs: Sequence[Pair], golden: Listing, target: Listing, kernel_of: Callable[[Pair], str]
) -> Iterator[Pair]:
    """`pairs`, with what a compiled target explains of them.

    A compiled run tells of every op in its graphs, also of those that no kernel stores: such a
    call has the kernel's name and no values. What golden holds of it is not missing, it is fused.
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
            laid = pair.by is PairedBy.VALUE and not pair.key.op.is_module  # calls are no partners
            by = PairedBy.TWIN if target.record(pair.target).is_twin and not laid else by
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


def with_collectives(pairs: Sequence[Pair], golden: Listing, target: Listing) -> list[Pair]:
    """`pairs` and, where they ran, the values of the target's and golden's collectives.

    A collective does not change the whole value, so its partner is golden's value before it.
    """
    partner = {pair.target: pair.golden for pair in pairs if pair.target and pair.golden}
    own = any(is_collective(site, golden) for site in golden.sites)
    moved: dict[Site | None, list[Pair]] = defaultdict(list)  # by the model's call before them
    ran = {pair.target.site for pair in pairs if pair.target}
    before: Site | None = None
    for site, keys in target.sites.items():
        before = site if site in ran else before
        for key in keys if is_collective(site, target) else ():
            beside = _own(key, golden) if own else _source(key, target, partner)
            moved[before].append(Pair(beside, key, PairedBy.COLLECTIVE))
            if beside is not None:
                partner[key] = beside  # another collective may take it from here
    taken = {pair.golden for some in moved.values() for pair in some}
    last = {pair.target.site: pair for pair in pairs if pair.target}
    placed = list(moved.pop(None, []))
    for pair in pairs:
        placed.append(pair)
        site_here = pair.target.site if pair.target else None
        if site_here is not None and last[site_here] is pair:
            placed += moved.pop(site_here, [])
    alone = [key for key in collective_keys(golden) if key not in taken]
    return [*placed, *(Pair(key, None, PairedBy.COLLECTIVE) for key in alone)]


def _own(key: Key, golden: Listing) -> Key | None:
    """Golden's value of the same collective, where that is a value and not only its parts."""
    return key if key in golden.values and Collective(key.op.function).keeps_shape else None


def _source(key: Key, target: Listing, partner: Mapping[Key, Key]) -> Key | None:
    """Golden's partner of the value that was moved."""
    source = source_of(key, target)
    return partner.get(source) if source else None
