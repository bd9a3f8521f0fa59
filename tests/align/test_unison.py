"""One number for the calls of one line, where a rank runs an op more often than the others."""

from dumpcmp.align.listing import Listing
from dumpcmp.align.microbatches import merged
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


def _staged(modules: dict[tuple[int, str], str]) -> Listing:
    """Stages, by rank and model, that each run a module and one copy outside of it."""
    values: dict[Key, list[Record]] = {}
    for (rank, model), module in modules.items():
        for order, op in enumerate(("<root>/clone", module)):
            key = Site(model, 0, Op(op), 0).key("output.0")
            record = Record(key, order, "float32", (2,), rank=rank, layout="@ mb:0/2?")
            values.setdefault(key, []).append(record)
    return Listing(
        {key: tuple(own) for key, own in values.items()}, {}, 1 + max(r for r, _ in modules)
    )


def _copies(listing: Listing) -> dict[tuple[str, int], list[int]]:
    """The ranks that have each copy, by model and number."""
    return {
        (key.model, key.call): [record.rank for record in records]
        for key, records in listing.values.items()
        if key.op.function == "clone"
    }


def test_stages_of_a_pipeline_number_what_they_run_outside_of_modules_one_after_another() -> None:
    two = _staged({(0, "M"): "a", (1, "M"): "a", (2, "M"): "b.c", (3, "M"): "b.c"})
    assert _copies(in_unison(two, dict)) == {("M", 0): [0, 1], ("M", 1): [2, 3]}
    turns = _staged({(0, "M"): "a", (1, "M"): "b", (0, "M2"): "c", (1, "M2"): "d"})
    found = in_unison(turns, dict)
    assert _copies(found) == {("M", 0): [0], ("M", 1): [1], ("M2", 2): [0], ("M2", 3): [1]}
    assert {key.model for key in merged(found).values} == {"M"}
    shared = _staged({(0, "M"): "a", (1, "M"): "a"})
    assert in_unison(shared, dict) is shared
