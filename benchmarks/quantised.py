"""Quantised runs against the run that they were made of: sound ones, and ones with a fault."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from benchmarks.tables import Table
from dumpcmp.judge.tolerances import NORMAL_FLOAT
from dumpcmp.nouns.outcome import Outcome

GROUP = 32
WHOLE = -1  # a scale for the whole weight
TINY = 1e-12  # a row of zeros has a scale, too
FAULTS = ("scale x 1.05", "scale x 1.01", "scales of the next row", "one scale x 1.1",
          "zero point off by one", "codes swapped in pairs", "rounded down", "no bias",
          "inputs clipped")  # fmt: skip


@dataclass(frozen=True)
class Codes:
    """A weight as integers, or as floats of 8 bits, with a scale for each row of `code`."""

    code: Tensor
    scale: Tensor
    zero: Tensor

    def dequantised(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return ((self.code.to(dtype) - self.zero.to(dtype)) * self.scale.to(dtype)).reshape(shape)


def symmetric(weight: Tensor, group: int, most: int) -> Codes:
    """So many levels to each side of zero."""
    rows = weight.float().reshape(-1, group)
    scale = rows.abs().amax(1, keepdim=True).clamp_min(TINY) / most
    return Codes((rows / scale).round().to(torch.int8), scale, torch.zeros_like(scale))


def affine(weight: Tensor, group: int, most: int) -> Codes:
    """Levels from the least to the largest number, one of which is zero."""
    rows = weight.float().reshape(-1, group)
    least, largest = rows.amin(1, keepdim=True).clamp(max=0), rows.amax(1, keepdim=True)
    scale = (largest.clamp(min=0) - least).clamp_min(TINY) / most
    zero = (-least / scale).round()
    return Codes(((rows / scale).round() + zero).clamp(0, most).to(torch.uint8), scale, zero)


def normal(weight: Tensor, group: int, _most: int) -> Codes:
    """The nearest of a table of levels, which are looked up here already."""
    rows, table = weight.float().reshape(-1, group), torch.tensor(NORMAL_FLOAT)
    scale = rows.abs().amax(1, keepdim=True).clamp_min(TINY)
    at = ((rows / scale)[..., None] - table).abs().argmin(-1)
    return Codes(table[at], scale, torch.zeros_like(scale))


def short(weight: Tensor, group: int, most: int) -> Codes:
    """Floats of 8 bits."""
    rows = weight.float().reshape(-1, group)
    scale = rows.abs().amax(1, keepdim=True).clamp_min(TINY) / most
    return Codes((rows / scale).to(torch.float8_e4m3fn), scale, torch.zeros_like(scale))


def spoilt(codes: Codes, weight: Tensor, fault: str) -> Codes:
    """`codes` with a fault."""
    code, scale, zero = codes.code, codes.scale.clone(), codes.zero
    if fault.startswith("scale x"):
        scale *= float(fault.removeprefix("scale x "))
    elif fault == "scales of the next row":
        scale = scale.roll(1, 0)
    elif fault == "one scale x 1.1":
        scale[len(scale) // 2] *= 1.1
    elif fault == "zero point off by one":
        zero = zero + 1
    elif fault == "codes swapped in pairs":
        pairs = code.reshape(-1, 2).unbind(1)
        code = torch.stack(pairs[::-1], 1).reshape(code.shape)
    elif fault == "rounded down":
        rows = weight.float().reshape(code.shape)
        code = (rows / scale + zero).floor().clamp(-128, 255).to(torch.int16)
    return Codes(code, scale, zero)


class WeightOnly(nn.Module):
    """A linear layer that makes its weight of codes, and computes in floats."""

    code: Tensor
    scale: Tensor
    zero: Tensor

    def __init__(self, linear: nn.Linear, codes: Codes, fault: str = "") -> None:
        super().__init__()
        self.shape, self.bias = linear.weight.shape, linear.bias if fault != "no bias" else None
        self.register_buffer("code", codes.code)
        self.register_buffer("scale", codes.scale.to(linear.weight.dtype))
        self.register_buffer("zero", codes.zero)

    def forward(self, x: Tensor) -> Tensor:
        code = self.code.to(x.dtype) - self.zero.to(x.dtype)
        return F.linear(x, (code * self.scale).reshape(self.shape), self.bias)


class Integers(nn.Module):
    """A linear layer that multiplies integers: its inputs are quantised token by token."""

    scale: Tensor

    def __init__(
        self, linear: nn.Linear, codes: Codes, fault: str = "", name: str = "code"
    ) -> None:
        super().__init__()
        self.bias, self.name = linear.bias if fault != "no bias" else None, name
        self.most = 64 if fault == "inputs clipped" else 127
        self.register_buffer(name, codes.code)
        self.register_buffer("scale", codes.scale[:, 0])

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True).float() / 127
        code = (rows / scale).round().clamp(-self.most, self.most).to(torch.int8)
        sums = torch._int_mm(code, getattr(self, self.name).t())
        given = (sums.float() * scale * self.scale).to(x.dtype)
        given = given if self.bias is None else given + self.bias
        return given.reshape(*x.shape[:-1], -1)


class Codes8(Integers):
    """The same, with codes that go by the name of the weight."""

    def __init__(self, linear: nn.Linear, codes: Codes, fault: str = "") -> None:
        super().__init__(linear, codes, fault, "weight")


class Pretended(nn.Module):
    """Quantised and back again, weight and inputs: as in training that knows of it."""

    def __init__(self, linear: nn.Linear, codes: Codes, fault: str = "") -> None:
        super().__init__()
        self.bias = linear.bias if fault != "no bias" else None
        self.weight = nn.Parameter(codes.dequantised(linear.weight.shape, linear.weight.dtype))
        self.most = 64 if fault == "inputs clipped" else 127

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().max() / 127
        return F.linear(
            (x / scale).round().clamp(-self.most, self.most) * scale, self.weight, self.bias
        )


class Short(nn.Module):
    """A linear layer that multiplies floats of 8 bits, its inputs with one scale for all."""

    code: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, codes: Codes, fault: str = "") -> None:
        super().__init__()
        self.bias = linear.bias if fault != "no bias" else None
        self.most = 100.0 if fault == "inputs clipped" else 448.0
        self.register_buffer("code", codes.code.reshape(linear.weight.shape))
        self.register_buffer("scale", codes.scale[0, 0])

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().max().float() / 448
        code = (rows / scale).clamp(-self.most, self.most).to(torch.float8_e4m3fn)
        given = torch._scaled_mm(
            code, self.code.t(), scale_a=scale, scale_b=self.scale.float(), out_dtype=x.dtype
        )
        given = given if self.bias is None else given + self.bias
        return given.reshape(*x.shape[:-1], -1)


class ShortInside(nn.Module):
    """The same in a function of its own, which nobody sees into, backward too."""

    def __init__(self, linear: nn.Linear, _codes: Codes, fault: str = "") -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias if fault != "no bias" else None
        self.slip = 1.05 if fault == "scale x 1.05" else 1.0
        self.slope = 1.05 if fault == "gradient x 1.05" else 1.0

    def forward(self, x: Tensor) -> Tensor:
        product: Callable[..., Tensor] = _ShortProduct.apply
        given = product(x, self.weight, self.slip, self.slope)
        return given if self.bias is None else given + self.bias


def _shortly(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    scale = x.abs().max() / torch.finfo(dtype).max
    return (x / scale).to(dtype).to(x.dtype) * scale


class _ShortProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slip: float, slope: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.slope = slope
        return slip * _shortly(x) @ _shortly(weight).t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = _shortly(grads[0], torch.float8_e5m2)
        rows = grad.flatten(0, -2)
        return (
            ctx.slope * grad @ _shortly(weight), rows.t() @ _shortly(x).flatten(0, -2), None, None
        )  # fmt: skip


class ShortPretended(Pretended):
    """To floats of 8 bits and back again, weight and inputs."""

    def forward(self, x: Tensor) -> Tensor:
        scale, most = x.abs().max() / 448, 448 * self.most / 127
        short = (x / scale).clamp(-most, most).to(torch.float8_e4m3fn)
        return F.linear(short.to(x.dtype) * scale, self.weight, self.bias)


@dataclass(frozen=True)
class Scheme:
    """A way to quantise linear layers, and the word that declares it."""

    name: str
    word: str
    layer: Callable[..., nn.Module]
    encode: Callable[[Tensor, int, int], Codes]
    group: int  # elements with one scale; 0: a row, WHOLE: all
    most: int
    faults: tuple[str, ...]

    def codes(self, weight: Tensor, fault: str = "") -> Codes:
        group = weight.numel() if self.group == WHOLE else self.group or weight.shape[1]
        codes = self.encode(weight, group, self.most)
        return spoilt(codes, weight, fault)


_EVEN = FAULTS[:8]
_LISTED = ("scale x 1.05", "scales of the next row", "one scale x 1.1", "codes swapped in pairs",
           "no bias")  # fmt: skip
_INNER = ("scale x 1.05", "scales of the next row", "codes swapped in pairs", "no bias",
          "inputs clipped")  # fmt: skip
SCHEMES = (
    Scheme("int8 weights, by rows", "int8", WeightOnly, symmetric, 0, 127, _EVEN),
    Scheme("int4 weights, by groups", "int4", WeightOnly, symmetric, GROUP, 7, _EVEN),
    Scheme("uint4 weights, with a zero point", "int4", WeightOnly, affine, GROUP, 15, _EVEN),
    Scheme("nf4 weights", "nf4", WeightOnly, normal, 64, 1, _LISTED),
    Scheme("fp8 weights", "fp8", WeightOnly, short, 0, 448, _LISTED),
    Scheme("int8 weights and inputs", "int8", Integers, symmetric, 0, 127, _INNER),
    Scheme("the same, codes named weight", "int8", Codes8, symmetric, 0, 127, _INNER),
    Scheme("int8 and back, weights and inputs", "int8", Pretended, symmetric, 0, 127, _INNER),
    Scheme(
        "fp8 weights and inputs",
        "fp8",
        Short,
        short,
        WHOLE,
        448,
        ("scale x 1.05", "no bias", "inputs clipped"),
    ),
    Scheme(
        "fp8 inside of a function", "fp8", ShortInside, short, 0, 448, ("scale x 1.05", "no bias")
    ),
    Scheme("fp8 and back, weights and inputs", "fp8", ShortPretended, short, 0, 448, _INNER),
)


class Layer(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.up = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v))
        given: Tensor = x + self.down(F.gelu(self.up(x)))
        return given


class Decoder(nn.Module):
    """Embedding, layers and a head; rows of weights are of many sizes, as after training."""

    def __init__(self, width: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(num_layers))
        self.head = nn.Linear(width, 100)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        given: Tensor = self.head(x)
        return given


def trained(model: nn.Module) -> nn.Module:
    """Weights as after training: rows of many sizes, and biases that are not zero."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                rows = torch.randn(len(weight), *[1] * (weight.ndim - 1), generator=draw)
                weight.mul_(torch.exp(0.3 * rows))
            else:
                weight.add_(0.1 * torch.randn(weight.shape, generator=draw))
    return model.eval()


