"""What a user's own function gives of tensors, as numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def named(name: str, found: object) -> dict[str, Any]:
    """What a user's function called `name` gave, by name: a list's are ``name.0``, ``name.1``."""
    if isinstance(found, Mapping):
        return {str(key): number for key, number in found.items()}
    if isinstance(found, list | tuple) or getattr(found, "ndim", 0) == 1:
        listed: Any = found
        return {f"{name}.{place}": number for place, number in enumerate(listed)}
    return {name: found}
