"""The shortcuts in arithmetic that a target may have taken: declared, or set in its run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dumpcmp.archive.read.reader import Archive
from dumpcmp.judge.tolerances import QUANTISED, SHORTCUTS
from dumpcmp.nouns.errors import SelectionError

# Torch has leave to sum partial sums of short dtypes in those, unless it is taken away. What that
# rounds is within the plain bound, so that only who asks for it gets a wider one.
_BY_DEFAULT = frozenset(("tf32", "tf32-conv", "fp16-accumulation"))


def allowed(asked: str | Sequence[str], target: Archive, devices: Iterable[str]) -> frozenset[str]:
    """The words that the user states, and those that the target's run on a GPU had set.

    `devices` are those on which its values lay.
    """
    words = (asked,) if isinstance(asked, str) else tuple(asked)
    known = [*SHORTCUTS, *QUANTISED]
    for word in words:
        if word not in known:
            hint = f"valid are: {', '.join(known)}"
            raise SelectionError(f"--allow {word!r} is not known", hint=hint)
    on_gpu = any(device.startswith("cuda") for device in devices)
    facts = [facts.get("run", {}) for facts in target.run.values()] if on_gpu else []
    told = {word for one in facts for word in one.get("shortcuts", ())}
    return frozenset(words) | (told & _BY_DEFAULT)


def said_of(shortcuts: frozenset[str]) -> Iterator[str]:
    """What a reader must know of wider bounds."""
    words = ", ".join(sorted(shortcuts & SHORTCUTS.keys()))
    if words:
        yield f"my side may take shortcuts in its sums of products: {words}; bounds are wider there"
