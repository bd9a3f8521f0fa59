"""What ops do, by the names of their functions: how much they round, and which are collectives."""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.op_names import OpSet, OpTable, WorkSet, is_dispatched, plain_name
from dumpcmp.nouns.record import Call


class Arithmetic(StrEnum):
    """How much rounding an op may do between its inputs and its outputs."""

    MOVES = "moves"  # copies, views, comparisons: the output has no rounding of its own
    ROUNDS = "rounds"  # one op of its kind: each output is rounded about once
    COMPOSITE = "composite"  # several ops in one, such as attention, or a whole module
    RANDOM = "random"  # draws numbers: two correct runs may differ in every element


# Functions that only move elements, choose among them, or compute exactly.
_MOVES = WorkSet(
    """
    abs argmax argmin argsort as_strided atleast_1d atleast_2d atleast_3d bfloat16 bitwise_and
    bitwise_not bitwise_or bitwise_xor bool broadcast_tensors broadcast_to cat ceil chunk clamp
    clamp_max clamp_min clone column_stack contiguous copy data detach diag diagonal double
    dsplit embedding eq expand expand_as fill flatten flip float floor gather ge getitem gt H
    half hsplit hstack imag index_copy index_fill index_put index_select int isfinite isinf
    isnan le logical_and logical_not logical_or logical_xor long lt masked_fill masked_scatter
    masked_select max max_pool1d max_pool2d max_pool3d maximum meshgrid mH min minimum movedim
    mT narrow ne neg nonzero one_hot ones_like pad permute pixel_shuffle real relu repeat
    repeat_interleave reshape reshape_as roll round scatter select setitem sign sort split
    split_with_sizes squeeze stack swapaxes swapdims T t take take_along_dim tensor_split tile
    to topk transpose tril triu trunc type type_as unbind unflatten unfold unique unsqueeze view
    view_as view_as_complex view_as_real vsplit vstack where zeros_like
    """
)

_COMPOSITE = WorkSet(
    """
    binary_cross_entropy_with_logits cross_entropy ctc_loss gru lstm multi_head_attention_forward
    rnn_relu rnn_tanh scaled_dot_product_attention
    """
)

_REDUCTIONS = WorkSet(
    """
    addbmm addmm addmv baddbmm bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d einsum linear matmul mm mv scaled_dot_product_attention tensordot
    """
)
_SHORTENED = _REDUCTIONS | {"convolution", "grouped_mm", "addmm_activation"}

# Functions that draw random numbers, or do so if an argument asks for it.
RANDOM = OpSet(
    """
    alpha_dropout bernoulli binomial cauchy dropout dropout1d dropout2d dropout3d exponential
    feature_alpha_dropout feature_dropout fractional_max_pool2d fractional_max_pool3d geometric gru
    gumbel_softmax log_normal lstm multi_head_attention_forward multinomial native_dropout normal
    poisson rand rand_like randint randint_like randn randn_like randperm random rnn_relu rnn_tanh
    rrelu scaled_dot_product_attention uniform
    """
)


# Functions that make a tensor of nothing but numbers.
CREATES = OpSet(
    """
    arange as_tensor eye from_numpy full full_like hamming_window hann_window linspace logspace
    new_full new_ones new_tensor new_zeros ones ones_like scalar_tensor tensor tril_indices
    triu_indices zeros zeros_like
    """
)

# Functions that keep a running mean and variance of what they were given.
_KEEPS_STATISTICS = OpSet("batch_norm cudnn_batch_norm instance_norm native_batch_norm")

# Where functions take the weights of the module that calls them: by position or keyword.
_CONVOLUTION = {"1": "weight", "2": "bias", "weight": "weight", "bias": "bias"}
_NORM = {"2": "weight", "3": "bias", "weight": "weight", "bias": "bias"}
_BATCH_NORM = {"1": "running_mean", "2": "running_var", "3": "weight", "4": "bias"}
_WEIGHTS: OpTable[dict[str, str]] = OpTable(
    {
        **dict.fromkeys(("linear", "embedding", "conv1d", "conv2d", "conv3d"), _CONVOLUTION),
        **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _CONVOLUTION),
        **dict.fromkeys(("layer_norm", "group_norm", "rms_norm"), _NORM),
        "batch_norm": _BATCH_NORM,
    }
)
# Where the dispatcher takes them at other positions.
_DISPATCHED_WEIGHTS: OpTable[dict[str, str]] = OpTable(
    {
        "embedding": {"0": "weight"},
        "batch_norm": {"1": "weight", "2": "bias", "3": "running_mean", "4": "running_var"},
    }
)


def is_moment_of_before(key: Key) -> bool:
    """Whether `key` is a moment that an earlier call of its batch norm has written to."""
    if not key.slot.is_input or key.slot not in _moments(key.op):
        return False
    return key.call > 0 or "@" in key.op.scope or "backward" in key.op.function


def variance_beside(key: Key) -> Key | None:
    """The variance that belongs to `key`, which is a moment that a batch norm keeps; or None.

    A variance belongs to itself.
    """
    moments = _moments(key.op)
    return key.site.key(moments[1]) if key.slot in moments else None


