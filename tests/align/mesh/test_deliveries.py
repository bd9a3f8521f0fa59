"""Laws of collectives: what each rank must get, from what all ranks gave."""

import json
from typing import Any

import numpy as np
import pytest

from dumpcmp.align.listing import Listing
from dumpcmp.align.mesh.deliveries import Traffic, is_collective, without_collectives
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.value import DTYPES, Value

Arrays = list[list[Any]]  # of each rank


def _traffic(
    name: str, given: Arrays, got: Arrays, words: dict[str, Any]
) -> tuple[Traffic, dict[Key, list[Record]]]:
    """`given` and `got`: for each rank its list of arrays."""
    site = Site("M", 0, Op(f"attn/{name}"), 0)
    values: dict[tuple[int, str], Value] = {}
    records: dict[Key, list[Record]] = {}
    for side, arrays in (("input", given), ("output", got)):
        for rank, mine in enumerate(arrays):
            for n, array in enumerate(mine):
                slot = f"{side}.{n}"
                values[rank, slot] = Value(DTYPES["float32"], np.asarray(array, np.float32))
                shape = values[rank, slot].shape
                record = Record(site.key(slot), 0, "float32", shape, rank=rank)
                records.setdefault(record.key, []).append(record)
    group = list(range(len(given)))
    arguments = json.dumps({"args": [], "kwargs": {"group": group, **words}})
    calls = {rank: {site: Call(*site, 0, arguments=arguments)} for rank in group}
    shards = lambda key: records.get(key, [])  # noqa: E731
    return Traffic(calls, shards, lambda r: values[r.rank, r.key.slot]), records


A, B = [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]
LAWS = [
    ("all_reduce", [[A], [B]], [[[11, 22, 33, 44]]] * 2, {"op": "sum"}),
    ("all_reduce", [[A], [B]], [[[5.5, 11, 16.5, 22]]] * 2, {"op": "avg"}),
    ("all_reduce", [[A], [B]], [[B]] * 2, {"op": "max"}),
    ("all_gather", [[A], [B]], [[A + B]] * 2, {}),
    ("all_gather", [[A], [B]], [[A, B]] * 2, {}),
    ("reduce_scatter", [[A], [B]], [[[11, 22]], [[33, 44]]], {"op": "sum"}),
    ("reduce_scatter", [[A, B], [B, A]], [[[11, 22, 33, 44]]] * 2, {"op": "sum"}),
    ("all_to_all", [[A], [B]], [[[1, 2, 10, 20]], [[3, 4, 30, 40]]], {}),
    ("all_to_all", [[A, B], [B, B]], [[A, B], [B, B]], {}),
    ("broadcast", [[A], [B]], [[B]] * 2, {"root_rank": 1}),
]


@pytest.mark.parametrize("name, given, got, words", LAWS)
def test_every_rank_gets_what_the_collective_promises(
    name: str, given: Arrays, got: Arrays, words: dict[str, Any]
) -> None:
    traffic, records = _traffic(name, given, got, words)
    outputs = [key for key in records if key.slot.is_output]
    for key in outputs:
        found = traffic.deliveries(key)
        assert len(found) == len(given)
        assert all(np.array_equal(d.expected.bits, d.got.bits) for d in found)


@pytest.mark.parametrize("name, given, got, words", LAWS[:7])
def test_a_wrong_delivery_shows_on_its_rank(
    name: str, given: Arrays, got: Arrays, words: dict[str, Any]
) -> None:
    spoiled = [[np.array(array) for array in mine] for mine in got]
    spoiled[1][0] = spoiled[1][0] + 1
    traffic, records = _traffic(name, given, spoiled, words)
    first = next(key for key in records if key.slot == "output.0")
    wrong = [
        d.rank for d in traffic.deliveries(first) if not np.array_equal(d.expected.bits, d.got.bits)
    ]
    assert wrong == [1]


CALLS = [
    ("attn/all_reduce", "torch.distributed.all_reduce", True),
    ("attn/gather", "torch.distributed.gather", True),
    ("router/gather", "torch.gather", False),
    ("router/scatter", "torch.Tensor.scatter", False),
    ("attn/linear", "torch.nn.functional.linear", False),
    ("attn", "", False),
]


@pytest.mark.parametrize("op, target, expected", CALLS)
def test_a_function_that_only_shares_its_name_is_no_collective(
    op: str, target: str, expected: bool
) -> None:
    site = Site("M", 0, Op(op), 0)
    key = site.key("output.0")
    listing = Listing({key: (Record(key, 0, "float32", ()),)}, {site: Call(*site, 0, target)})
    assert is_collective(site, listing) is expected
    assert (key not in without_collectives(listing).values) is expected


@pytest.mark.parametrize("is_wrong", [False, True])
def test_parts_of_an_all_to_all_are_cut_as_each_rank_says(is_wrong: bool) -> None:
    """Rank 0 sends one row to itself and three to the other; rank 1 sends all to rank 0."""
    got: Arrays = [[[1, *B]], [[2, 3, 4]]]
    traffic, records = _traffic("all_to_all", [[A], [B]], got, {})
    site = next(iter(records)).site
    for rank, sizes in enumerate(([1, 3], [4, 0])):
        words = {"group": [0, 1], "input_split_sizes": sizes if not is_wrong else [2, 2]}
        call = Call(*site, 0, arguments=json.dumps({"args": [], "kwargs": words}))
        traffic.calls[rank][site] = call  # type: ignore[index]
    if is_wrong:
        with pytest.raises(LayoutError, match="the ranks gave rank 0 4 elements"):
            traffic.deliveries(site.key("output.0"))
        return
    for one in traffic.deliveries(site.key("output.0")):
        assert one.expected.same_bits(one.got), one.rank


def test_groups_are_named_by_the_axis_that_they_were_made_for() -> None:
    site = Site("M", 0, Op("attn/all_reduce"), 0)

    def call(rank: int) -> dict[Site, Call]:
        group = [rank // 4 * 4 + n for n in range(4)]
        said = {"args": [], "kwargs": {"group": group, "axis": "tp"}}
        return {site: Call(*site, 0, arguments=json.dumps(said))}

    traffic = Traffic({rank: call(rank) for rank in range(8)}, lambda _: [], lambda _: Value)  # type: ignore[arg-type, return-value]
    assert traffic.groups(site) == "tp (ranks 0-3 and 1 group more)"
