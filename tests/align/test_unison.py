"""One number for the calls of one line, where a rank runs an op more often than the others."""

from dumpcmp.align.listing import Listing
from dumpcmp.align.unison import in_unison
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.record import Call, Record

LINES = {0: ["a", "c", "a", "c"], 1: ["a", "c", "a", "b", "c"], 2: ["a", "c", "a", "c"]}


def _site(number: int, op: str = "m/mul") -> Site:
    return Site("M", 0, Op(op), number)


def _record(key: Key, rank: int, order: int, same_as: Key | None = None) -> Record:
    return Record(key, order, "float32", (2,), rank=rank, same_as=same_as)


def _listing(lines: dict[int, list[str]]) -> tuple[Listing, dict[int, dict[Site, Call]]]:
    values: dict[Key, list[Record]] = {}
    calls: dict[int, dict[Site, Call]] = {}
    for rank, own in lines.items():
        calls[rank] = {}
        for order, line in enumerate(own):
            site = _site(order)
            calls[rank][site] = Call("M", 0, site.op, order, order, source=line)
            values.setdefault(site.key("output.0"), []).append(
                _record(site.key("output.0"), rank, order)
            )
        last = _site(0, "m/sum").key("input.0")
        source = _site(len(own) - 1).key("output.0")
        values.setdefault(last, []).append(_record(last, rank, 9, source))
    seen = {site: call for rank in reversed(lines) for site, call in calls[rank].items()}
    found = {key: tuple(records) for key, records in values.items()}
    return Listing(found, seen, len(lines)), calls


def test_a_call_of_one_rank_alone_shifts_no_others() -> None:
    listing, calls = _listing(LINES)
    found = in_unison(listing, lambda: calls)
    ranks = {key.call: [r.rank for r in records] for key, records in found.values.items()
             if key.op == "m/mul"}  # fmt: skip
    assert ranks == {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [0, 1, 2], 4: [1]}
    assert [found.calls[_site(n)].source for n in range(5)] == ["a", "c", "a", "c", "b"]
    moved = {record.rank: record.key.call for record in found.values[_site(3).key("output.0")]}
    assert moved == {0: 3, 1: 4, 2: 3}  # records keep their own keys
    taken = found.values[_site(0, "m/sum").key("input.0")]
    assert {record.same_as for record in taken} == {_site(3).key("output.0")}


def test_ranks_that_run_the_same_or_of_unknown_lines_stay() -> None:
    same = _listing({0: ["a", "b"], 1: ["a", "b"]})
    assert in_unison(same[0], lambda: same[1]) is same[0]
    fewer = _listing({0: ["a", "a"], 1: ["a"]})
    assert in_unison(fewer[0], lambda: fewer[1]) is fewer[0]
    unknown = _listing({0: ["", ""], 1: [""]})
    assert in_unison(unknown[0], lambda: unknown[1]) is unknown[0]
