"""What a torch function is called, whichever way it was reached: one name for one operation."""

import builtins
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.arithmetic import RANDOM
from dumpcmp.nouns.op_names import OpSet, OpTable, writes_in_place
from dumpcmp.pytorch.trees import Slots

# Spellings of Python's operators -> the torch function that they run.
_OPERATORS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "inv": "invert",
    "concat": "cat",
    "concatenate": "cat",
    "split_with_sizes": "split",
    "_get_data_attr": "data",
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_INPLACE_OPERATORS = _words(
    "iadd isub imul idiv itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift"
)

_OPERATOR_MODULES = (operator.__name__, operator.add.__module__)

_COMMUTATIVE = _words("add mul and or xor eq ne maximum minimum")

# Reflected operators -> the operator; 1 - x reaches torch as Tensor.__rsub__(x, 1).
_REFLECTED = {
    f"__r{name}__": name
    for name in _words("add sub mul div truediv floordiv mod pow matmul and or xor lshift rshift")
}

# Functions whose result holds no tensor, or only bookkeeping: they are no ops.
_NO_OPS = _words(
    """
    size stride dim ndimension numel nelement storage_offset element_size is_contiguous data_ptr
    item tolist numpy __len__ __bool__ __int__ __float__ __complex__ __index__ __contains__
    __repr__ __str__ __format__ __hash__ __array__ __dlpack__ __dlpack_device__ __deepcopy__
    __reduce_ex__ __reduce__ __setstate__ __dir__ __iter__ __nonzero__ __long__ __delete__ __set__
    requires_grad_ register_hook register_post_accumulate_grad_hook retain_grad backward
    get_device has_names untyped_storage storage storage_type _typed_storage result_type equal
    allclose is_same_size is_tensor is_storage is_floating_point is_complex is_conj is_neg
    is_nonzero is_signed is_inference is_distributed is_shared is_pinned is_coalesced is_set_to
    is_autocast_enabled is_grad_enabled is_inference_mode_enabled get_autocast_dtype
    broadcast_shapes promote_types can_cast get_default_dtype set_grad_enabled _set_grad_enabled
    _enter_autocast _exit_autocast inference_mode manual_seed seed get_rng_state set_rng_state
    initial_seed _is_view _nested_tensor_size unsafe_get_raw_grad grad sym_size sym_stride
    sym_numel sym_storage_offset sym_int sym_float sym_max sym_min sym_not sym_sum
    has_torch_function share_memory_ _make_subclass as_subclass rename_
    typename compiled_with_cxx11_abi get_num_threads use_deterministic_algorithms
    _enter_inference_mode _exit_inference_mode _saved_tensors_hooks_disable
    _saved_tensors_hooks_enable _check _check_is_size ndim is_sparse device finfo iinfo Size
    """
)

# Attributes of a tensor that are tensors computed from it.
_COMPUTED_ATTRIBUTES = _words("T mT H mH real imag")

# The argument that switches a random function's drawing on: position, names, default.
_SWITCHES: OpTable[tuple[int, tuple[str, ...], Any]] = OpTable(
    {
        "scaled_dot_product_attention": (4, ("dropout_p",), 0.0),
        "rrelu": (3, ("training",), False),
        **{
            name: (2, ("training", "train"), True)
            for name in RANDOM
            if name.endswith(("dropout", "dropout1d", "dropout2d", "dropout3d"))
        },
    }
)