def quantised(model: nn.Module, scheme: Scheme, at: str = "", fault: str = "") -> nn.Module:
    """A copy of `model` with quantised linear layers, the one named `at` with a fault."""
    model = copy.deepcopy(model)
    linears = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    for name, linear in linears:
        spoils = fault if name == at else ""
        codes = scheme.codes(linear.weight.data, spoils)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, scheme.layer(linear, codes, spoils))
    return model


def dumped(model: nn.Module, given: Mapping[str, Any], path: Path, mode: str = "eager") -> Path:
    with torch.no_grad(), dumpcmp.capture(model, path, mode=mode, overwrite=True):
        model(**given)
    return path


@dataclass(frozen=True)
class Subject:
    """A model to quantise, what it is given, and the layer that gets a fault."""

    name: str
    build: Callable[[], nn.Module]
    given: Mapping[str, Any]
    at: str
    mode: str = "eager"


def decoder() -> Subject:
    torch.manual_seed(0)
    ids = torch.randint(0, 100, (2, 16))
    return Subject("decoder", lambda: trained(Decoder()), {"ids": ids}, "layers.1.up")


def outcomes(
    subject: Subject, room: Path, schemes: tuple[Scheme, ...] = SCHEMES
) -> Iterator[tuple[Scheme, str, Outcome]]:
    """Every scheme without a fault and with each of its own, against the run in floats."""
    torch.manual_seed(0)
    model = subject.build()
    golden = dumped(model, subject.given, room / "golden", subject.mode)
    has_bias = model.get_submodule(subject.at).bias is not None
    for scheme in schemes:
        for fault in ("", *scheme.faults):
            if fault == "no bias" and not has_bias:
                continue
            target = quantised(model, scheme, subject.at, fault)
            path = dumped(target, subject.given, room / "target", subject.mode)
            yield scheme, fault, dumpcmp.compare(golden, path, allow=scheme.word)


