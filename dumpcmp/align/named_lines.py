"""Reads a YAML file whose lines begin with names: of ops, of values."""

from __future__ import annotations

import stat
from collections import Counter
from pathlib import Path
from typing import Any

from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.budgets import MAPPING, Spending


class UnreadableLinesError(ValueError):
    """A file is none of names and what is said of them."""


def read_named_lines(path: Path) -> dict[str, Any]:
    """The lines of a file by their names; BudgetError where it asks for more than such may."""
    import yaml  # few comparisons have such a file

    try:
        text, nbytes = _text_of(path)
        lines = _loaded(text, Spending(MAPPING, path, nbytes))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnreadableLinesError(str(error)) from error
    except (
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:  # of dates, numbers, lists in lists
        raise UnreadableLinesError(str(error).partition("\n")[0]) from error
    if not isinstance(lines, dict) or not all(isinstance(name, str) for name in lines):
        raise UnreadableLinesError("its lines do not begin with names")
    return lines


def _text_of(path: Path) -> tuple[str, int]:
    """A file as text, of which no more is read than it may have."""
    if not isinstance(path, RemotePath) and not stat.S_ISREG(path.stat().st_mode):
        raise UnreadableLinesError("it is no regular file")
    Spending(MAPPING, path, path.stat().st_size)
    content = path.read_bytes()
    return content.decode(), len(content)


def _loaded(text: str, spending: Spending) -> Any:
    """What PyYAML makes of a text.

    Nodes that stand in several places count in each of them: a few lines of references can stand
    for more values than any memory holds.
    """
    import yaml

    class CountingLoader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            spending.node(self.depth)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    spending.name(text.count("\n"))
    loader = CountingLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_names(root)
        _count(root, spending)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check_names(root: Any) -> None:
    """Refuse a name that begins two lines: YAML takes the last, and says nothing of the others."""
    pairs = [pair for pair in root.value if type(pair) is tuple] if root.id == "mapping" else []
    names = Counter(name.value for name, _ in pairs if name.id == "scalar" and name.value != "<<")
    for name, count in names.items():
        if count > 1:
            raise UnreadableLinesError(f"{name!r} begins {count} of its lines")


def _count(root: Any, spending: Spending) -> None:
    """Count what a document stands for with all its references followed, and how deep it is."""
    waiting = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        spending.node(depth)
        if isinstance(node.value, list):
            flat = (
                each for pair in node.value for each in (pair if type(pair) is tuple else [pair])
            )
            waiting += [(each, depth + 1) for each in flat]
