"""Sees every function that a capture sees, one layer below it, and may answer in its place."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from dumpcmp.nouns.key import ROOT
from dumpcmp.taps.recording.functions import function_of

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Site:
    """A call as captures name it: the module and which call of it, the function, and which."""

    scope: str  # "layers.1.mlp", or "layers.1.mlp@2" for its third call
    function: str
    call: int

    @property
    def op(self) -> str:
        return f"{self.scope}/{self.function}"

    @property
    def module(self) -> str:
        return self.scope.partition("@")[0]

    def __str__(self) -> str:
        return f"{self.op}#{self.call}"


# What computes a call: from its place, and the function with its arguments.
Answer = Callable[[Site, Run, Args, Kwargs], Any]


def plainly(_: Site, func: Run, args: Args, kwargs: Kwargs) -> Any:
    """Compute a call as it is."""
    return func(*args, **kwargs)


class Below(TorchFunctionMode):
    """Knows where in `model` each function runs, and has `answer` compute it."""

    def __init__(self, model: nn.Module, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self._paths = {id(module): name or ROOT for name, module in model.named_modules()}
        self._scopes: list[tuple[str, Counter[str]]] = []
        self._entered: Counter[str] = Counter()

    def enter(self, module: nn.Module, *_: Any) -> None:
        path = self._paths.get(id(module), "?")
        nth = self._entered[path]
        self._entered[path] += 1
        self._scopes.append((f"{path}@{nth}" if nth else path, Counter()))

    def leave(self, *_: Any) -> None:
        self._scopes.pop()

    def __torch_function__(
        self, func: Run, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function_of(func).name
        if not name or not self._scopes or torch._C._current_autograd_node() is not None:
            return func(*args, **kwargs)
        scope, counts = self._scopes[-1]
        counts[name] += 1
        return self.answer(Site(scope, name, counts[name] - 1), func, args, kwargs)


@contextmanager
def below(model: nn.Module, answer: Answer) -> Iterator[None]:
    """Have `answer` compute every call of `model` in the block. Enter it before the capture."""
    mode = Below(model, answer)
    handles = (
        register_module_forward_pre_hook(mode.enter),
        register_module_forward_hook(mode.leave, always_call=True),
    )
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


# What was called


@dataclass(frozen=True, slots=True)
class Seen:
    """One call of a run: where, on what, and what it gave."""

    site: Site
    dtype: str  # of its first floating output; empty where there is none
    shape: tuple[int, ...]
    is_move: bool  # only moves what it was given
    in_place: bool
    has_bias: bool
    plain: str  # what it was given besides tensors, in words
    parameters: frozenset[str]  # names of the parameters that it took


def one_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = one_of(
    """
    getitem cat stack view reshape transpose permute unsqueeze squeeze expand repeat flatten chunk
    split unbind contiguous roll flip embedding index_select gather movedim narrow select swapaxes
    swapdims view_as expand_as repeat_interleave t T mT clone detach pad unflatten broadcast_to
    unfold tril triu zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty
    zeros ones full empty arange alias requires_grad data scatter index_put setitem masked_fill
    where copy
    """
)
CASTS = one_of("to type float half bfloat16 double type_as")


def listing(model: nn.Module, step: Callable[[], None]) -> list[Seen]:
    """Every call of `step`, in order."""
    found: list[Seen] = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def answer(site: Site, func: Run, args: Args, kwargs: Kwargs) -> Any:
        out = func(*args, **kwargs)
        found.append(_seen(site, args, kwargs, out, names))
        return out

    with below(model, answer):
        step()
    return found


def _seen(site: Site, args: Args, kwargs: Kwargs, out: Any, names: dict[int, str]) -> Seen:
    tensors = [x for x in flat((args, kwargs)) if isinstance(x, Tensor)]
    first = next((x for x in flat(out) if _is_float(x)), None)
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    return Seen(
        site,
        "" if first is None else str(first.dtype).removeprefix("torch."),
        () if first is None else tuple(first.shape),
        site.function in MOVES,
        any(first is x for x in tensors) or site.function == "setitem",
        isinstance(bias, Tensor) and site.function in ("linear", "conv1d", "conv2d"),
        words((args, kwargs)),
        frozenset(names[id(x)] for x in tensors if id(x) in names),
    )


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def flat(tree: Any) -> Iterator[Any]:
    """The leaves of a tree of arguments or results."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list):
        for branch in tree:
            yield from flat(branch)
    else:
        yield tree


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `change` of every leaf, in tuples and lists of their own types."""
    if isinstance(tree, dict):
        return {name: mapped(change, branch) for name, branch in tree.items()}
    if isinstance(tree, tuple | list):
        made = [mapped(change, branch) for branch in tree]
        return made if isinstance(tree, list) else rebuilt(tree, made)
    return change(tree)


def rebuilt(like: tuple[Any, ...], leaves: list[Any]) -> Any:
    """A tuple of the type of `like`: torch's own results are named ones."""
    if type(like) is tuple:
        return tuple(leaves)
    takes_many = "_make" in dir(like) and inspect.isroutine(like._make)  # type: ignore[attr-defined]
    return type(like)(*leaves) if takes_many else type(like)(leaves)


def words(tree: Any) -> str:
    """What a call was given, with tensors left out."""
    return repr(mapped(lambda x: "T" if isinstance(x, Tensor) else x, tree))
