"""How torchair and msit lay out dumps: a file a tensor of an FX graph, a file a task of GE."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dumpcmp.importing.ge_graph import GeGraph, graph_in, is_graph
from dumpcmp.importing.titles import Title
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.key import ROOT

if TYPE_CHECKING:
    from dumpcmp.importing.foreign import Foreign, Listed

_FX = re.compile(
    r"(?P<node>[^/-]+)-(?P<target>[^/]+)\.(?P<io>INPUT|OUTPUT)\.(?P<path>\d{1,6}(?:\.\d{1,6})*)"
    r"\.(?P<stamp>\d{14,20})(?:_(?P<converted>\w+))?\.npy"
)
_GE = re.compile(
    r"(?P<type>[^/.]+)\.(?P<node>[^/]+)\.(?P<task>\d{1,9})\.(?P<stream>\d{1,9})"
    r"\.(?P<stamp>\d{10,20})(?:\.bin)?(?:_(?P<converted>\w+)\.npz)?"
)
_RANK = re.compile(r"worldsize\d+_global_rank(\d{1,5})")
_GRAPH_MODULE = re.compile(r"gm_\w+_dump|gm_\w+")
_TOKEN = re.compile(r"\d{1,11}")  # longer numbers are times
_LARGEST_GRAPH = 1 << 28  # bytes of a graph's text


@dataclass(frozen=True, slots=True)
class TreePlace:
    """Where in a tree a file lies: of which dump, rank, graph and token it is."""

    tree: str  # "FX" or "GE"
    directory: str
    rank: int
    model: str
    model_id: str
    token: int


def is_torchair(path: str) -> bool:
    """Whether a file at `path` has a name as torchair gives."""
    name = path.rpartition("/")[2]
    return bool(_FX.fullmatch(name) or _GE.fullmatch(name))


def is_fx(path: str) -> bool:
    """Whether it is a file of FX mode: one tensor."""
    return bool(_FX.fullmatch(path.rpartition("/")[2]))


def converted_to(path: str) -> str:
    """What numbers of tensors stand in it, such as ``min_max``; empty where tensors do."""
    name = path.rpartition("/")[2]
    found = _FX.fullmatch(name) or _GE.fullmatch(name)
    return (found["converted"] or "") if found else ""


def torchair_titles(
    root: Path, names: Sequence[str], listed: Sequence[Listed], texts: Iterable[str]
) -> list[tuple[Foreign, Title]]:
    """What the values of the files `names` are called; `texts` are other files of the tree."""
    places = _models_told_apart([_place(name) for name in names])
    _check_one_dump(root, places)
    graphs = _graphs(root, texts) if any(place.tree == "GE" for place in places) else {}
    stamped = [
        (stamp, value, title)
        for name, place, each in zip(names, places, listed, strict=True)
        for value in each.values
        for stamp, title in [_title(name.rpartition("/")[2], place, value, graphs)]
    ]
    return _in_order(stamped)


def _place(path: str) -> TreePlace:
    *rooms, name = path.split("/")
    ranks = [int(found[1]) for room in rooms if (found := _RANK.fullmatch(room))]
    rank = ranks[-1] if ranks else 0
    directory = "/".join(rooms)
    if not _FX.fullmatch(name):
        token, model_id, model = [*reversed(rooms), "", "", ""][:3]
        number = int(token) if _TOKEN.fullmatch(token) else 0
        return TreePlace("GE", directory, rank, model, model_id, number)
    last, before = [*reversed(rooms), "", ""][:2]
    if _GRAPH_MODULE.fullmatch(last) and _TOKEN.fullmatch(before):
        # torch_npu up to 7.1.0 counts tokens from 1
        return TreePlace("FX", directory, rank, last, "", max(int(before) - 1, 0))
    model = "" if _RANK.fullmatch(before) else before
    return TreePlace("FX", directory, rank, model, "", int(last) if _TOKEN.fullmatch(last) else 0)


def _models_told_apart(places: Sequence[TreePlace]) -> list[TreePlace]:
    """The same, named by their graphs where there are several, and by no name where there is one.

    FX and GE call one graph by different names.
    """
    ids: dict[str, set[str]] = {}
    for place in places:
        ids.setdefault(place.model, set()).add(place.model_id)
    if len(ids) == 1 and all(len(each) == 1 for each in ids.values()):
        return [replace(place, model="") for place in places]
    if all(_GRAPH_MODULE.fullmatch(model) for model in ids):  # named by times
        numbers = {model: f"graph_{number}" for number, model in enumerate(sorted(ids))}
        return [replace(place, model=numbers[place.model]) for place in places]
    return [
        replace(place, model=f"{place.model}.{place.model_id}")
        if len(ids[place.model]) > 1
        else place
        for place in places
    ]


def _check_one_dump(root: Path, places: Sequence[TreePlace]) -> None:
    trees = {place.tree: place for place in places}
    if len(trees) > 1:
        rooms = [trees[name].directory.partition("/")[0] for name in ("FX", "GE")]
        raise SelectionError(
            f"{root} holds two dumps: one of FX mode in {rooms[0]}, one of GE in {rooms[1]}",
            hint=f"import each into an archive of its own: {root / rooms[0]}, {root / rooms[1]}",
        )
    seen: dict[tuple[int, str, int], str] = {}
    for place in places:
        which = place.rank, place.model, place.token
        if seen.setdefault(which, place.directory) != place.directory:
            raise SelectionError(
                f"{root} holds token {place.token} of rank {place.rank} twice: in "
                f"{seen[which]} and in {place.directory}",
                hint="import one dump at a time: choose its files with --files",
            )


def _graphs(root: Path, texts: Iterable[str]) -> dict[int | None, GeGraph]:
    """What GE made of each FX node, by the rank that the name of the graph's text says.

    None has what all texts say, for a rank without one.
    """
    found: dict[int | None, GeGraph] = {None: GeGraph()}
    for name in sorted(texts, key=lambda name: ("optimized" in name, name)):  # the original first
        told = re.search(r"_rank_(\d{1,5})_", name.rpartition("/")[2])
        graph = graph_in(root / name, _LARGEST_GRAPH)
        for rank in {int(told[1]), None} if told else {None}:
            found[rank] = found.get(rank, GeGraph()) + graph
    return found


def _title(
    name: str, place: TreePlace, value: Foreign, graphs: Mapping[int | None, GeGraph]
) -> tuple[str, Title]:
    """The time of a value, and what it is called."""
    title = Title("", step=place.token, rank=place.rank, model=place.model)
    if found := _FX.fullmatch(name):
        slot = f"{found['io'].lower()}.{found['path']}"
        title = replace(title, op=_op(found["node"]), slot=slot, target=found["target"])
    else:
        found = _GE.fullmatch(name)
        if found is None:
            raise SelectionError(
                f"{name} has no name as torchair gives",
                hint="leave it out with --files, or choose another --format",
            )
        graph = graphs[place.rank if place.rank in graphs else None]
        title = replace(title, target=f"ge.{found['type']}")
        title = _of_task(title, found["node"], value.name, graph)
    if found["converted"]:
        title = replace(title, slot=f"{title.slot}.{found['converted']}")
    return found["stamp"], title


def _op(node: str) -> str:
    return f"{ROOT}/{node}"


def _of_task(title: Title, task: str, name: str, graph: GeGraph) -> Title:
    """`title` with op and slot of the value `name`, by the names of FX where the graph tells them.

    A task of several ops takes what the first takes, and gives what the last gives.
    """
    kind, number, *rest = name.split(".", 2)
    parts = graph.parts_of(task)
    if len(parts) > 1:
        inside = tuple(_op(graph.node_of(part)) for part in parts)
        title = replace(title, kernel=task, inside=inside)
    if kind == "input":
        node = graph.node_of(parts[0] if parts else task)
        return replace(title, op=_op(node), slot=f"input.{number}")
    at = rest[0] if rest else parts[-1] if parts else task
    node, place = graph.tensors.get((at, int(number)), (at, int(number)))
    return replace(title, op=_op(node), slot=f"output.{place}")


def _in_order(stamped: Sequence[tuple[str, Foreign, Title]]) -> list[tuple[Foreign, Title]]:
    """With the numbers of calls, and the order of the stamps, whose digits no order has room for.

    What an op gives has the stamp of what it takes; where one is later, the op is where it began.
    """
    ordered = sorted(stamped, key=lambda each: (each[0].ljust(20, "0"), each[2].slot))
    counts: Counter[tuple[int, str, int, str, str]] = Counter()
    begun: dict[tuple[int, str, int, str, int], int] = {}
    titled = []
    for _, value, title in ordered:
        site = title.rank, title.model, title.step, title.op
        call = counts[*site, title.slot]
        counts[*site, title.slot] += 1
        order = begun.setdefault((*site, call), len(begun))
        titled.append((value, replace(title, call=call, order=order)))
    return titled


def graph_texts(names: Iterable[str]) -> tuple[str, ...]:
    """Of files of a tree, the texts of GE's graphs."""
    return tuple(name for name in names if is_graph(name))
