"""A plugin of pytest for a run without some packages: `HIDDEN` names them, with commas between."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = "DUMPCMP_TEST_HIDDEN"


class HidingFinder(PathFinder):
    """Finds what is installed, apart from the hidden packages."""

    hidden = frozenset(os.environ.get(HIDDEN, "").split(","))

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in cls.hidden:
            return None
        return super().find_spec(fullname, path, target)


def pytest_load_initial_conftests() -> None:
    """Called by pytest before any file of the tests is imported."""
    sys.meta_path[:] = [HidingFinder if one is PathFinder else one for one in sys.meta_path]
