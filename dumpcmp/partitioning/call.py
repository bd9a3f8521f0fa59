"""Calls of ops as plain values: what runs, which arguments are tensors, what is to be verified."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dumpcmp.partitioning.configuration import SHAPE, VALUE, IRObject, PartitionConfig, TensorInfo

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One argument, numbered as ``idx`` counts them; lists that hold tensors are opened up."""

    path: Path  # ("args", 0), ("args", 0, 1), ("kwargs", "bias")
    value: Any  # a TensorInfo for a tensor

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, TensorInfo)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The tensor's shape, None for anything else."""
        return self.value.shape if isinstance(self.value, TensorInfo) else None


@dataclass(frozen=True, slots=True)
class OpCall:
    """A function's signature and its arguments, tensors as TensorInfos at any depth."""

    fsig: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    imports: str = ""

    def __str__(self) -> str:
        words = [spoken(arg) for arg in self.args]
        words += [f"{name}={spoken(value)}" for name, value in self.kwargs.items()]
        return f"{self.fsig}({', '.join(words)})"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An op to be verified, or the reason why it is not, and what to call it in the report."""

    call: OpCall
    options: tuple[Mapping[str, Any], ...] | None = None  # None: every legal one
    anno: str = ""
    node: str = ""
    source: str = ""
    noutputs: int | None = None  # how many outputs the user expects
    reason: str = ""  # why there is nothing to verify
    computes: bool = True  # takes tensors and gives tensors

    @property
    def identity(self) -> str:
        """What makes two ops the same here: op, shapes, dtypes, arguments, annotation."""
        return f"{self.call} | {self.anno} | {self.call.imports} | {self.options} | {self.reason}"


def merged(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Each op once, under the names of all nodes that are the same."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.identity, []).append(candidate)
    for group in groups.values():
        yield replace(group[0], node=" ".join(each.node for each in group))


def call_of(config: PartitionConfig) -> OpCall:
    """The call that `config` describes; only tensors of the wanted grads ask for them."""
    args = list(config.args)
    for index in config.non_grad_indices:
        if index < len(args) and isinstance(args[index], TensorInfo):
            args[index] = replace(args[index], requires_grad=False)
    given = plain(tuple(args)), plain(dict(config.kwargs))
    return OpCall(config.fsig, *given, config.import_customized_func)


def plain(value: Any) -> Any:
    """`value` with tracer objects and value-form arguments replaced by what they hold."""
    match value:
        case IRObject():
            return plain(value.value)
        case TensorInfo(value_form="value") if not isinstance(value.value, torch.Tensor):
            return plain(value.value)
        case torch.Tensor():
            return TensorInfo(VALUE, value, value.dtype, value.is_floating_point())
        case _:
            return rebuilt(value, plain)


def rebuilt(value: Any, inside: Callable[[Any], Any]) -> Any:
    """`value` with `inside` of everything that it holds, if it is a list, a dict or a slice."""
    match value:
        case slice():
            return slice(inside(value.start), inside(value.stop), inside(value.step))
        case list() | tuple():
            return (list if isinstance(value, list) else tuple)(map(inside, value))
        case dict():
            return {key: inside(item) for key, item in value.items()}
        case functools.partial():
            given = inside(list(value.args)), inside(dict(value.keywords))
            return functools.partial(inside(value.func), *given[0], **given[1])
        case _:
            return value


def leaves(call: OpCall) -> tuple[Leaf, ...]:
    """The arguments of `call` in order: positional ones, then keywords that hold tensors."""
    positional = [leaf for i, arg in enumerate(call.args) for leaf in _opened(("args", i), arg)]
    keywords = [
        leaf
        for name, value in call.kwargs.items()
        for leaf in _opened(("kwargs", name), value)
        if leaf.is_tensor
    ]
    return (*positional, *keywords)


def _opened(path: Path, value: Any) -> Iterator[Leaf]:
    if isinstance(value, list | tuple) and any(isinstance(item, TensorInfo) for item in value):
        for i, item in enumerate(value):
            yield Leaf((*path, i), item)
    else:
        yield Leaf(path, value)


def replaced(call: OpCall, change: Callable[[Path, Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `call` after `change(path, value)` of every leaf and every other keyword."""

    def inside(path: Path, value: Any) -> Any:
        opened = list(_opened(path, value))
        if opened[:1] and opened[0].path == path:
            return change(path, value)
        return [change(leaf.path, leaf.value) for leaf in opened]

    args = [inside(("args", i), arg) for i, arg in enumerate(call.args)]
    return args, {name: inside(("kwargs", name), value) for name, value in call.kwargs.items()}


def spoken(value: Any) -> str:
    """A short, stable text of an argument: it names the call in reports and in its content key."""
    match value:
        case TensorInfo(value_form="shape"):
            frozen = value.dtype.is_floating_point and not value.requires_grad
            return f"{value} without grad" if frozen else str(value)
        case TensorInfo():
            numbers = value.value.detach().cpu()
            return f"{value}={numbers.flatten()[:8].tolist()}#{hash_of(numbers)}"
        case list() | tuple():
            return f"[{', '.join(map(spoken, value))}]"
        case slice():
            return f"slice({spoken(value.start)}, {spoken(value.stop)}, {spoken(value.step)})"
        case str():
            return repr(value)
        case functools.partial():
            return f"partial{spoken((value.func, value.args, list(value.keywords.items())))}"
        case _ if callable(value) and hasattr(value, "__qualname__"):
            return (
                f"{value.__module__}.{value.__qualname__}"  # where it lies in memory says nothing
            )
        case _:
            return str(value)


def hash_of(tensor: torch.Tensor) -> str:
    """A digest of the tensor's bytes."""
    import xxhash

    from dumpcmp.nouns.value import value_of

    return xxhash.xxh3_64_hexdigest(value_of(tensor.contiguous()).bits.tobytes())


def shape_of(shape: tuple[int, ...], dtype: torch.dtype, *, grad: bool | None = None) -> TensorInfo:
    """A tensor argument of `shape`; floats ask for a gradient unless `grad` says otherwise."""
    return TensorInfo(SHAPE, shape, dtype, dtype.is_floating_point if grad is None else grad)
