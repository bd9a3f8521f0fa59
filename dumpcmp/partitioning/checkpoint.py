"""Reads nnScaler's ``graph.ckp`` without nnScaler, and without executing anything in it.

The file is a pickle of ``(ids, IRGraph)``. The unpickler here finds no function and no class but a
few harmless ones: everything else becomes a Husk, which remembers what it was given and does
nothing. Ops are run only if our table or the user's registrations know them.
"""

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import torch

from dumpcmp.nouns.errors import ProgramFileError
from dumpcmp.partitioning.call import Candidate, OpCall, rebuilt, shape_of
from dumpcmp.partitioning.configuration import PartitionError, TensorInfo
from dumpcmp.partitioning.signature import function_of
from dumpcmp.partitioning.table import is_known
from dumpcmp.pytorch.plain_files import read_plain


class Husk:
    """What is left of an object: its class's name, the arguments it was made with, its state."""

    home = ""
    made_with: tuple[Any, ...]

    def __new__(cls, *args: Any, **_kwargs: Any) -> "Husk":
        """Keep the arguments and do nothing with them."""
        husk = super().__new__(cls)
        husk.made_with = args
        return husk

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __setstate__(self, state: Any) -> None:
        for each in state if isinstance(state, tuple) else (state,):
            if isinstance(each, dict):
                self.__dict__.update({str(name): value for name, value in each.items()})

    def _forget(self, *items: Any) -> None:
        """Forget items of what may have been a list or a dict."""

    __setitem__ = append = extend = _forget

    def __call__(self, *args: Any, **_kwargs: Any) -> "Husk":
        """Stand for whatever calling it would have given."""
        return Husk(*args)


class Maker(Husk):
    """Stands for a function that makes a class, as dill stores namedtuples: the class is inert."""

    def __new__(cls, name: Any = "", *_rest: Any, **_kwargs: Any) -> Any:
        """A fresh kind of Husk."""
        return type("Husk", (Husk,), {"home": f"dill.{_text(name)}"})


class PartialHusk(Husk):
    """What is left of a function with some of its arguments, which is not called here either."""

    home = "functools.partial"
    parts: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.parts = state[:3] if isinstance(state, tuple) else ()  # function, args, keywords


def _ready_made(_kind: Any = None, function: Any = None, args: Any = (), words: Any = None) -> Husk:
    """The partial that some versions of dill make in one call."""
    husk = PartialHusk(function)
    husk.parts = function, args, words or {}
    return husk


def _load_type(name: Any = "", *_rest: Any) -> Any:
    """A type by dill's name for it: the real one where making it runs nothing, else a Husk's."""
    if _text(name) in ("PartialType", "partial"):
        return PartialHusk
    return _TYPES.get(_text(name)) or Maker(name)


def _read_repr(text: Any = "", *_rest: Any) -> Any:
    """What dill would evaluate: constants, and ranges of numbers, are read; nothing else is."""
    if _text(text) in _CONSTANTS:
        return _CONSTANTS[_text(text)]
    if found := _RANGE.fullmatch(_text(text)):
        return range(*map(int, filter(None, found.groups())))
    return Maker("an expression")()


def _layout(name: Any = "", *_rest: Any) -> Any:
    """A memory layout of torch, such as ``torch.strided``."""
    found = getattr(torch, _text(name).removeprefix("torch."), None)
    return found if isinstance(found, torch.layout) else Maker(name)()


_BUILTINS = (slice, set, frozenset, list, dict, tuple, complex, range)
_TYPES = {kind.__name__: kind for kind in _BUILTINS}
_WORDS = {kind.__name__: kind for kind in (bool, int, float, str)}  # types as arguments
_CONSTANTS = {"Ellipsis": ..., "NotImplemented": NotImplemented, "None": None}
_RANGE = re.compile(r"range\((-?\d{1,18}), (-?\d{1,18})(?:, (-?\d{1,18}))?\)")
_COUNTED = (list, tuple, dict, set, frozenset, str, bytes, range)  # what a call may copy
_MAKERS = ("_create_namedtuple", "_create_type")
_HARMLESS = {
    ("torch", "Size"): torch.Size,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "Ellipsis"): ...,
    **{("builtins", kind.__name__): kind for kind in _BUILTINS},
    **{("dill._dill", name): Maker for name in _MAKERS},
    ("dill._dill", "_load_type"): _load_type,
    ("dill._dill", "_eval_repr"): _read_repr,
    ("dill._dill", "_create_ftype"): _ready_made,
    ("functools", "partial"): PartialHusk,
    ("torch", "device"): torch.device,
    ("torch.serialization", "_get_layout"): _layout,
}
_LARGEST = 1 << 28  # bytes of a graph; it holds shapes, and small tensors at most
_MOST = 1_000_000  # ops, elements of an argument, elements that calls copy
_DEEPEST = 40  # segments in segments, lists in lists
_LARGEST_TENSOR = 1 << 32  # elements
_WIDEST = 64  # bits of an int, elements of a tuple that is a key


