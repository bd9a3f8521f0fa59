"""Backends of torch.compile that compile one op of a small decoder layer wrongly, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Tamper = Callable[..., Any]  # gives the wrong result, from the function itself and its arguments
HEADS, WIDTH, LENGTH = 4, 32, 12


class Layer(nn.Module):
    """Embedding, causal attention, gelu, norms, and a head; every parameter matters."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e9).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        y = self.norm(x)
        q, k, v = (self._heads(project(y)) for project in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        weights = F.softmax(torch.add(scores, self.mask), -1)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(x.shape)
        x = torch.add(x, self.o(mixed))
        x = torch.add(x, self.down(F.gelu(self.up(self.last(x)))))
        logits: Tensor = self.head(x)
        return logits

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def build() -> tuple[Layer, tuple[Tensor]]:
    """The layer with weights that are all drawn, and ids."""
    generator = torch.Generator().manual_seed(0)
    layer = Layer()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            scale = 0.3 if parameter.dim() > 1 else 0.2
            drawn = scale * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + 1 if "norm.w" in name or "last.w" in name else drawn)
    return layer, (torch.randint(0, 50, (3, LENGTH), generator=generator),)


@dataclass(frozen=True)
class Wrong:
    """The `nth` call of `function` gives what `tamper` makes of it."""

    function: str
    nth: int
    tamper: Tamper

    def __call__(self, graph: fx.GraphModule, _examples: Any) -> Callable[..., Any]:
        """Compile `graph`, as a backend of torch.compile."""

        def run(*args: Any) -> Any:
            with _Tampering(self):
                return graph.forward(*args)

        return run


class _Tampering(TorchFunctionMode):
    def __init__(self, wrong: Wrong) -> None:
        super().__init__()
        self.wrong, self.seen = wrong, 0

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != self.wrong.function:
            return func(*args, **kwargs)
        self.seen += 1
        if self.seen - 1 != self.wrong.nth:
            return func(*args, **kwargs)
        return self.wrong.tamper(func, *args, **kwargs)


def on_output(change: Callable[[Tensor], Tensor]) -> Tamper:
    """Tamper with what the function gives."""
    return lambda func, *args, **kwargs: change(func(*args, **kwargs))


def on_weight(change: Callable[[Tensor], Tensor]) -> Tamper:
    """Tamper with the second argument."""
    return lambda func, x, weight, *rest, **kwargs: func(x, change(weight), *rest, **kwargs)


_PARAMETERS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "softmax": ("input", "dim"),
}


def on_arguments(**changed: Any) -> Tamper:
    """Call the function with other arguments than it is given."""

    def tamper(func: Any, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(_PARAMETERS[func.__name__], args, strict=False))
        return func(**(named | kwargs | changed))

    return tamper


def _without_bias(func: Any, x: Tensor, weight: Tensor, _bias: Any = None) -> Any:
    return func(x, weight, None)


def _in(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype).to(x.dtype)


def _one_element(x: Tensor) -> Tensor:
    out = x.clone()
    out.view(-1)[7] *= 2
    return out


class _Shrunk(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad * 0.9


# linear 0 to 6: q, k, v, o, up, down, head; matmul 0: scores, 1: mixed; add 0: mask, 1: attention
FIRST = {
    "gelu to relu": Wrong("gelu", 0, lambda _f, x, **_k: torch.relu(x)),
    "gelu to its tanh form": Wrong("gelu", 0, lambda f, x, **_k: f(x, approximate="tanh")),
    "q and k swapped": Wrong("matmul", 0, lambda f, q, k: f(k.mT, q.mT)),
    "bias of q dropped": Wrong("linear", 0, _without_bias),
    "bias of o dropped": Wrong("linear", 3, _without_bias),
    "bias of down dropped": Wrong("linear", 5, _without_bias),
    "fp8 weights": Wrong("linear", 4, on_weight(_in(torch.float8_e4m3fn))),
    "bf16 weights": Wrong("linear", 5, on_weight(_in(torch.bfloat16))),
    "scores not scaled": Wrong("matmul", 0, on_output(lambda x: x * math.sqrt(WIDTH // HEADS))),
    "mask dropped": Wrong("add", 0, lambda _f, x, _mask: x.clone()),
    "eps of a norm": Wrong("layer_norm", 1, on_arguments(eps=1e-3)),
    "residual dropped": Wrong("add", 2, lambda _f, _x, y: y.clone()),
}  # fmt: skip
SECOND = {
    "softmax over another dim": Wrong("softmax", 0, on_arguments(dim=-2)),
    "softmax in bf16": Wrong("softmax", 0, on_output(_in(torch.bfloat16))),
    "mask off by one": Wrong("add", 0, lambda f, x, mask: f(x, mask.roll(1, -1))),
    "heads mixed up": Wrong("matmul", 1, on_output(lambda x: x.flip(1))),
    "another row of the batch": Wrong("linear", 2, on_output(lambda x: x.roll(1, 0))),
    "last token lost": Wrong("linear", 3, on_output(
        lambda x: torch.cat([x[:, :-1], torch.zeros_like(x[:, -1:])], 1))),
    "one element": Wrong("linear", 4, on_output(_one_element)),
    "a factor of 1.0001": Wrong("linear", 6, on_output(lambda x: x * 1.0001)),
    "products of bf16": Wrong("matmul", 1, lambda f, a, b: f(
        _in(torch.bfloat16)(a), _in(torch.bfloat16)(b))),
    "next row of the table": Wrong("embedding", 0, lambda f, ids, w, *r, **k: f(
        (ids + 1) % 50, w, *r, **k)),
    "weight of a norm dropped": Wrong("layer_norm", 0, on_arguments(weight=None)),
    "gradient of gelu": Wrong("gelu", 0, on_output(_Shrunk.apply)),
}  # fmt: skip
WRONG = FIRST | SECOND