def _moments(op: Op) -> tuple[str, str]:
    """The slots of mean and variance that a batch norm keeps, be it a module or a function."""
    if op.is_module:
        return "buffer.running_mean", "buffer.running_var"
    if "batch_norm" not in op.function:
        return "", ""
    # Others than the one in torch.nn.functional take weight and bias before them.
    is_python = plain_name(op.function) == "batch_norm" and not is_dispatched(op.function)
    return ("input.1", "input.2") if is_python else ("input.3", "input.4")


def moments_written(call: Call) -> tuple[str, ...]:
    """The slots of the moments that `call` writes to: a batch norm does so in training."""
    if call.op.function not in _KEEPS_STATISTICS:
        return ()
    tree = argument_tree(call)
    args, kwargs = tree.get("args", ()), tree.get("kwargs", {})
    word = "use_input_stats" if "instance" in call.op.function else "training"
    word = "train" if word not in kwargs and "train" in kwargs else word
    trains = kwargs.get(word, args[5] if len(args) > 5 else False)
    return _moments(call.op) if trains is True else ()


def weight_name(key: Key) -> str:
    """What a module calls the weight that is given to a function as `key`; empty for others."""
    if not key.slot.is_input or key.op.is_module:
        return ""
    function, slots = key.op.function, _WEIGHTS.get(key.op.function, {})
    if is_dispatched(function):
        slots = _DISPATCHED_WEIGHTS.get(function, slots)
    return slots.get(key.slot.name, "")


def arithmetic_of(op: Op) -> Arithmetic:
    """How the op called `op` rounds: a function by its name, a module as a composite."""
    function = op.function
    if not function or function in _COMPOSITE:
        return Arithmetic.COMPOSITE
    if function in _MOVES:
        return Arithmetic.MOVES
    return Arithmetic.RANDOM if function in RANDOM else Arithmetic.ROUNDS


def puts(op: Op) -> bool:
    """Whether `op` puts values into places of its first argument, whatever was there."""
    return op.function in _PUTS


_PUTS = OpSet("setitem index_put index_copy index_fill masked_scatter scatter")


def gives_memory(op: Op) -> bool:
    """Whether `op` gives out memory as it was found, so that its elements mean nothing."""
    return op.function in _MEMORY


_MEMORY = OpSet("empty empty_like empty_strided new_empty new_empty_strided")


def is_reduction(op: Op) -> bool:
    """Whether `op` sums long products, and so adds to the rounding of all that follows."""
    return op.function in _REDUCTIONS


_RECURRENT = OpSet("gru lstm rnn rnn_relu rnn_tanh")


@cache
def _plainly(function: str) -> str:
    """The function that the dispatcher calls by another name, be it in the backward pass.

    >>> _plainly("backward.aten.convolution_backward"), _plainly("aten._cudnn_rnn")
    ('convolution', 'rnn')
    """
    name = plain_name(function).removesuffix("_backward")
    return name.removeprefix("_").removeprefix("cudnn_").removeprefix("mkldnn_")


def shortcuts_of(op: Op, dtype: str) -> frozenset[str]:
    """The declared shortcuts in arithmetic that `op` may take where it gives out `dtype`."""
    name = _plainly(op.function)
    is_recurrent = name in _RECURRENT
    if not (name in _SHORTENED or is_recurrent):
        return frozenset()
    by_cudnn = is_recurrent or name.startswith("conv")
    wide = "tf32-conv" if by_cudnn else "tf32"
    words = {"float32": [wide], "bfloat16": ["bf16-reduction"],
             "float16": ["fp16-reduction", "fp16-accumulation"]}  # fmt: skip
    return frozenset(words.get(dtype, ()))


def multiplies_in_parts(op: Op, dtype: str, device: str) -> bool:
    """Whether a kernel of `device` may multiply `dtype` as several products of shorter numbers.

    Fused attention in float32 does so on CUDA, by three of TF32, whatever torch's flags say.
    """
    is_attention = "scaled_dot_product" in op.function or "efficient_attention" in op.function
    return is_attention and dtype == "float32" and device.startswith("cuda")


def activates_in_short(op: Op, dtype: str, device: str) -> bool:
    """Whether a kernel of `device` takes tanh and sigmoid less precisely than `dtype` could.

    cuDNN's recurrent layers do so in float32.
    """
    is_recurrent = _plainly(op.function) in _RECURRENT
    return is_recurrent and dtype == "float32" and device.startswith("cuda")


def is_sum(op: Op) -> bool:
    """Whether `op` adds up its inputs, which may cancel."""
    return op.function in _SUMS


_SUMS = WorkSet("add sub mean sum cumsum lerp var std")


class Collective(StrEnum):
    """Which one it is, as the function of its op: ``layers.1.attn.o/all_reduce``."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND = "send"
    RECV = "recv"

    @property
    def target(self) -> str:
        """Its name in torch."""
        return f"torch.distributed.{self}"

    @property
    def has_namesake(self) -> bool:
        """Whether a function of torch that moves nothing between ranks has the name, too."""
        return self in (Collective.GATHER, Collective.SCATTER)

    @property
    def keeps_shape(self) -> bool:
        """Whether it gives out the shape that it takes, so that its output is a value."""
        return self in (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)

    @property
    def is_letter(self) -> bool:
        """Whether it goes from one rank to one other."""
        return self in (Collective.SEND, Collective.RECV)


def adds_in_short(op: Op, device: str) -> bool:
    """Whether a kernel of `device` adds up products with fewer digits than float32 has."""
    return _plainly(op.function) == "scaled_mm" and device.startswith("cuda")