class InertUnpickler(pickle._Unpickler):
    """Reads the structure of a pickle, and runs none of what it names.

    It is the one that is written in Python: what hashes or copies can be held back before it does,
    so that the time is that of reading the bytes, however often a pickle refers to itself.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    copied = 0

    def find_class(self, module: str, name: str, /) -> Any:
        """A harmless class, a dtype or memory format of torch, or a fresh kind of Husk."""
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        found = getattr(torch, name.removeprefix("torch."), None) if module == "torch" else None
        if isinstance(found, torch.dtype | torch.memory_format):
            return found
        return type("Husk", (Husk,), {"home": f"{module}.{name}"})

    def persistent_load(self, pid: Any, /) -> Any:
        """Stand for an object that lies elsewhere."""
        return Husk(pid)

    def _key_last(self) -> None:
        _check_key(self.stack[-2])

    def _keys_alternate(self) -> None:
        _check_keys(self.stack[::2])

    def _all_keys(self) -> None:
        _check_keys(self.stack)

    def _refuse(self) -> None:
        raise PartitionError("the graph makes objects in a way that nnScaler does not")

    def _call(self) -> None:
        """Copies are counted; what a set or a dict is made from becomes keys."""
        for given in self.stack[-1]:
            if isinstance(given, _COUNTED):
                self.copied += len(given)
            if self.copied > _MOST:
                raise PartitionError("calls in the graph copy too much")
            if self.stack[-2] in (set, frozenset):
                _check_keys(given)
            elif self.stack[-2] in (dict, OrderedDict):
                _check_keys(pair[0] for pair in given if isinstance(pair, list | tuple) and pair)


def _guarded(opcode: bytes, check: Callable[[InertUnpickler], None]) -> None:
    """Let `check` look at the stack before `opcode` does its work."""
    work = InertUnpickler.dispatch[opcode[0]]

    def guarded(unpickler: InertUnpickler) -> None:
        check(unpickler)
        work(unpickler)

    InertUnpickler.dispatch[opcode[0]] = guarded


for _code, _check in {
    pickle.SETITEM: InertUnpickler._key_last,
    pickle.SETITEMS: InertUnpickler._keys_alternate,
    pickle.DICT: InertUnpickler._keys_alternate,
    pickle.ADDITEMS: InertUnpickler._all_keys,
    pickle.FROZENSET: InertUnpickler._all_keys,
    pickle.REDUCE: InertUnpickler._call,
    pickle.NEWOBJ: InertUnpickler._call,
    **dict.fromkeys((pickle.NEWOBJ_EX, pickle.INST, pickle.OBJ), InertUnpickler._refuse),
}.items():
    _guarded(_code, _check)


def _check_keys(keys: Iterable[Any]) -> None:
    for key in keys:
        _check_key(key)


def _check_key(key: Any) -> None:
    """Refuse a key whose hash takes long, or is chosen to be that of others."""
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) > _WIDEST or any(
        isinstance(part, tuple) or (isinstance(part, int) and part.bit_length() > _WIDEST)
        for part in parts
    ):
        raise PartitionError("a key in the graph is too large")


def read_checkpoint(path: Path) -> list[Candidate]:
    """The ops of the graph at `path`."""
    try:
        loaded = InertUnpickler(io.BytesIO(read_plain(path, _LARGEST))).load()
        graph = loaded[1] if isinstance(loaded, tuple) and len(loaded) == 2 else loaded
        return list(_nodes(_state(graph, "_nodes"), count(1)))
    except (PartitionError, ProgramFileError) as error:
        raise PartitionError(f"{path}: {error.message}", hint=error.hint) from error
    except Exception as error:
        raise PartitionError(
            f"{path} is not a graph checkpoint: {type(error).__name__}: {error}",
            hint="give the graph.ckp that nnScaler's parallelize writes",
        ) from error


def _text(value: Any) -> str:
    """A text or a number as text; of anything else, which may be endless, nothing."""
    return str(value) if isinstance(value, str | int) else ""


def _state(husk: Any, name: str, default: Any = ...) -> Any:
    found = getattr(husk, "__dict__", {}).get(name, default)
    if found is ...:
        raise PartitionError(
            f"a {getattr(husk, 'home', type(husk).__name__)} in the graph has no {name!r}",
            hint="give the graph.ckp that nnScaler's parallelize writes",
        )
    return found


def _nodes(cells: Any, budget: Iterator[int], depth: int = 0) -> Iterator[Candidate]:
    for cell in cells:
        if next(budget) > _MOST or depth > _DEEPEST:
            raise PartitionError("segments of the graph hold each other")
        if "_nodes" in cell.__dict__:  # a segment
            yield from _nodes(_state(cell, "_nodes"), budget, depth + 1)
        else:
            yield _candidate(cell)


def _candidate(cell: Any) -> Candidate:
    fsig = _text(_state(cell, "signature"))
    name = f"{_text(_state(cell, 'name', 'node'))}{_text(_state(cell, '_id', ''))}"
    named = Candidate(OpCall(fsig), node=name, source=_line(_text(_state(cell, "_comment", ""))))
    try:
        return _op(cell, named)
    except PartitionError as error:
        return replace(named, reason=error.message)


def _op(cell: Any, named: Candidate) -> Candidate:
    fsig, budget = named.call.fsig, count(1)
    inputs = [_plain(value, budget) for value in _state(cell, "_inputs")]
    anno = _state(cell, "_anno", None)  # None where nnScaler replicates: our table may know it
    if not any(isinstance(value, TensorInfo) for value in inputs):
        return replace(named, reason="takes no tensor: nothing to partition", computes=False)
    if not is_known(fsig):
        if anno is None:
            return replace(named, reason="the graph has no annotation for it", computes=False)
        reason = f"{fsig} is not a function that we know: register_annotation lets it run"
        return replace(named, reason=reason)
    kwargs = {_text(k): _plain(v, budget) for k, v in _state(cell, "_kwargs", {}).items()}
    call = OpCall(fsig, tuple(inputs), kwargs)
    return replace(named, call=call, anno=_said(anno) if anno is not None else "")


def _line(comment: str) -> str:
    """The user's line: of ``File "/a/b.py", line 7, in forward`` the file's name and the number."""
    words = comment.split('"')
    if len(words) < 3 or ", line " not in words[2]:
        return comment.strip().split("\n")[0]
    return f"{Path(words[1]).name}:{words[2].split(', line ')[1].split(',')[0].strip()}"


def _plain(value: Any, budget: Iterator[int], depth: int = 0) -> Any:
    """An argument: tensors as their shapes, other traced objects as their values."""
    if next(budget) > _MOST or depth > _DEEPEST:
        raise PartitionError("cannot read an argument that is nested without end")
    if isinstance(value, type) and issubclass(value, Husk):
        return _named_thing(value.home)
    if isinstance(value, PartialHusk):
        return _partial(value, budget, depth)
    if isinstance(value, Husk):
        state = value.__dict__
        if "_shape" in state:
            return _tensor(state)
        if "_value" in state:
            return _plain(state["_value"], budget, depth + 1)
        raise PartitionError(f"cannot read an argument that was a {_text(value.home)}")
    return rebuilt(value, lambda inside: _plain(inside, budget, depth + 1))


def _partial(husk: PartialHusk, budget: Iterator[int], depth: int) -> Any:
    function, args, words = husk.parts if len(husk.parts) == 3 else (None, (), {})
    found = _plain(function, budget, depth + 1)
    if not callable(found) or not isinstance(args, tuple) or not isinstance(words, dict):
        raise PartitionError("cannot read an argument that was a partial function")
    given = [_plain(each, budget, depth + 1) for each in args]
    named = {_text(name): _plain(each, budget, depth + 1) for name, each in words.items()}
    return partial(found, *given, **named)


def _named_thing(home: str) -> Any:
    """The function or type that an argument is, where it is one that may run."""
    name = home.rpartition(".")[2]
    if home in (f"dill.{name}", f"builtins.{name}") and name in _WORDS:
        return _WORDS[name]
    if not is_known(home):
        raise PartitionError(
            f"an argument is {home}, which is no function that we know: register_annotation lets "
            "it run"
        )
    return function_of(OpCall(home)).run


def _tensor(state: dict[str, Any]) -> TensorInfo:
    whole = getattr(state.get("_full_tensor"), "__dict__", state)
    dtype = whole.get("_dtype", torch.float32)
    shape = tuple(int(size) for size in state["_shape"])
    if not isinstance(dtype, torch.dtype) or len(shape) > _WIDEST or prod(shape) > _LARGEST_TENSOR:
        raise PartitionError(f"cannot make a tensor of {len(shape)} dims, {prod(shape)} elements")
    grad = bool(whole.get("_requires_grad", True)) and dtype.is_floating_point
    return shape_of(() if state.get("_is_scalar_tensor") else shape, dtype, grad=grad)


_MARKS = {"Dim": "", "Sum": "+", "Freeze": "^"}


def _said(anno: Any) -> str:
    """The annotation as text, from the objects that it was parsed into."""
    sides = (_few(_state(anno, side)) for side in ("_inputs", "_outputs"))
    return " -> ".join(", ".join(_shape(shape) for shape in side) for side in sides)


def _few(things: Any) -> Any:
    if len(things) > _WIDEST:
        raise PartitionError(f"an annotation has more than {_WIDEST} words")
    return things


def _shape(shape: Any) -> str:
    return " ".join(_dim(dim) for dim in _few(_state(shape, "_dims")))


def _dim(dim: Any) -> str:
    names, marks = _few(_state(dim, "_identifiers")), _state(dim, "_reduces")
    words = [
        name + ("" if name.isdecimal() or name in "?*" else _mark(mark))
        for name, mark in zip(map(_text, names), marks, strict=True)
    ]
    return words[0] if len(words) == 1 else f"({' '.join(words)})"


def _mark(mark: Any) -> str:
    """``+``, ``^`` or nothing: enum members are pickled by value or by name."""
    last = _text(mark.made_with[-1] if isinstance(mark, Husk) else mark)
    return _MARKS.get(last, last)
