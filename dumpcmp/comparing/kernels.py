"""Names the ops that a fused kernel computes together with the one that a divergence is seen at."""

from __future__ import annotations

from dataclasses import replace

from dumpcmp.comparing.blame import Blamed
from dumpcmp.comparing.side import Side
from dumpcmp.nouns.key import Op, Site
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Row


def with_suspects(blamed: Blamed, target: Side) -> Blamed:
    """`blamed`, the reason of each root told with what its kernel does besides."""
    told = {id(root): _told(root, target) for root in blamed.roots}
    rows = tuple(told.get(id(row), row) for row in blamed.rows)
    return Blamed(rows, tuple(told[id(root)] for root in blamed.roots))


def _told(root: Row, target: Side) -> Row:
    call = target.call_of(root.target_key) if root.target_key else None
    suspects = _suspects(call, target) if call and not root.key.slot.is_gradient else []
    if call is None or not suspects:
        return root
    also = f"{call.kernel} computes it together with {', '.join(suspects)}"
    reason = f"{root.judgement.reason}; {also}: dump with --realize to tell them apart"
    return replace(root, judgement=replace(root.judgement, reason=reason))


def _suspects(call: Call, target: Side) -> list[str]:
    """The ops in the kernel of `call` that store nothing, so that their results are not known."""
    known = {key.site for key in target.listing.values if key.slot.startswith("output")}
    places = [
        Site(call.model, call.step, Op(op), int(number))
        for op, _, number in (origin.rpartition("#") for origin in call.origins)
    ]
    return [f"{place.op}#{place.call}" for place in places if place not in known]
