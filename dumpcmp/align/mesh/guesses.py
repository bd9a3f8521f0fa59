"""Layouts to begin with where nobody knows any, on either side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dumpcmp.align.mesh.regions import Shard
from dumpcmp.align.mesh.unshard import Plan, plan_unshard
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import Mesh, parse_layout


def guesses(shards: Sequence[Shard]) -> Iterator[Plan]:
    """Layouts over one axis of all ranks: shards of each dim, merged parts, partial terms."""
    mesh = Mesh((("ranks", len(shards)),))
    for text in _sentences(len(shards[0].shape)):
        layout = parse_layout(text)
        said = [replace(s, layout=layout.placed(mesh, n)) for n, s in enumerate(shards)]
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
