"""Terms of a gradient that takers with copies have stand apart; those of another stage do not."""

import pytest

from dumpcmp.align.gradient_terms import without_terms
from dumpcmp.align.listing import Listing
from dumpcmp.align.partners import Partners
from dumpcmp.align.renaming import Renaming
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Pair

MADE, *TAKEN = (
    Key("M", 0, op, 0, slot)
    for op, slot in (("a/f", "grad_output.0"), ("b/g", "grad_input.0"), ("c/h", "grad_input.0"))
)


def _run(digests: tuple[str, ...], last_rank: int = 0) -> Listing:
    ranks = (0, 0, last_rank)
    return Listing(
        {
            key: (Record(key, n, "float32", (2,), digest=digest, rank=rank),)
            for n, (key, digest, rank) in enumerate(
                zip((MADE, *TAKEN), digests, ranks, strict=True)
            )
        }
    )


@pytest.mark.parametrize("last_rank, apart", [(0, set(TAKEN)), (1, set(TAKEN[:1]))])
def test_terms_stand_apart_on_the_ranks_that_have_the_whole(
    last_rank: int, apart: set[Key]
) -> None:
    golden, target = _run(("1", "1", "1")), _run(("1", "2", "3"), last_rank)
    links = {
        key: tuple(
            Record(key, r.order, r.dtype, r.shape, digest="1", same_as=MADE) for r in records
        )
        for key, records in golden.values.items()
        if key != MADE
    }
    golden = Listing({**golden.values, **links})
    sides = Partners(golden, target, Renaming(), {site: site for site in target.sites})
    found = list(without_terms(sides, [Pair(key, key) for key in (MADE, *TAKEN)]))
    assert {pair.target for pair in found if pair.golden is None} == apart
