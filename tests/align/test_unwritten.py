"""Memory that nobody has written: it is written where as many elements are put as there are."""

from __future__ import annotations

import pytest

from dumpcmp.align.listing import Listing
from dumpcmp.align.unwritten import unwritten
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.row import Unwritten

MADE = Key("M", 0, "a/empty", 0, "output.0")


@pytest.mark.parametrize("rows, left", [(6, Unwritten.NO), (4, Unwritten.PARTLY)])
def test_memory_is_written_where_as_much_is_put_as_there_is(rows: int, left: Unwritten) -> None:
    into, places, put, result = (
        Key("M", 0, "a/setitem", 0, s) for s in ("input.0", "input.1", "input.2", "output.0")
    )
    values = {
        MADE: (Record(MADE, 0, "float32", (6, 2)),),
        into: (Record(into, 1, "float32", (6, 2), same_as=MADE),),
        places: (Record(places, 2, "int64", (rows,)),),
        put: (Record(put, 3, "float32", (rows, 2)),),
        result: (Record(result, 4, "float32", (6, 2)),),
    }
    calls = [
        Call("M", 0, Op(f"a/{name}"), 0, n, name) for n, name in ((0, "empty"), (1, "setitem"))
    ]
    found = unwritten(Listing(values, {call.site: call for call in calls}))
    assert found[MADE] is Unwritten.WHOLLY
    assert found.get(result, Unwritten.NO) is left
