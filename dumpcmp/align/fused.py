"""The pass for compiled targets: what a fused kernel keeps to itself, and values seen before.

A compiled run tells of every op in its graphs, also of those that no kernel stores: such a call
has the kernel's name and no values. What golden holds of it is not missing, it is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dumpcmp.nouns.key import Key

if TYPE_CHECKING:
    from dumpcmp.align.match import Match

BY = "provenance"
_INNER = ("inner.", "grad_inner.")  # slots of what an op computes on its way, with fusion off


def by_provenance(
    matches: Sequence[Match],
    first: Callable[[Key], Key],
    kernel_of: Callable[[Match], str],
    seen_in: Callable[[Key], str],
) -> Iterator[Match]:
    """`matches`, with what a compiled target explains of them.

    `first` gives the first appearance in golden of a value: what golden had before, such as a
    module's output, is laid beside the partner of that. `kernel_of` names the kernel in which
    the target computes the call of a match, and is empty for what was not compiled. `seen_in`
    says which of the target's values were stored by the twin of a kernel.
    """
    paired = [(m.golden, m.target) for m in matches if m.golden and m.target]
    partners = {first(golden): target for golden, target in reversed(paired)}
    for match in matches:
        kernel = kernel_of(match)
        if match.target is not None:
            by = seen_in(match.target) or (BY if kernel and match.by == "key" else match.by)
            inner = match.golden is None and match.target.slot.startswith(_INNER)
            yield replace(match, by=by, inside=kernel if inner else "")
            continue
        assert match.golden is not None
        origin = first(match.golden)
        if origin in partners:
            yield replace(match, target=partners[origin], by=seen_in(partners[origin]) or BY)
        else:
            yield replace(match, inside=kernel_of(replace(match, golden=origin)) or kernel)
