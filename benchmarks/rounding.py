"""What one op rounds: each op of a run beside other correct ways to compute it on equal inputs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmarks.subjects import SUBJECTS
from benchmarks.tables import Table
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.row import Metrics
from dumpcmp.nouns.value import dtype_named, value_of


def in_parts(num: int) -> Callable[..., Tensor]:
    """A matmul as the sum of `num` parts along its inner dim, each rounded, added one by one."""

    def run(func: Any, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        weight = b if func is torch.matmul else b.T
        pieces = zip(a.chunk(num, -1), weight.chunk(num, -2), strict=True)
        products = [torch.matmul(x.float(), w.float()).to(a.dtype) for x, w in pieces]
        total: Tensor = sum(products[1:], products[0])
        return total if bias is None else total + bias

    return run


def in_float64(func: Any, *args: Any, **kwargs: Any) -> Tensor:
    wide = [a.double() if _is_float(a) else a for a in args]
    named = {k: v.double() if _is_float(v) else v for k, v in kwargs.items()}
    result: Tensor = func(*wide, **named).to(args[0].dtype)
    return result


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def step_by_step(func: Any, x: Tensor, *_: Any, **kwargs: Any) -> Tensor:
    """A norm or softmax with every intermediate rounded to the dtype of its input."""
    if func is torch.softmax:
        weights: Tensor = (x - x.amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred * centred).mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt(spread + kwargs["eps"])
    result: Tensor = scaled * kwargs["weight"] + kwargs["bias"]
    return result


WAYS: dict[Any, dict[str, Callable[..., Tensor]]] = {
    F.linear: {"in 2 parts": in_parts(2), "in 8 parts": in_parts(8), "in float64": in_float64},
    torch.matmul: {"in 2 parts": in_parts(2), "in float64": in_float64},
    F.layer_norm: {"in float64": in_float64, "step by step": step_by_step},
    torch.softmax: {"in float64": in_float64, "step by step": step_by_step},
    F.gelu: {"in float64": in_float64},
    F.silu: {"in float64": in_float64},
    F.scaled_dot_product_attention: {"in float64": in_float64},
}


class Observer(TorchFunctionMode):
    """Runs each op as it is, and measures the other ways against it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str, str], list[Metrics]] = defaultdict(list)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        short = func in (F.linear, torch.matmul) and args[0].dtype != torch.float32
        result = _wide(func, args) if short else func(*args, **kwargs)
        for way, other in WAYS.get(func, {}).items():
            where = func.__name__, way, str(result.dtype).removeprefix("torch.")
            mine = other(func, *args, **kwargs)
            self.found[where].append(measure(value_of(result), value_of(mine)))
        return result


def _wide(func: Any, args: tuple[Any, ...]) -> Tensor:
    result: Tensor = func(*(a.float() for a in args if a is not None)).to(args[0].dtype)
    return result


def rows() -> Iterator[list[str]]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        observer = Observer()
        for subject in SUBJECTS.values():
            model = subject.model(dtype)
            with observer:
                subject.run(model)
        for (function, way, name), metrics in observer.found.items():
            yield [function, way, name, str(len(metrics)), *_worst(metrics, dtype_named(name).eps)]


def _worst(metrics: list[Metrics], eps: float) -> list[str]:
    scores = [abs(m.gain_score) for m in metrics if math.isfinite(m.gain_score)]
    alarms = sum(
        abs(m.gain) > eps / 64 and abs(m.gain_score) > 8
        for m in metrics
        if math.isfinite(m.gain_score)
    )
    return [
        f"{max(m.rel_l2 for m in metrics) / eps:.2f}",
        f"{max(m.max_row_err for m in metrics) / eps:.2f}",
        f"{max(abs(m.gain) for m in metrics) / eps:.3f}",
        f"{max(scores, default=0):.1f}",
        str(alarms),
    ]


def table() -> Table:
    """The largest errors that correct ways to compute one op give, in units of eps."""
    torch.set_num_threads(1)
    return Table(
        "rounding",
        ("op", "another way", "dtype", "calls", "rel_l2", "row", "gain", "score", "gain alarms"),
        list(rows()),
        "Maxima in units of the dtype's eps over all calls of the two models of the fault table. "
        "The default rule admits 1 for rel_l2 and for a row, and a gain above 1/64 only with a "
        "score below 8 (dtypes of 16 bits; float32 has 16 for rel_l2).",
    )
