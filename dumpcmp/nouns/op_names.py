"""One name for each op, however it is spelled: by Python, by a graph, or by the dispatcher.

`plain_name` is what is called: it drops how a function was reached, and keeps what takes other
arguments or gives other results, such as ``native_layer_norm``. `canonical` is what is computed:
it names ops alike that do the same work, so that the calls of two programs can be matched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from typing import NamedTuple, TypeVar

_V = TypeVar("_V")

BACKWARD = "backward."  # stands before the name of an op that autograd ran

# Where torch keeps its functions -> what aten puts before their names.
_ROOMS = {
    **dict.fromkeys(("", "aten", "prims", "operator", "torch", "torch.Tensor"), ""),
    **dict.fromkeys(("torch.functional", "torch.nn.functional", "torch._C._nn"), ""),
    **dict.fromkeys(("torch._VariableFunctionsClass", "torch._C._VariableFunctions"), ""),
    **dict.fromkeys(("torch._refs", "torch._refs.nn.functional"), ""),
    **{f"torch.{word}": f"{word}_" for word in ("special", "linalg", "fft")},
}
_DISPATCHED = ("aten", "prims")  # behind the op's name stands that of an overload

_TWO_SIDED = "add sub mul div truediv floordiv mod pow matmul and or xor lshift rshift".split()  # noqa: SIM905
_IN_PLACE = frozenset(f"i{name}" for name in _TWO_SIDED)
_REFLECTED = frozenset(f"r{name}" for name in _TWO_SIDED)


def _pairs(text: str) -> dict[str, str]:
    """``"clip concat > cat"``: each word is another name for the one behind the arrow."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        others, _, name = line.partition(" > ")
        found |= dict.fromkeys(others.split(), name)
    return found


# Other names of one function: it takes the same arguments and gives the same results.
_ALIASES = _pairs("""
    absolute > abs
    and > bitwise_and
    arccos > acos
    arccosh > acosh
    arcsin > asin
    arcsinh > asinh
    arctan > atan
    arctan2 > atan2
    arctanh > atanh
    clip > clamp
    concat concatenate > cat
    det > linalg_det
    divide true_divide truediv > div
    fix > trunc
    floordiv > floor_divide
    ger > outer
    _get_data_attr > data
    greater > gt
    greater_equal > ge
    inv invert > bitwise_not
    inverse > linalg_inv
    less > lt
    less_equal > le
    linalg_matmul > matmul
    lshift > bitwise_left_shift
    logsigmoid > log_sigmoid
    _log_softmax special_log_softmax > log_softmax
    matrix_H > H
    matrix_power > linalg_matrix_power
    mod > remainder
    moveaxis > movedim
    multiply > mul
    negative > neg
    not > logical_not
    not_equal > ne
    numpy_T > T
    or > bitwise_or
    pinverse > linalg_pinv
    pos > positive
    row_stack > vstack
    rshift > bitwise_right_shift
    slogdet > linalg_slogdet
    _softmax special_softmax > softmax
    special_digamma special_psi > digamma
    special_erf > erf
    special_erfc > erfc
    special_erfinv > erfinv
    special_exp2 > exp2
    special_expit > sigmoid
    special_expm1 > expm1
    special_gammaln > lgamma
    special_i0 > i0
    special_log1p > log1p
    special_logit > logit
    special_logsumexp > logsumexp
    special_multigammaln > mvlgamma
    special_polygamma > polygamma
    special_round > round
    special_sinc > sinc
    special_xlogy > xlogy
    split_with_sizes > split
    dsmm spmm > mm
    subtract > sub
    swapaxes swapdims > transpose
    _threshold > threshold
    trapz > trapezoid
    _unsafe_view > view
    xor > bitwise_xor
""")

