"""Reads nnScaler's ``graph.ckp`` without nnScaler, and without executing anything in it.

The file is a pickle of ``(ids, IRGraph)``. The unpickler here finds no function and no class but a
few harmless ones: everything else becomes a Husk, which remembers what it was given and does
nothing. Ops are run only if our table or the user's registrations know them.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dumpcmp.partitioning.call import Candidate, OpCall, rebuilt, shape_of
from dumpcmp.partitioning.configuration import PartitionError, TensorInfo
from dumpcmp.partitioning.files import read_plain
from dumpcmp.partitioning.table import is_known

_LARGEST = 1 << 30  # bytes of a graph; it holds shapes, and small tensors at most


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


_BUILTINS = (slice, set, frozenset, list, dict, tuple, complex)
_HARMLESS = {
    ("torch", "Size"): torch.Size,
    ("collections", "OrderedDict"): OrderedDict,
    **{("builtins", kind.__name__): kind for kind in _BUILTINS},
}


class InertUnpickler(pickle.Unpickler):
    """Reads the structure of a pickle, and runs none of what it names."""

    def find_class(self, module: str, name: str, /) -> Any:
        """A harmless class, a torch dtype, or a fresh kind of Husk."""
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        return type("Husk", (Husk,), {"home": f"{module}.{name}"})

    def persistent_load(self, pid: Any, /) -> Any:
        """Stand for an object that lies elsewhere."""
        return Husk(pid)


def read_checkpoint(path: Path) -> list[Candidate]:
    """The ops of the graph at `path`."""
    try:
        loaded = InertUnpickler(io.BytesIO(read_plain(path, _LARGEST))).load()
        graph = loaded[1] if isinstance(loaded, tuple) and len(loaded) == 2 else loaded
        return list(_nodes(_state(graph, "_nodes")))
    except PartitionError:
        raise
    except Exception as error:
        raise PartitionError(
            f"{path} is not a graph checkpoint: {type(error).__name__}: {error}",
            hint="give the graph.ckp that nnScaler's parallelize writes",
        ) from error


def _state(husk: Any, name: str, default: Any = ...) -> Any:
    found = getattr(husk, "__dict__", {}).get(name, default)
    if found is ...:
        raise PartitionError(
            f"a {getattr(husk, 'home', type(husk).__name__)} in the graph has no {name!r}",
            hint="give the graph.ckp that nnScaler's parallelize writes",
        )
    return found


def _nodes(cells: Any) -> Iterator[Candidate]:
    for cell in cells:
        if "_nodes" in cell.__dict__:  # a segment
            yield from _nodes(_state(cell, "_nodes"))
        else:
            yield _candidate(cell)


def _candidate(cell: Any) -> Candidate:
    fsig = str(_state(cell, "signature"))
    name = f"{_state(cell, 'name', 'node')}{_state(cell, '_id', '')}"
    named = Candidate(OpCall(fsig), node=name, source=_line(_state(cell, "_comment", "")))
    try:
        return _op(cell, named)
    except PartitionError as error:
        return replace(named, reason=error.message)


def _op(cell: Any, named: Candidate) -> Candidate:
    fsig, inputs = named.call.fsig, [_plain(value) for value in _state(cell, "_inputs")]
    anno = _state(cell, "_anno", None)
    if anno is None:
        return replace(named, reason="the graph has no annotation for it", computes=False)
    if not any(isinstance(value, TensorInfo) for value in inputs):
        return replace(named, reason="takes no tensor: nothing to partition", computes=False)
    if not is_known(fsig):
        reason = f"{fsig} is not a function that we know: register_annotation lets it run"
        return replace(named, reason=reason)
    kwargs = {str(k): _plain(v) for k, v in _state(cell, "_kwargs", {}).items()}
    return replace(named, call=OpCall(fsig, tuple(inputs), kwargs), anno=_said(anno))


def _line(comment: Any) -> str:
    """The user's line: of ``File "/a/b.py", line 7, in forward`` the file's name and the number."""
    words = str(comment or "").split('"')
    if len(words) < 3 or ", line " not in words[2]:
        return str(comment or "").strip().split("\n")[0]
    return f"{Path(words[1]).name}:{words[2].split(', line ')[1].split(',')[0].strip()}"


def _plain(value: Any) -> Any:
    """An argument: tensors as their shapes, other traced objects as their values."""
    if isinstance(value, Husk):
        state = value.__dict__
        if "_shape" in state:
            return _tensor(state)
        if "_value" in state:
            return _plain(state["_value"])
        raise PartitionError(f"cannot read an argument that was a {value.home}")
    return rebuilt(value, _plain)


def _tensor(state: dict[str, Any]) -> TensorInfo:
    whole = getattr(state.get("_full_tensor"), "__dict__", state)
    dtype = whole.get("_dtype", torch.float32)
    shape = tuple(int(size) for size in state["_shape"])
    grad = bool(whole.get("_requires_grad", True)) and dtype.is_floating_point
    return shape_of(() if state.get("_is_scalar_tensor") else shape, dtype, grad=grad)


_MARKS = {"Dim": "", "Sum": "+", "Freeze": "^"}


def _said(anno: Any) -> str:
    """The annotation as text, from the objects that it was parsed into."""
    sides = (_state(anno, side) for side in ("_inputs", "_outputs"))
    return " -> ".join(", ".join(_shape(shape) for shape in side) for side in sides)


def _shape(shape: Any) -> str:
    return " ".join(_dim(dim) for dim in _state(shape, "_dims"))


def _dim(dim: Any) -> str:
    names, marks = _state(dim, "_identifiers"), _state(dim, "_reduces")
    words = [
        str(name) + ("" if str(name).isdecimal() or name in "?*" else _mark(mark))
        for name, mark in zip(names, marks, strict=True)
    ]
    return words[0] if len(words) == 1 else f"({' '.join(words)})"


def _mark(mark: Any) -> str:
    """``+``, ``^`` or nothing: enum members are pickled by value or by name."""
    last = mark.made_with[-1] if isinstance(mark, Husk) else mark
    return _MARKS.get(str(last), str(last))
