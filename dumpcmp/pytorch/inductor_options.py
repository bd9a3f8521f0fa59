"""Options of Inductor by name, as torch.compile's `options` has them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dumpcmp.nouns.errors import SelectionError


def parse_options(words: Iterable[str]) -> dict[str, Any]:
    """Read ``max_autotune=true`` and the like; what is no JSON is a word."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.strip():
            raise SelectionError(
                f"--option {word!r} is no NAME=VALUE", hint="write --option max_autotune=true"
            )
        found[name.strip()] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_inductor(options: Mapping[str, Any]) -> None:
    """Refuse an option that this torch's Inductor does not have."""
    from torch._inductor import list_options

    known = list_options() if options else []
    for name in options:
        if name.replace("-", "_") not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3)) or "none"
            raise SelectionError(
                f"Inductor has no option {name!r}; closest: {near}",
                hint="torch._inductor.list_options() names them all",
            )


def inductor_with(options: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Inductor with `options`, while the block runs."""
    if not options:
        return nullcontext()
    from torch._inductor import config

    names = {name.replace("-", "_"): value for name, value in options.items()}
    patched: AbstractContextManager[object] = config.patch(names)
    return patched