# Functions that do the same work with other arguments, in other dtypes, or on one kind of device.
_SYNONYMS = _pairs("""
    adaptive_avg_pool2d > mean
    batch_norm_legit batch_norm_legit_no_training cudnn_batch_norm > batch_norm
    bfloat16 bool byte char cpu cuda double float half int long short to_copy type type_as > to
    bitwise_and logical_and > and
    bitwise_not logical_not > not
    bitwise_or logical_or > or
    bitwise_xor logical_xor > xor
    constant_pad_nd > pad
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d > conv
    convert_element_type > to
    convolution cudnn_convolution mkldnn_convolution > conv
    grouped_mm_fallback > grouped_mm
    index > getitem
    index_put > setitem
    max_pool2d_with_indices > max_pool2d
    nll_loss_forward > nll_loss
    reshape_alias > reshape
    rsub > sub
    unique2 > unique
    upsample_bilinear2d upsample_nearest2d > interpolate
""")
# What ops of ONNX, and those that ONNX Runtime fuses, do in torch's words.
_EXPORTED = _pairs("""
    onnx.Add > add
    onnx.Sub > sub
    onnx.Mul > mul
    onnx.Div > div
    onnx.Pow > pow
    onnx.Neg > neg
    onnx.Abs > abs
    onnx.Exp > exp
    onnx.Log > log
    onnx.Sqrt > sqrt
    onnx.Sin > sin
    onnx.Cos > cos
    onnx.Erf > erf
    onnx.Tanh > tanh
    onnx.Relu > relu
    onnx.Sigmoid > sigmoid
    onnx.Clip > clamp
    onnx.Where > where
    onnx.Cast > to
    onnx.Equal > eq
    onnx.Less > lt
    onnx.Greater > gt
    onnx.LessOrEqual > le
    onnx.GreaterOrEqual > ge
    onnx.Not > not
    onnx.And > and
    onnx.Or > or
    onnx.MatMul com.microsoft.FusedMatMul > matmul
    onnx.Gemm com.microsoft.FusedGemm > linear
    onnx.Einsum > einsum
    onnx.Conv com.microsoft.FusedConv com.microsoft.nchwc.Conv onnx.ConvTranspose > conv
    onnx.BatchNormalization > batch_norm
    onnx.InstanceNormalization > instance_norm
    onnx.GroupNormalization > group_norm
    onnx.LayerNormalization com.microsoft.SkipLayerNormalization > layer_norm
    onnx.RMSNormalization onnx.SimplifiedLayerNormalization > rms_norm
    com.microsoft.SkipSimplifiedLayerNormalization > rms_norm
    onnx.Softmax > softmax
    onnx.LogSoftmax > log_softmax
    onnx.Gelu com.microsoft.Gelu com.microsoft.BiasGelu com.microsoft.FastGelu > gelu
    onnx.Elu > elu
    onnx.LeakyRelu > leaky_relu
    onnx.HardSwish > hardswish
    onnx.HardSigmoid > hardsigmoid
    onnx.MaxPool com.microsoft.nchwc.MaxPool > max_pool2d
    onnx.AveragePool com.microsoft.nchwc.AveragePool > avg_pool2d
    onnx.GlobalAveragePool com.microsoft.nchwc.GlobalAveragePool > mean
    onnx.ReduceMean > mean
    onnx.ReduceSum > sum
    onnx.ReduceMax > amax
    onnx.ReduceMin > amin
    onnx.ArgMax > argmax
    onnx.ArgMin > argmin
    onnx.TopK > topk
    onnx.CumSum > cumsum
    onnx.Concat > cat
    onnx.Split > split
    onnx.Reshape > reshape
    onnx.Transpose > transpose
    onnx.Squeeze > squeeze
    onnx.Unsqueeze > unsqueeze
    onnx.Expand > expand
    onnx.Slice onnx.GatherND > getitem
    onnx.Gather > embedding
    onnx.GatherElements > gather
    onnx.ScatterElements > scatter
    onnx.ScatterND > setitem
    onnx.Pad > pad
    onnx.Trilu > tril
    onnx.Resize > interpolate
    onnx.GridSample > grid_sample
    onnx.LSTM > lstm
    onnx.GRU > gru
    onnx.Attention com.microsoft.Attention > scaled_dot_product_attention
    com.microsoft.MultiHeadAttention > scaled_dot_product_attention
""")
ATTENTION = "scaled_dot_product_attention"


class _Spelling(NamedTuple):
    name: str
    writes: bool = False  # to its first argument, which it gives out


