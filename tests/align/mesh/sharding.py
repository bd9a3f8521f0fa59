"""The inverse of unsharding: what each rank holds of a whole value."""

import numpy as np

from dumpcmp.align.mesh.regions import Shard, indices
from dumpcmp.nouns.layouts import Layout, Mesh, Mode
from dumpcmp.nouns.value import Value

Shares = list[tuple[Shard, Value]]


def shard(whole: Value, layout: Layout, mesh: Mesh) -> Shares:
    """What each rank of `mesh` holds of `whole`.

    Terms of a partial value are an arbitrary split of it: all of it on the first rank.
    """
    layout = layout.expanded(len(whole.shape))
    summed = [p.axis for p in layout.over if p.mode is Mode.PARTIAL]
    shares = []
    for rank in range(mesh.num_ranks):
        mine = layout.placed(mesh, rank)
        bits = whole.bits
        for n, dim in enumerate(layout.dims):
            bits = bits.take(indices(dim, whole.shape[n], mine.at(dim.axes)), axis=n)
        if any(c.index for c in mine.at(summed)):
            bits = np.zeros_like(bits)
        shares.append((Shard(rank, bits.shape, mine), Value(whole.dtype, bits)))
    return shares
