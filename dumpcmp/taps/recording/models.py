"""Where an op stands: its model, as a capture names it, and the call of a module inside that."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Any

from torch import Tensor, nn

from dumpcmp.nouns.built import built
from dumpcmp.nouns.key import ROOT, Op
from dumpcmp.pytorch.module_trees import named_modules_of
from dumpcmp.pytorch.names import NO_DISPATCH
from dumpcmp.pytorch.trees import Slots

_core: Any = built("dumpcmp.taps.recording._plan")
_Version = tuple[int, int | None]
_NEVER: _Version = (-1, None)  # of no tensor
Ops = dict[str, dict[str, Op | None]]  # by scope and function; None where it is not selected
_Numbered = dict[Callable[..., Any], tuple[str, dict[int, Any]]]  # by function: name, numbers
Knowns = dict[str, _Numbered]  # by scope


class Model:
    """A root module: its name in the archive, how often it ran, and the paths of its modules."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_steps = 0
        self.graphs = itertools.count()  # numbers those of its graphs that are kept as text
        self.paths: dict[int, str] = {}
        self.ops: Ops = {}
        self.num_known = 0  # calls that are
        self.gradients: dict[tuple[str, int, str], Any] = {}  # how they looked, by where they were
        self._knowns: dict[str, Knowns] = {}  # by thread
        self._weighed: dict[tuple[str, str], _Version] = {}  # as they were recorded last
        self.digests: dict[tuple[str, str], str] = {}  # of those in the host's memory, by then
        self._versions: Any = None if _core is None else _core.Versions()
        self._root: Callable[[], nn.Module | None] = lambda: None

    def next_step(self) -> int:
        self.num_steps += 1
        return self.num_steps - 1

    def knowns(self, thread: str) -> Knowns:
        """What is known of calls that ran on a thread of this name."""
        return self._knowns.setdefault(thread, {})

    @property
    def root(self) -> nn.Module | None:
        """The module itself, while it lives."""
        return self._root()

    def learn(self, root: nn.Module) -> None:
        """Learn the paths of the modules of `root`; the wrappers of torch.compile have none."""
        self._root = weakref.ref(root)
        self.paths = {
            id(module): path.replace("_orig_mod.", "").removesuffix("._orig_mod")
            for path, module in named_modules_of(root)
        }

    @property
    def is_weighed(self) -> bool:
        """Whether its parameters and buffers were recorded in this run."""
        return bool(self._weighed)

    def changed(self, weights: Mapping[str, Slots]) -> dict[str, Slots]:
        """Those of `weights`, by module, that were written to since they were recorded last.

        Torch does not count what a batch norm writes to its moments: buffers of a module change
        with each other.
        """
        found: dict[str, Slots] = {}
        for path, slots in weights.items():
            versions = {slot: _version_of(tensor) for slot, tensor in slots}
            news = {slot for slot in versions if versions[slot] != self._weighed.get((path, slot))}
            if not news:
                continue
            if any(slot.startswith("buffer.") for slot in news):
                news |= {slot for slot in versions if slot.startswith("buffer.")}
            self._weighed |= {(path, slot): version for slot, version in versions.items()}
            found[path] = [(slot, tensor) for slot, tensor in slots if slot in news]
        return found

    def versions(self, weights: Mapping[str, Slots]) -> dict[tuple[str, str], _Version]:
        """What changes with every counted write to `weights`, by module and slot."""
        return {
            (path, slot): _version_of(tensor)
            for path, slots in weights.items()
            for slot, tensor in slots
        }

    def forget(self, weights: Collection[tuple[str, str]]) -> None:
        """`weights` were written to, and torch has not counted it: they are to be looked at."""
        self._weighed |= dict.fromkeys(weights, _NEVER)
        self._versions = None if _core is None else _core.Versions()

    def is_unchanged(self, root: nn.Module) -> bool:
        """Whether all modules and tensors of `root` are as they were when this was asked last.

        False where that is not known: those that are no plain tensors are looked at one by one.
        """
        return self._versions is not None and self._versions.same(root)

    def path_of(self, module: nn.Module, parent: str) -> str:
        """The path of `module`; one that is not registered is named by its class in `parent`."""
        path = self.paths.get(id(module))
        if path is None and (root := self._root()) is not None:
            self.learn(root)
            path = self.paths.get(id(module))
        return f"{parent}.<{type(module).__name__}>".lstrip(".") if path is None else path


