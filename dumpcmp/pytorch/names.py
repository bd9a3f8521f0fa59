"""Every private name of torch that dumpcmp uses, by who uses it, and what it is for.

A mode checks its own when it begins: where this torch lacks a name, it refuses with one clear
error, or does without and says what will be missing. Nothing else in the package names torch's
privates.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from dumpcmp.nouns.errors import CaptureError


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One name: where it is, what it is for, and what is lost without it.

    `loses` is empty where there is no doing without.
    """

    path: str  # "torch._C:_current_autograd_node", module and attribute
    serves: str
    loses: str = ""

    @property
    def is_there(self) -> bool:
        """Whether this torch has it."""
        try:
            self.find()
        except (ImportError, AttributeError):
            return False
        return True

    def find(self) -> Any:
        """What the name stands for now."""
        module, _, attribute = self.path.partition(":")
        found: Any = import_module(module)
        for word in attribute.split("."):
            found = getattr(found, word)
        return found


NAMES: dict[str, tuple[PrivateName, ...]] = {}


def check_names(user: str, instead: str = "") -> list[str]:
    """Refuse where this torch lacks what `user` cannot do without; else what will be missing."""
    lacking = [name for name in NAMES.get(user, ()) if not name.is_there]
    if needed := [name for name in lacking if not name.loses]:
        listed = ", ".join(f"{name.path.replace(':', '.')} ({name.serves})" for name in needed)
        raise CaptureError(
            f"torch {torch.__version__} has no {listed}, which {user} needs",
            hint=instead or "use a torch that dumpcmp is tested with: 2.11 to 2.13",
        )
    return [f"torch {torch.__version__} has no {name.path}: {name.loses}" for name in lacking]
