"""Hears of what the program imports, so that a capture imports nothing for it that takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def held(*names: str) -> Iterator[tuple[ModuleType, str, object]]:
    """The modules that are there and have one of `names`, with what it stands for in them."""
    for module in tuple(sys.modules.values()):
        has = getattr(module, "__dict__", {})
        for name in names:
            if name in has:
                yield module, name, has[name]


@contextmanager
def once_imported(name: str, listen: Callable[[], None]) -> Iterator[None]:
    """Call `listen` now if module `name` is there, or when it is imported while the block runs."""
    ear = _Ear(name, listen)
    sys.meta_path.insert(0, ear)
    try:
        if name in sys.modules:
            import_module(name)  # to its end: another thread may be in the middle of it
            ear.hear()
        yield
    finally:
        sys.meta_path.remove(ear)
        ear.is_done = True


class _Ear(MetaPathFinder):
    """Has others find the one module that it waits for, and hears when it was executed."""

    def __init__(self, name: str, listen: Callable[[], None]) -> None:
        self._name = name
        self._listen = listen
        self.is_done = False

    def hear(self) -> None:
        """Tell of the module, once; what raises refuses the import, and the next one too."""
        if not self.is_done:
            self._listen()
            self.is_done = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self.is_done:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in later)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Announcing(spec.loader, self)
        return spec


class _Announcing(Loader):
    """Loads a module as `loader` does, leaves it to that one, and tells `ear` when it is there."""

    def __init__(self, loader: Loader, ear: _Ear) -> None:
        self._loader = loader
        self._ear = ear

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._ear.hear()
