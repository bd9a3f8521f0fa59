"""The arguments of a call without what only says how finely, and where, it is computed."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from dumpcmp.nouns.value import DTYPES, Kind


@lru_cache(maxsize=4096)
def plain_arguments(arguments: str) -> str:
    """The arguments of a call without what only says how finely it is computed."""
    try:
        tree = json.loads(arguments or "null")
    except ValueError:
        return arguments
    if not isinstance(tree, dict):
        return arguments
    kept = {word: _coarse(tree[word]) for word in ("args", "kwargs") if tree.get(word)}
    return json.dumps(kept, sort_keys=True)


def _coarse(node: Any) -> Any:
    """A part of the arguments with every dtype of floats as one, and no device."""
    if isinstance(node, list):
        return [_coarse(part) for part in node]
    if not isinstance(node, dict):
        return node
    match node:
        case {"dtype": str() as name, **others} if not others and name in DTYPES:
            return {"dtype": "float" if DTYPES[name].kind is Kind.FLOAT else name}
        case {"device": str(), **others} if not others:
            return {"device": ""}
    return {word: _coarse(part) for word, part in node.items()}
