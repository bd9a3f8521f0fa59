"""The house itself: one name for one type, one room for one file, and no imports in circles."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dumpcmp"
FILES = sorted(PACKAGE.rglob("*.py"))
CAP_WORDS = re.compile(r"_?(?:[A-Z][a-z0-9]+)+|_?[A-Z][a-z]\w*")


def types_of(path: Path) -> Iterator[str]:
    """The classes that a file defines, and the names that it gives to types."""
    tree = ast.parse(path.read_text())
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not _is_variable(value):
                if CAP_WORDS.fullmatch(name):
                    yield name


def _is_variable(value: ast.expr) -> bool:
    """Whether a name is a TypeVar or a ParamSpec, which stands for nothing outside its file."""
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("TypeVar", "ParamSpec")


def test_no_name_stands_for_two_types() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for name in types_of(path):
            homes[name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_file_name_stands_in_two_rooms() -> None:
    rooms: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        if path.name not in ("__init__.py", "__main__.py") and path.parent.name != "cli":
            rooms[path.name].append(str(path.parent.relative_to(ROOT)))
    assert {name: places for name, places in rooms.items() if len(places) > 1} == {}


def test_no_imports_run_in_circles() -> None:
    """Not even those inside functions or under TYPE_CHECKING."""
    grimp, networkx = pytest.importorskip("grimp"), pytest.importorskip("networkx")
    graph = grimp.build_graph("dumpcmp", cache_dir=None)
    arrows = networkx.DiGraph(
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    )
    circles = [
        sorted(one) for one in networkx.strongly_connected_components(arrows) if len(one) > 1
    ]
    assert circles == []


def test_the_walks_of_contributing_name_at_most_three_files_each() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    walks = re.findall(r"^### (Add .+?)\n(.*?)(?=^#|\Z)", page, re.M | re.S)
    assert len(walks) == 3
    for title, text in walks:
        files = set(re.findall(r"`((?:dumpcmp|docs|tests)/[\w./]+\.\w+)`", text))
        assert 1 <= len(files) <= 3, title
        assert [name for name in files if not (ROOT / name).exists()] == []