def plain_name(function: str) -> str:
    """The op that a recorded function, or the target of a call, names.

    Dropped are the room that it stands in, an overload, the marks of operators and of ops in
    place, and that autograd ran it. An op of a namespace that is not torch's keeps its whole name.

    >>> [plain_name(f) for f in ("aten.gelu", "torch.Tensor.add_", "aten.__and__.Tensor")]
    ['gelu', 'add', 'bitwise_and']
    >>> plain_name("backward.aten.native_layer_norm_backward"), plain_name("mine.add")
    ('native_layer_norm_backward', 'mine.add')
    """
    return _spelling(function).name


@cache
def canonical(function: str) -> str:
    """One name for all that do the work of `function`: ``aten._to_copy`` and ``float`` are ``to``.

    What autograd ran is never what the program wrote: it keeps its name.

    >>> canonical("aten.convolution"), canonical("aten.native_layer_norm"), canonical("aten.index")
    ('conv', 'layer_norm', 'getitem')
    """
    return function if function.startswith(BACKWARD) else _work(function)


def is_dispatched(function: str) -> bool:
    """Whether `function` names an op of the dispatcher, whose arguments may be in another order."""
    text = function.removeprefix(BACKWARD).removeprefix("torch.ops.")
    return text.partition(".")[0] in _DISPATCHED


def writes_in_place(target: str) -> bool:
    """Whether a function gives out its first argument, which it has written to."""
    return _spelling(target).writes


@cache
def _work(function: str) -> str:
    name = plain_name(function).lstrip("_").removeprefix("native_")
    name = _EXPORTED.get(name, name)
    if name.startswith("scaled_dot_product") and not name.endswith("_backward"):
        return ATTENTION
    return _SYNONYMS.get(name, name)


@cache
def _spelling(function: str) -> _Spelling:
    text = function.removeprefix(BACKWARD).removeprefix("torch.ops.").removesuffix(".__get__")
    room, _, word = text.rpartition(".")
    namespace, *words = text.split(".")
    if namespace in _DISPATCHED and words:
        room, word = namespace, words[0]
    if room not in _ROOMS:
        return _Spelling(text, any(_is_in_place(word) for word in words[-2:]))
    if word.startswith("__") and word.endswith("__"):
        room, word = "operator", word[2:-2]
    if not room and word in _IN_PLACE:  # as graphs were recorded that have ``operator.iadd``
        room = "operator"
    if room == "operator":
        name = plain_operator(word)
        return _Spelling(_ALIASES.get(name, name), word in _IN_PLACE or word == "setitem")
    name = _ROOMS[room] + (word.rstrip("_") or word)
    return _Spelling(_ALIASES.get(name, name), _is_in_place(word))


def plain_operator(word: str) -> str:
    """The operator of Python that ``iadd`` and ``radd`` are forms of."""
    return word[1:] if word in _IN_PLACE | _REFLECTED else word.rstrip("_")


def _is_in_place(word: str) -> bool:
    return word.endswith("_") and not word.endswith("__")


class OpSet(Set[str]):
    """A set of ops that answers alike for all spellings of one."""

    name_of = staticmethod(plain_name)

    def __init__(self, names: str | Iterable[str]) -> None:
        words = names.split() if isinstance(names, str) else names
        self._names = frozenset(map(self.name_of, words))

    def __contains__(self, function: object) -> bool:
        return isinstance(function, str) and self.name_of(function) in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class WorkSet(OpSet):
    """A set of ops that answers alike for all that do the same work, be it in the backward pass."""

    name_of = staticmethod(_work)


class OpTable(Mapping[str, _V]):
    """What is known of ops; it answers alike for all spellings of one."""

    def __init__(self, entries: Mapping[str, _V]) -> None:
        self._entries: dict[str, _V] = {}
        for name, entry in entries.items():
            known = self._entries.setdefault(plain_name(name), entry)
            if known != entry:
                raise ValueError(f"{name} is {entry!r} here, and {known!r} by another spelling")

    def __getitem__(self, function: str) -> _V:
        return self._entries[plain_name(function)]

    def __contains__(self, function: object) -> bool:
        return isinstance(function, str) and plain_name(function) in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
