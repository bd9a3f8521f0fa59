"""Reads a YAML file whose lines begin with names: of ops, of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class UnreadableLinesError(ValueError):
    """A file is none of names and what is said of them."""


def read_named_lines(path: Path) -> dict[str, Any]:
    """The lines of a file by their names."""
    import yaml  # few comparisons have such a file

    try:
        lines = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnreadableLinesError(str(error)) from error
    if not isinstance(lines, dict) or not all(isinstance(name, str) for name in lines):
        raise UnreadableLinesError("its lines do not begin with names")
    return lines