@dataclass(frozen=True, slots=True)
class Function:
    """A torch function as captures name it. An empty `name` means that it is no op."""

    name: str  # "linear"; one name for torch.add, Tensor.add_, + and +=
    target: str = ""  # "torch.nn.functional.linear": what a replay calls
    positions: dict[str, int] = field(default_factory=dict, compare=False)  # parameters by name
    reflected: bool = False  # the arguments arrive in the wrong order: __rsub__
    commutative: bool = False
    random: bool = False
    returns_nothing: bool = False  # its result is its changed first argument: __setitem__

    def draws(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call takes numbers from a random generator."""
        if not self.random or self.name not in _SWITCHES:
            return self.random
        position, names, default = _SWITCHES[self.name]
        given = [kwargs[name] for name in names if name in kwargs]
        return bool([default, *args[position : position + 1], *given][-1])


NO_OP = Function("")

_UNWRITTEN = OpSet(
    """
    empty empty_like empty_permuted empty_quantized empty_strided new new_empty new_empty_strided
    resize resize_as
    """
)


@cache
def leaves_unwritten(target: str) -> bool:
    """Whether `target` gives memory as it finds it: the elements mean nothing until written to."""
    return target in _UNWRITTEN


_FILLS = OpSet("copy fill normal uniform zero")


@cache
def fills(target: str) -> bool:
    """Whether `target` writes to all of its first argument, whatever lay there."""
    return target in _FILLS and writes_in_place(target)


_WRITES = _FILLS | OpSet(
    """
    bernoulli cauchy exponential geometric index_copy index_fill index_put log_normal masked_fill
    masked_scatter random scatter setitem
    """
)


@cache
def is_target(target: str, slot: str) -> bool:
    """Whether `target` writes to what it takes at `slot`, and does not compute with it."""
    if slot != "input.0":
        return slot == "input.out"
    return target in _WRITES and writes_in_place(target)


_MOMENTS = OpSet("batch_norm cudnn_batch_norm miopen_batch_norm native_batch_norm")
_TRAINING = 5  # where all of these are told whether they train


@cache
def _writes_moments(target: str) -> bool:
    return target in _MOMENTS


def moments_written(target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The moments that a batch norm may have written to, which torch does not count.

    On the host nothing needs to be told of them: there the bytes decide whether a value is still
    what it was.
    """
    if not _writes_moments(target):
        return []
    is_training = args[_TRAINING] if len(args) > _TRAINING else kwargs.get("training", False)
    if not is_training:
        return []
    taken = [each for each in (*args[1:5], *kwargs.values()) if isinstance(each, Tensor)]
    return [each for each in taken if each.dim() == 1 and not each.is_cpu]


@cache
def needs_care(target: str) -> bool:
    """Whether it matters for a value of `target` what lay in its memory before."""
    return leaves_unwritten(target) or fills(target)


@cache
def function_of(func: Callable[..., Any]) -> Function:
    """Name `func`, which is what a TorchFunctionMode, or a call_function node, was given."""
    spelled = getattr(func, "__name__", type(func).__name__)
    if spelled == "__get__":
        return attribute_of(getattr(getattr(func, "__self__", None), "__name__", ""))
    if spelled in _NO_OPS or func in (builtins.getattr, builtins.setattr):
        return NO_OP
    name = _plain(spelled, func)
    return Function(
        name,
        target=_public_name(func),
        positions=_positions(func),
        reflected=spelled in _REFLECTED,
        commutative=name in _COMMUTATIVE,
        random=name in RANDOM,
        returns_nothing=name == "setitem",
    )


@cache
def attribute_of(name: str) -> Function:
    """Name the attribute `name` of a tensor, as the node ``getattr(x, name)`` of a graph asks."""
    if name not in _COMPUTED_ATTRIBUTES:
        return NO_OP
    return Function(name, target=f"torch.Tensor.{name}.__get__")


def _plain(spelled: str, func: Callable[..., Any]) -> str:
    """`spelled` without what only says how it was reached: underscores, reflection, in place."""
    name = _REFLECTED.get(spelled, spelled)
    if getattr(func, "__module__", None) in _OPERATOR_MODULES and name in _INPLACE_OPERATORS:
        name = name[1:]
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        name = name[1:] if name in _INPLACE_OPERATORS else name
    name = name if name.startswith("_") else name.rstrip("_")
    return _OPERATORS.get(name, name)


def _public_name(func: Callable[..., Any]) -> str:
    try:
        found = torch.overrides.resolve_name(func)
    except (TypeError, AttributeError):
        found = None
    if found:
        return str(found)
    module = getattr(func, "__module__", None) or "torch"
    return f"{module.removeprefix('_')}.{getattr(func, '__qualname__', repr(func))}"


def _positions(func: Callable[..., Any]) -> dict[str, int]:
    """Where each parameter of a Python function stands, so that x=1 and 1 get the same slot."""
    if not inspect.isfunction(func):
        return {}
    try:
        parameters = inspect.signature(func).parameters.values()
    except ValueError:  # a Python wrapper of a built-in, which has none
        return {}
    return {p.name: i for i, p in enumerate(parameters) if p.kind is p.POSITIONAL_OR_KEYWORD}


def in_order(function: Function, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments in the order of the plain operator: ``1 - x`` and ``1 + x`` read alike."""
    if len(args) != 2:
        return args
    if function.commutative:
        wrong = not isinstance(args[0], Tensor) and isinstance(args[1], Tensor)
    else:
        wrong = function.reflected
    return (args[1], args[0]) if wrong else args


def generator_for(found: Slots) -> Slots:
    """The state of the generator that a random function of `found` is about to draw from."""
    on_gpu = next((t.device for _, t in found if t.device.type == "cuda"), None)
    if on_gpu is not None:
        return [("rng.cuda", torch.cuda.get_rng_state(on_gpu))]
    return [("rng.cpu", torch.get_rng_state())]