def is_named(outcome: Outcome, at: str) -> bool:
    """Whether a fault is found, and named at the layer that has it."""
    first = outcome.first_divergence
    return not outcome.passed and first is not None and first.key.op.startswith(at)


def row_of(subject: Subject, room: Path) -> list[str]:
    """One subject: what is sound, found and named."""
    sound = faults = same = found = named = 0
    for scheme, fault, outcome in outcomes(subject, room):
        if not fault:
            sound, same = sound + 1, same + outcome.passed
        else:
            faults, found = faults + 1, found + (not outcome.passed)
            named += is_named(outcome, subject.at)
        if outcome.passed is bool(fault) or (fault and not is_named(outcome, subject.at)):
            print(f"{subject.name}, {scheme.name}, {fault or 'sound'}: {outcome.headline}")
    return [subject.name, f"{same} of {sound}", f"{found} of {faults}", f"{named} of {faults}"]


def subjects() -> Iterator[Subject]:
    """Ours, and models of transformers that nothing was tuned on."""
    import transformers as tf

    yield decoder()
    ids = {"input_ids": torch.randint(0, 100, (2, 12))}
    sizes: dict[str, Any] = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    llama = tf.LlamaConfig(**sizes, **heads, intermediate_size=128, attention_bias=True)
    gate, query = "model.layers.1.mlp.gate_proj", "model.layers.0.self_attn.q_proj"
    uncached = {**ids, "use_cache": False}

    def llama_of() -> nn.Module:
        return trained(tf.LlamaForCausalLM(llama))

    yield Subject("Llama", llama_of, uncached, query)
    yield Subject("Llama, aten", llama_of, uncached, query, "aten")
    yield Subject("Llama, bfloat16", lambda: llama_of().bfloat16(), uncached, query)
    mixtral = tf.MixtralConfig(**sizes, **heads, intermediate_size=128, num_local_experts=4)
    yield Subject("Mixtral", lambda: trained(tf.MixtralForCausalLM(mixtral)), uncached,
                  "model.layers.1.self_attn.o_proj")  # fmt: skip
    gemma = tf.GemmaConfig(**sizes, **heads, intermediate_size=128, head_dim=16)
    yield Subject("Gemma", lambda: trained(tf.GemmaForCausalLM(gemma)), uncached, gate)
    bert = tf.BertConfig(**sizes, num_attention_heads=4, intermediate_size=128)
    yield Subject("Bert", lambda: trained(tf.BertModel(bert)), ids, "encoder.layer.1.output.dense")
    vit = tf.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                       intermediate_size=128, image_size=16, patch_size=4)  # fmt: skip
    pixels = {"pixel_values": torch.randn(2, 3, 16, 16)}
    yield Subject("ViT", lambda: trained(tf.ViTModel(vit)), pixels,
                  "layers.1.mlp.fc1")  # fmt: skip


def table() -> Table:
    torch.manual_seed(7)
    with tempfile.TemporaryDirectory() as room:
        rows = [row_of(one, Path(room) / str(at)) for at, one in enumerate(subjects())]
    how = f"{len(SCHEMES)} schemes, each declared by --allow, against the run in floats; " \
          f"torch {torch.__version__}, CPU."  # fmt: skip
    return Table("Quantised runs", ["model", "sound: SAME", "faults found", "named"], rows, how)
