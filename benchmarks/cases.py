"""Benign variants and planted faults: what is changed on the target's side, and at which op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dumpcmp import faults
from dumpcmp.faults import Fault, on_output, planted

Plant = Callable[[nn.Module], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One planted fault: the op where it strikes, and how it is planted into the target."""

    name: str
    op: str
    plant: Plant
    token: int = 0
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def tampered(*planted_faults: Fault) -> Case:
    """A case of functions that give wrong results."""

    @contextmanager
    def plant(model: nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for fault in planted_faults:
                stack.enter_context(planted(model, fault))
            yield

    first = planted_faults[0]
    return Case(first.name, first.op, plant, token=first.step)


def edited(name: str, op: str, edit: Callable[[nn.Module], None], **facts: Any) -> Case:
    """A case of a model that was changed before it ran."""

    @contextmanager
    def plant(model: nn.Module) -> Iterator[None]:
        edit(model)
        yield

    return Case(name, op, plant, **facts)


# Faults that both subjects share; the subjects differ in the ops that are hit.


def swap_rows(path: str) -> Callable[[nn.Module], None]:
    def edit(model: nn.Module) -> None:
        weight = model.get_submodule(path).get_parameter("weight").data
        weight[[3, 11]] = weight[[11, 3]]

    return edit


def raise_eps(path: str) -> Callable[[nn.Module], None]:
    def edit(model: nn.Module) -> None:
        norm = model.get_submodule(path)
        norm.eps *= 100  # type: ignore[operator,assignment]

    return edit


def stale_entry(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    joined: Tensor = run(*args, **kwargs).clone()
    joined[:, :, -2] = joined[:, :, -3]
    return joined


def in_bfloat16(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    narrow = [a.bfloat16() if isinstance(a, Tensor) else a for a in args]
    wide: Tensor = run(*narrow, **kwargs).float()
    return wide


def earlier_mask(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    scores, mask, fill = args
    seen = torch.triu(mask, 2) if mask.shape[0] > 1 else mask
    shifted: Tensor = run(scores, seen, fill, **kwargs)
    return shifted


def one_more_key(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    if not kwargs.pop("is_causal"):
        return run(*args)  # type: ignore[no-any-return]
    length = args[0].shape[-2]
    mask = torch.ones(length, length, dtype=torch.bool).tril(1)
    mixed: Tensor = run(*args, attn_mask=mask)
    return mixed


def unturned_head(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    turned: Tensor = run(*args, **kwargs).clone()
    turned[:, 1] = args[0][:, 1]
    return turned


def unturned_rest(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    turned: Tensor = run(*args, **kwargs).clone()
    turned[:, 1] = 0
    return turned


def with_forward(path: str, forward: Callable[..., Any]) -> Callable[[nn.Module], None]:
    def edit(model: nn.Module) -> None:
        module = model.get_submodule(path)
        module.forward = MethodType(forward, module)

    return edit


def layer_without_gelu(self: Any, x: Tensor, mask: Tensor, past: Any) -> Any:
    mixed, present = self.attend(self.norm1(x), mask, past)
    x = x + self.drop(mixed)
    return x + self.down(self.up(self.norm2(x))), present


def layer_without_residual(self: Any, x: Tensor, mask: Tensor, past: Any) -> Any:
    mixed, present = self.attend(self.norm1(x), mask, past)
    x = self.drop(mixed)
    return x + self.down(F.gelu(self.up(self.norm2(x)))), present


def layer_with_scale(self: Any, x: Tensor, mask: Tensor, past: Any) -> Any:
    mixed, present = self.attend(self.norm1(x), mask, past)
    x = x + self.drop(mixed) * 1.05
    return x + self.down(F.gelu(self.up(self.norm2(x)))), present


def layer_with_second_add(self: Any, x: Tensor, mask: Tensor, past: Any) -> Any:
    mixed, present = self.attend(self.norm1(x), mask, past)
    x = x + (self.drop(mixed) + 0.05)
    return x + self.down(F.gelu(self.up(self.norm2(x)))), present


def mlp_without_silu(self: Any, x: Tensor) -> Any:
    return self.down_proj(self.gate_proj(x) * self.up_proj(x))


def mlp_with_scale(self: Any, x: Tensor) -> Any:
    return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)) * 1.05


def block_without_residual(self: Any, x: Tensor, cos: Tensor, sin: Tensor, past: Any) -> Any:
    mixed, present = self.attn(self.attn_norm(x), cos, sin, past)
    return mixed + self.mlp(self.mlp_norm(mixed)), present


def _train(path: str) -> Callable[[nn.Module], None]:
    def edit(model: nn.Module) -> None:
        model.get_submodule(path).train()

    return edit


FAULTS: dict[str, tuple[Case, ...]] = {
    "transformer": (
        tampered(Fault("scaled by 1.01", "layers.2.down", "linear", on_output(faults.scale))),
        tampered(Fault("mask off by one", "layers.2", "masked_fill", earlier_mask)),
        edited("two weight rows swapped", "layers.3.up", swap_rows("layers.3.up")),
        tampered(Fault("one wrong token", "layers.2.out", "linear", on_output(faults.wrong_token))),
        tampered(
            Fault("zeroed channel", "layers.4.norm2", "layer_norm", on_output(faults.zero_channel))
        ),
        tampered(Fault("two tokens swapped", "embed", "embedding", on_output(faults.swap_tokens))),
        tampered(
            Fault("sign of a channel", "layers.1.qkv", "linear", on_output(faults.flip_channel))
        ),
        edited("norm eps x 100", "layers.3.norm1/layer_norm", raise_eps("layers.3.norm1")),
        tampered(Fault("stale cache entry", "layers.2", "cat", stale_entry, step=1)),
        tampered(Fault("one NaN", "layers.3", "softmax", on_output(faults.one_nan))),
        edited("op missing", "layers.2/gelu", with_forward("layers.2", layer_without_gelu)),
        edited(
            "residual missing", "layers.4/add", with_forward("layers.4", layer_without_residual)
        ),
        edited("op extra", "layers.2/mul", with_forward("layers.2", layer_with_scale)),
        edited("add extra", "layers.2/add", with_forward("layers.2", layer_with_second_add)),
        replace(
            tampered(Fault("bf16 accumulation", "layers.1.up", "linear", in_bfloat16)),
            dtypes=("float32",),
        ),
        edited("dropout left on", "layers.2.drop/dropout", _train("layers.2.drop")),
    ),
    "decoder": (
        tampered(
            Fault("scaled by 1.01", "layers.1.mlp.down_proj", "linear", on_output(faults.scale))
        ),
        tampered(
            Fault("one head without rotary", "layers.1.attn", "mul", unturned_head),
            Fault("one head without rotary", "layers.1.attn", "mul", unturned_rest, call=1),
        ),
        tampered(
            Fault("mask off by one", "layers.1.attn", "scaled_dot_product_attention", one_more_key)
        ),
        edited(
            "two weight rows swapped",
            "layers.1.attn.k_proj",
            swap_rows("layers.1.attn.k_proj"),
        ),
        tampered(
            Fault(
                "one wrong token", "layers.0.attn.o_proj", "linear", on_output(faults.wrong_token)
            )
        ),
        tampered(
            Fault(
                "zeroed channel", "layers.1.mlp.up_proj", "linear", on_output(faults.zero_channel)
            )
        ),
        tampered(
            Fault(
                "two tokens swapped",
                "layers.0.mlp.down_proj",
                "linear",
                on_output(faults.swap_tokens),
            )
        ),
        tampered(
            Fault(
                "sign of a channel",
                "layers.1.attn.v_proj",
                "linear",
                on_output(faults.flip_channel),
            )
        ),
        edited("norm eps x 100", "layers.1.mlp_norm/add", raise_eps("layers.1.mlp_norm")),
        tampered(Fault("stale cache entry", "layers.1.attn", "cat", stale_entry, call=2, step=1)),
        tampered(Fault("one NaN", "layers.0.mlp", "silu", on_output(faults.one_nan))),
        edited("op missing", "layers.1.mlp/silu", with_forward("layers.1.mlp", mlp_without_silu)),
        edited(
            "residual missing", "layers.1/add", with_forward("layers.1", block_without_residual)
        ),
        edited("op extra", "layers.1.mlp/mul", with_forward("layers.1.mlp", mlp_with_scale)),
        replace(
            tampered(Fault("bf16 accumulation", "layers.0.mlp.gate_proj", "linear", in_bfloat16)),
            dtypes=("float32",),
        ),
    ),
}


class _SplitMatmuls(TorchFunctionMode):
    """Computes every linear and matmul as the sum of two halves, each rounded to its dtype."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            x, weight, *bias = args
            half = x.shape[-1] // 2
            first = func(x[..., :half], weight[:, :half], *bias)
            return first + func(x[..., half:], weight[:, half:])
        if func is torch.matmul:
            a, b = args
            half = a.shape[-1] // 2
            if not half:
                return func(a, b)
            return func(a[..., :half], b[..., :half, :]) + func(a[..., half:], b[..., half:, :])
        return func(*args, **kwargs)


class _WideMatmuls(TorchFunctionMode):
    """Computes short matmuls in float32 and rounds once, as accelerators do."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.linear, torch.matmul) and args[0].dtype == torch.bfloat16:
            return func(*(a.float() for a in args if a is not None), **kwargs).bfloat16()
        return func(*args, **kwargs)


def wide_matmuls() -> AbstractContextManager[Any]:
    return _WideMatmuls()


@contextmanager
def split_matmuls(_: nn.Module) -> Iterator[None]:
    with _SplitMatmuls():
        yield


class _OtherNorms(TorchFunctionMode):
    """Computes norms, softmax and attention by other formulas, in the dtype of their inputs."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        if func is torch.softmax:
            weights = (args[0] - args[0].amax(-1, keepdim=True)).float().exp()
            return (weights / weights.sum(-1, keepdim=True)).to(args[0].dtype)
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _layer_norm(x: Tensor, _: Any, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    spread = ((wide - mean) ** 2).mean(-1, keepdim=True)
    return ((wide - mean) / torch.sqrt(spread + eps) * weight + bias).to(x.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return torch.matmul(torch.softmax(scores, -1), v)


@contextmanager
def other_norms(_: nn.Module) -> Iterator[None]:
    with _OtherNorms():
        yield


@contextmanager
def two_threads(_: nn.Module) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def nothing(_: nn.Module) -> Iterator[None]:
    yield


# Benign variants: how the target differs, without being wrong.
BENIGN: dict[str, Plant] = {
    "same run again": nothing,
    "two threads": two_threads,
    "matmuls as sums of halves": split_matmuls,
    "other formulas of norms": other_norms,
}