def _version_of(tensor: Tensor) -> _Version:
    """What changes with every write: where the elements lie, and how often torch wrote there."""
    place = 0  # of one that answers the dispatcher itself, such as a fake tensor, which would warn
    if getattr(type(tensor), "__torch_dispatch__", NO_DISPATCH) is NO_DISPATCH:
        try:
            place = tensor.data_ptr()
        except RuntimeError:  # a wrapper without elements of its own
            place = id(tensor)
    try:
        return place, tensor._version
    except RuntimeError:  # an inference tensor, which has none; to ask it first takes longer
        return place, None


class FunctionModel(Model):
    """A compiled function: the modules that it calls are models of their own, as in eager mode.

    `model_of` says which model a module is.
    """

    def __init__(self, name: str, model_of: Callable[[nn.Module], Model]) -> None:
        super().__init__(name)
        self.model_of = model_of
        self._roots: dict[int, weakref.ref[nn.Module]] = {}

    def root_with(self, number: int) -> weakref.ref[nn.Module]:
        """The module whose id is `number`, which dynamo has just traced: it is alive."""
        found = self._roots.get(number)
        if found is None or found() is None:
            modules = (each for each in gc.get_objects() if issubclass(type(each), nn.Module))
            self._roots = {id(module): weakref.ref(module) for module in modules}
            found = self._roots[number]
        return found


class Scope:
    """One call of a module, within which its functions are counted."""

    __slots__ = ("_numbers", "_ops", "call", "known", "path", "prefix")

    def __init__(self, path: str, call: int, mark: str, ops: Ops, knowns: Knowns) -> None:
        self.path = path
        self.call = call
        self.prefix = (path or ROOT) + (f"@{call}" if call else "") + mark
        self._ops = ops.setdefault(self.prefix, {})
        self.known = knowns.setdefault(self.prefix, {})
        self._numbers: dict[str, int] = {}

    def anew(self) -> Scope:
        """The same, in which nothing was called yet."""
        scope = copy(self)
        scope._numbers = {}
        return scope

    @property
    def numbers(self) -> dict[str, int]:
        """How often each function was called in it."""
        return self._numbers

    def count(self, function: str, selects: Callable[[str], bool]) -> tuple[Op, int] | None:
        """The op of `function` here and the number of this call of it; None if not selected.

        `selects` is asked about an op once in all steps that share what they know of ops.
        """
        if function not in self._ops:
            named = Op(f"{self.prefix}/{function}")
            self._ops[function] = named if selects(named) else None
        op = self._ops[function]
        if op is None:
            return None
        number = self._numbers.get(function, 0)
        self._numbers[function] = number + 1
        return op, number


class Scopes:
    """The scopes of one step; `mark` stands behind the path in the ops of a recomputation.

    `ops` are those that are known from steps before, and `knowns` what is known of their calls.
    """

    def __init__(self, ops: Ops, mark: str = "", knowns: Knowns | None = None) -> None:
        self._knowns: Knowns = {} if knowns is None else knowns
        self.root = self.here = Scope("", 0, "", ops, self._knowns)
        self.mark = mark
        self._ops = ops
        self._outer: list[Scope] = []
        self._calls: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._outer)

    @property
    def around(self) -> list[Scope]:
        """Those that are open, the innermost first."""
        return [self.here, *reversed(self._outer)]

    def kept(self) -> Callable[[], None]:
        """What sets the numbers of all calls back to those of now."""
        kept = [(table, dict(table)) for table in (self._calls, *(s.numbers for s in self.around))]

        def set_back() -> None:
            for table, before in kept:
                table.clear()
                table.update(before)

        return set_back

    def next_of(self, path: str) -> Scope:
        """The scope of the next call of the module at `path`."""
        number = self._calls.get(path, 0)
        self._calls[path] = number + 1
        return Scope(path, number, self.mark, self._ops, self._knowns)

    def beside(self, mark: str) -> Scope:
        """A scope of the root for what runs beside its calls."""
        return Scope("", 0, mark, self._ops, self._knowns)

    def open(self, path: str) -> Scope:
        self._outer.append(self.here)
        self.here = self.next_of(path)
        return self.here

    @property
    def depth(self) -> int:
        """How many are open."""
        return len(self._outer)

    def close_to(self, depth: int) -> None:
        """Close all but so many of those that are open."""
        while len(self._outer) > depth:
            self.here = self._outer.pop()
