"""Root modules as a capture names them, and the paths of the modules inside them."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from dumpcmp.taps.recording.recorder import Recorder, Step


def has_state(module: nn.Module) -> bool:
    """Whether `module` has parameters or buffers, which make it this module and no other."""
    return any(True for _ in itertools.chain(module.parameters(), module.buffers()))


class Model:
    """A root module: its name in the archive, its steps, and the paths of its modules."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_steps = 0
        self.step: Step | None = None  # the latest one that was selected
        self.paths: dict[int, str] = {}
        self._root: Callable[[], nn.Module | None] = lambda: None

    def learn(self, root: nn.Module) -> None:
        """Learn the paths of the modules of `root`; the wrappers of torch.compile have none."""
        self._root = weakref.ref(root)
        self.paths = {
            id(module): path.replace("_orig_mod.", "").removesuffix("._orig_mod")
            for path, module in root.named_modules()
        }

    def path_of(self, module: nn.Module, parent: str) -> str:
        """The path of `module`; one that is not registered is named by its class in `parent`."""
        path = self.paths.get(id(module))
        if path is None:
            root = self._root()
            if root is not None:
                self.learn(root)
            path = self.paths.get(id(module))
        if path is None:
            path = f"{parent}.<{type(module).__name__}>".lstrip(".")
        return path


class Function(Model):
    """A compiled function: the modules that it calls are models of their own, as in eager mode."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__(name)
        self._recorder = recorder
        self._roots: dict[int, weakref.ref[nn.Module]] = {}

    def root_with(self, number: int) -> weakref.ref[nn.Module]:
        """The module whose id is `number`, which dynamo has just traced: it is alive."""
        found = self._roots.get(number)
        if found is None or found() is None:
            modules = (each for each in gc.get_objects() if issubclass(type(each), nn.Module))
            self._roots = {id(module): weakref.ref(module) for module in modules}
            found = self._roots[number]
        return found

    def model_of(self, root: nn.Module) -> Model:
        """The model that `root` is."""
        return self._recorder.model_of(root)
