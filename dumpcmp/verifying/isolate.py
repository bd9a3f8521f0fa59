"""Copies that share nothing with the user's model and inputs."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from dumpcmp.pytorch.trees import tensors_in
from dumpcmp.taps.recording.precision import Precision


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among the arguments: "0", "1.mask", "attention_mask"."""
        return tensors_in(self.args) | tensors_in(self.kwargs)

    def mutable(self) -> dict[str, torch.Tensor]:
        """The same by what they are called in a report if a run changes them: "mutated.0"."""
        return {f"mutated.{path}": tensor for path, tensor in self.tensors().items()}


@dataclass(frozen=True, slots=True)
class Subject:
    """A callable ready to be run once: what to call, with what, and the modules it works on."""

    call: Callable[..., Any]
    inputs: Inputs
    modules: dict[str, nn.Module]  # by the prefix of their parameters' names
    copied: bool  # False: it is the user's own, whose state must be put back
    remark: str = ""

    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters, by name."""
        owners = self.modules.items()
        return dict(pair for name, module in owners for pair in module.named_parameters(name))

    def state(self) -> dict[str, torch.Tensor]:
        """All buffers and parameters: "buffer.bn.running_mean", "param.weight"."""
        owners = self.modules.items()
        buffers = dict(pair for name, module in owners for pair in module.named_buffers(name))
        state = {f"buffer.{name}": value for name, value in buffers.items()}
        return state | {f"param.{name}": value for name, value in self.parameters().items()}


def isolated(call: Callable[..., Any], inputs: Inputs) -> Subject:
    """`call` and `inputs` as one deep copy: strides and storages kept, aliases still aliases.

    A function is not copied; the modules it closes over are run in place and put back later.
    """
    memo = _leaf_copies(inputs)
    try:
        twin, arguments = copy.deepcopy((call, inputs), memo)
        remark, copied = "", True
    except Exception as error:  # whatever a user's class raises, we can still run it in place
        twin, arguments, copied = call, copy.deepcopy(inputs, _leaf_copies(inputs)), False
        remark = (
            f"{called(call)} could not be copied ({type(error).__name__}: {error}), so it ran in "
            "place; its parameters, buffers and grads were put back"
        )
    modules = modules_of(twin)
    copied = copied and (isinstance(twin, nn.Module) or not modules or twin is not call)
    return Subject(twin, arguments, modules, copied, remark)


def _leaf_copies(inputs: Inputs) -> dict[int, Any]:
    """A memo for deepcopy that holds what it refuses: inputs that autograd computed."""
    memo: dict[int, Any] = {}
    for tensor in inputs.tensors().values():
        if not tensor.is_leaf:
            leaf = tensor.detach().requires_grad_(tensor.requires_grad)
            memo[id(tensor)] = copy.deepcopy(leaf, memo)
    return memo


def modules_of(call: Callable[..., Any]) -> dict[str, nn.Module]:
    """The modules that `call` works on: itself, its owner, or those it closes over."""
    owner = call if isinstance(call, nn.Module) else getattr(call, "__self__", None)
    if isinstance(owner, nn.Module):
        return {"": _unwrapped(owner)}
    if isinstance(call, functools.partial):
        return modules_of(call.func)
    function = inspect.unwrap(call)
    if not inspect.isfunction(function):
        return {}
    seen = inspect.getclosurevars(function)
    named = {**seen.globals, **seen.nonlocals}
    modules = {name: value for name, value in named.items() if isinstance(value, nn.Module)}
    return {"": _unwrapped(*modules.values())} if len(modules) == 1 else modules


def _unwrapped(module: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile and of data parallelism."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def called(call: Callable[..., Any]) -> str:
    """What to call a side: its class or function, and whether it is compiled."""
    inner = getattr(call, "_orig_mod", None)
    if inner is not None:
        return f"compiled {type(inner).__name__}"
    return str(getattr(call, "__name__", type(call).__name__))


def in_double(inputs: Inputs) -> Inputs:
    """`inputs`, which are copies already, in float64; aliases stay aliases."""
    bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    memo: dict[int, Any] = {
        id(tensor): _doubled(tensor, bases)
        for tensor in inputs.tensors().values()
        if tensor.is_floating_point()
    }
    return copy.deepcopy(inputs, memo)


def _doubled(
    tensor: torch.Tensor, bases: dict[tuple[int, torch.dtype], torch.Tensor]
) -> torch.Tensor:
    """`tensor` in float64, over a cast of its whole storage, so that aliases stay aliases."""
    storage = tensor.untyped_storage()
    key = storage.data_ptr(), tensor.dtype
    if key not in bases:
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
        bases[key] = flat.double()
    wide = torch.empty(0, dtype=torch.float64, device=tensor.device).set_(
        bases[key].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    return wide.requires_grad_(tensor.requires_grad)


class _Widening(TorchFunctionMode):
    """Turns casts to shorter floats into casts to float64, so that a reference stays one."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.precision = precision

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func` as the code inside asks, but for the dtype."""
        func, args, named = self.precision.call(func, args, kwargs or {})
        return func(*args, **named)


@contextmanager
def widened(subject: Subject) -> Iterator[None]:
    """Have `subject` compute in float64, whatever dtype its code asks for."""
    precision, default = Precision("float64"), torch.get_default_dtype()
    for module in subject.modules.values():
        precision.convert(module)
    torch.set_default_dtype(torch.float64)
    try:
        with _Widening(precision):
            yield
    finally:
        torch.set_default_dtype(default)
        precision.restore()


@contextmanager
def put_back(subject: Subject) -> Iterator[None]:
    """Give `subject` empty grads; leave a module that is the user's own as it was before."""
    with ExitStack() as undo:
        if not subject.copied:
            for tensor in subject.state().values():
                undo.callback(_restore, tensor, tensor.detach().clone(), tensor.grad)
        for parameter in subject.parameters().values():
            parameter.grad = None
        for tensor in subject.inputs.tensors().values():
            if tensor.is_leaf:
                tensor.grad = None
        yield


def _restore(tensor: torch.Tensor, before: torch.Tensor, grad: torch.Tensor | None) -> None:
    with torch.no_grad():
        if not torch.equal(tensor, before):
            tensor.copy_(before)
    tensor.grad = grad
