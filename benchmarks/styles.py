"""Programs in many styles, each a function of its own: what a capture must not disturb.

A style returns what it computed, and shows the modules that it used by `watched`. It imports
nothing of dumpcmp.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
import tempfile
import threading
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Style = Callable[[], Any]
STYLES: dict[str, Style] = {}
RANKS: dict[str, int] = {}  # of styles that run on several
WATCHED: list[nn.Module] = []  # by the style that runs in this process


def style(name: str, ranks: int = 1) -> Callable[[Style], Style]:
    """Add a function to the styles."""

    def add(run: Style) -> Style:
        if name in STYLES:
            raise ValueError(f"two styles are called {name}")
        STYLES[name] = run
        if ranks > 1:
            RANKS[name] = ranks
        return run

    return add


def watched(module: Any) -> Any:
    """Have the state, gradients and hooks of `module` compared at the end of the style."""
    WATCHED.append(module)
    return module


def grid(*shape: int) -> Tensor:
    """Values that are the same everywhere, and no two of them equal."""
    count = int(np.prod(shape)) if shape else 1
    return ((torch.arange(count, dtype=torch.float32) * 0.37).sin() + 0.01).reshape(shape)


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, rnn.PackedSequence):
        yield value.data
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)


def loss_of(value: Any) -> Tensor | None:
    """A sum of all that can be differentiated."""
    parts = [t.float().cos().sum() for t in tensors_in(value) if t.requires_grad]
    return torch.stack(parts).sum() if parts else None


def four_ways(module: nn.Module, *args: Any, **kwargs: Any) -> list[Any]:
    """Run copies of `module` in eval and train, without and with gradients, twice each."""
    found: list[Any] = []
    for trains in (False, True):
        for differentiates in (False, True):
            one = watched(copy.deepcopy(module).train(trains))
            given = [
                a.clone().requires_grad_(differentiates and a.is_floating_point())
                if isinstance(a, Tensor)
                else a
                for a in args
            ]
            for _ in range(2):
                try:
                    with torch.set_grad_enabled(differentiates):
                        out = one(*given, **kwargs)
                except (RuntimeError, ValueError) as error:
                    found.append(error)
                    continue
                found.append(out)
                loss = loss_of(out) if differentiates else None
                if loss is not None:
                    loss.backward()  # type: ignore[no-untyped-call]
            found.append([a.grad for a in given if isinstance(a, Tensor) and a.is_leaf])
    return found


# ---- modules of torch.nn, in eval and train, with and without gradients

_IDS = torch.tensor([[1, 2, 0], [3, 4, 4]])
_MODULES: dict[str, Callable[[], list[tuple[nn.Module, tuple[Any, ...]]]]] = {
    "Linear": lambda: [(nn.Linear(4, 3), (grid(2, 4),))],
    "Linear without bias": lambda: [(nn.Linear(4, 3, bias=False), (grid(2, 5, 4),))],
    "Bilinear": lambda: [(nn.Bilinear(3, 4, 2), (grid(2, 3), grid(2, 4)))],
    "Identity, Flatten, Unflatten": lambda: [
        (nn.Sequential(nn.Identity(), nn.Flatten(), nn.Unflatten(1, (2, 4))), (grid(2, 4, 2),))
    ],
    "Conv1d": lambda: [(nn.Conv1d(3, 4, 2, padding=1), (grid(2, 3, 6),))],
    "Conv2d": lambda: [(nn.Conv2d(4, 4, 3, stride=2, groups=2), (grid(2, 4, 7, 7),))],
    "Conv2d, padded by reflection": lambda: [
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (grid(1, 2, 5, 5),))
    ],
    "Conv2d, channels last": lambda: [
        (nn.Conv2d(4, 4, 3), (grid(2, 4, 6, 6).to(memory_format=torch.channels_last),))
    ],
    "Conv3d": lambda: [(nn.Conv3d(2, 2, 2), (grid(1, 2, 4, 4, 4),))],
    "transposed convolutions": lambda: [
        (nn.ConvTranspose1d(3, 2, 2), (grid(2, 3, 5),)),
        (nn.ConvTranspose2d(3, 2, 2, stride=2, output_padding=1), (grid(1, 3, 4, 4),)),
        (nn.ConvTranspose3d(2, 2, 2), (grid(1, 2, 3, 3, 3),)),
    ],
    "Fold and Unfold": lambda: [
        (nn.Sequential(nn.Unfold(2), nn.Fold((4, 4), 2)), (grid(1, 2, 4, 4),))
    ],
    "max pools": lambda: [
        (nn.MaxPool1d(2), (grid(1, 2, 6),)),
        (nn.MaxPool2d(2, return_indices=True), (grid(1, 2, 6, 6),)),
        (nn.MaxPool3d(2), (grid(1, 2, 4, 4, 4),)),
        (nn.AdaptiveMaxPool2d(3), (grid(1, 2, 7, 7),)),
    ],
    "average pools": lambda: [
        (nn.AvgPool1d(2), (grid(1, 2, 6),)),
        (nn.AvgPool2d(2), (grid(1, 2, 6, 6),)),
        (nn.AdaptiveAvgPool2d(1), (grid(1, 2, 7, 7),)),
        (nn.LPPool2d(2, 2), (grid(1, 2, 6, 6),)),
    ],
    "FractionalMaxPool2d": lambda: [(nn.FractionalMaxPool2d(2, 3), (grid(1, 2, 7, 7),))],
    "MaxUnpool2d": lambda: [
        (nn.MaxUnpool2d(2), F.max_pool2d(grid(1, 2, 6, 6), 2, return_indices=True))
    ],
    "paddings": lambda: [
        (kind(1), (grid(1, 2, 4, 4),))
        for kind in (nn.ReflectionPad2d, nn.ReplicationPad2d, nn.ZeroPad2d, nn.CircularPad2d)
    ],
    "activations, smooth": lambda: [
        (
            nn.Sequential(nn.ELU(), nn.SELU(), nn.CELU(), nn.GELU(), nn.SiLU(), nn.Mish()),
            (grid(3, 4),),
        ),
        (nn.Sequential(nn.Softplus(), nn.Softsign(), nn.Tanh(), nn.LogSigmoid()), (grid(3, 4),)),
    ],
    "activations, in pieces": lambda: [
        (nn.Sequential(nn.Hardtanh(), nn.LeakyReLU(), nn.ReLU6(), nn.Hardswish()), (grid(3, 4),)),
        (
            nn.Sequential(nn.Hardshrink(0.1), nn.Softshrink(0.1), nn.Threshold(0.1, 2.0)),
            (grid(3, 4),),
        ),
    ],
    "activations, in place": lambda: [
        (nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(inplace=True), nn.Dropout(0.5)), (grid(3, 4),))
    ],
    "PReLU": lambda: [(nn.PReLU(4), (grid(3, 4),))],
    "RReLU": lambda: [(nn.RReLU(), (grid(3, 4),))],
    "GLU": lambda: [(nn.GLU(), (grid(3, 4),))],
    "softmaxes": lambda: [
        (nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(-1), nn.Softmin(-1)), (grid(3, 4),)),
        (nn.Softmax2d(), (grid(2, 3, 2, 2),)),
    ],
    "AdaptiveLogSoftmaxWithLoss": lambda: [
        (nn.AdaptiveLogSoftmaxWithLoss(4, 8, [3, 5]), (grid(5, 4), torch.tensor([0, 3, 4, 7, 5])))
    ],
    "BatchNorm1d": lambda: [(nn.BatchNorm1d(4), (grid(5, 4),))],
    "BatchNorm2d": lambda: [(nn.BatchNorm2d(3), (grid(2, 3, 4, 4),))],
    "BatchNorm3d, without momentum": lambda: [
        (nn.BatchNorm3d(2, momentum=None), (grid(2, 2, 2, 2, 2),))
    ],
    "SyncBatchNorm": lambda: [(nn.SyncBatchNorm(3), (grid(2, 3, 4, 4),))],
    "GroupNorm": lambda: [(nn.GroupNorm(2, 4), (grid(2, 4, 3),))],
    "InstanceNorm2d": lambda: [
        (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (grid(2, 3, 4, 4),))
    ],
    "LayerNorm": lambda: [(nn.LayerNorm(4), (grid(2, 3, 4),))],
    "RMSNorm": lambda: [(nn.RMSNorm(4), (grid(2, 3, 4),))],
    "LocalResponseNorm": lambda: [(nn.LocalResponseNorm(2), (grid(2, 4, 3, 3),))],
    "RNN": lambda: [(nn.RNN(3, 4, 2, dropout=0.3), (grid(5, 2, 3),))],
    "LSTM": lambda: [(nn.LSTM(3, 4, bidirectional=True, batch_first=True), (grid(2, 5, 3),))],
    "LSTM with projection": lambda: [(nn.LSTM(3, 4, proj_size=2), (grid(5, 2, 3),))],
    "GRU": lambda: [(nn.GRU(3, 4, 2, dropout=0.5), (grid(5, 2, 3),))],
    "GRU, packed": lambda: [
        (nn.GRU(3, 4), (rnn.pack_padded_sequence(grid(4, 3, 3), torch.tensor([4, 3, 1])),))
    ],
    "recurrent cells": lambda: [
        (nn.RNNCell(3, 4), (grid(2, 3),)),
        (nn.LSTMCell(3, 4), (grid(2, 3),)),
        (nn.GRUCell(3, 4), (grid(2, 3),)),
    ],
    "MultiheadAttention": lambda: [
        (nn.MultiheadAttention(4, 2, 0.2, batch_first=True), (grid(2, 3, 4),) * 3)
    ],
    "TransformerEncoderLayer": lambda: [
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (grid(2, 3, 4),))
    ],
    "TransformerEncoder with padding": lambda: [
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
            (grid(2, 3, 4), None, torch.tensor([[False, False, True], [False, False, False]])),
        )
    ],
    "TransformerDecoderLayer": lambda: [
        (nn.TransformerDecoderLayer(4, 2, 8), (grid(3, 2, 4), grid(5, 2, 4)))
    ],
    "Transformer": lambda: [
        (nn.Transformer(4, 2, 1, 1, 8, batch_first=True), (grid(2, 3, 4), grid(2, 2, 4)))
    ],
    "dropouts": lambda: [
        (nn.Sequential(nn.Dropout(0.3), nn.AlphaDropout(0.3)), (grid(4, 6),)),
        (nn.Sequential(nn.Dropout1d(0.5)), (grid(2, 4, 3),)),
        (nn.Sequential(nn.Dropout2d(0.5), nn.FeatureAlphaDropout(0.5)), (grid(2, 4, 3, 3),)),
    ],
    "Embedding": lambda: [(nn.Embedding(5, 3, padding_idx=0), (_IDS,))],
    "Embedding with a greatest norm": lambda: [(nn.Embedding(5, 3, max_norm=0.5), (_IDS,))],
    "EmbeddingBag": lambda: [(nn.EmbeddingBag(5, 3, mode="mean"), (_IDS,))],
    "EmbeddingBag, sparse": lambda: [(nn.EmbeddingBag(5, 3, mode="sum", sparse=True), (_IDS,))],
    "distances": lambda: [
        (nn.CosineSimilarity(), (grid(3, 4), grid(3, 4) + 1)),
        (nn.PairwiseDistance(), (grid(3, 4), grid(3, 4) + 1)),
    ],
    "losses of numbers": lambda: [
        (kind(), (grid(3, 4), grid(3, 4).cos()))
        for kind in (nn.L1Loss, nn.MSELoss, nn.HuberLoss, nn.SmoothL1Loss, nn.PoissonNLLLoss)
    ],
    "losses of classes": lambda: [
        (nn.CrossEntropyLoss(label_smoothing=0.1), (grid(3, 4), torch.tensor([0, 3, 1]))),
        (nn.NLLLoss(ignore_index=0), (grid(3, 4), torch.tensor([0, 3, 1]))),
        (nn.MultiMarginLoss(), (grid(3, 4), torch.tensor([0, 3, 1]))),
        (nn.BCEWithLogitsLoss(), (grid(3, 4), grid(3, 4).sigmoid())),
        (nn.BCELoss(), (grid(3, 4).sigmoid(), grid(3, 4).cos().abs())),
    ],
    "losses of distributions": lambda: [
        (nn.KLDivLoss(reduction="batchmean"), (grid(3, 4).log_softmax(-1), grid(3, 4).softmax(-1))),
        (nn.GaussianNLLLoss(), (grid(3, 4), grid(3, 4).cos(), grid(3, 4).exp())),
        (
            nn.CTCLoss(),
            (grid(5, 1, 4).log_softmax(-1), torch.tensor([[1, 2]]), (5,), (2,)),
        ),
    ],
    "losses of pairs": lambda: [
        (nn.MarginRankingLoss(), (grid(3), grid(3).cos(), torch.tensor([1.0, -1.0, 1.0]))),
        (nn.CosineEmbeddingLoss(), (grid(3, 4), grid(3, 4).cos(), torch.tensor([1.0, -1, 1]))),
        (nn.TripletMarginLoss(), (grid(3, 4), grid(3, 4).cos(), grid(3, 4).exp())),
        (nn.TripletMarginWithDistanceLoss(), (grid(3, 4), grid(3, 4).cos(), grid(3, 4).exp())),
    ],
    "shuffles and upsampling": lambda: [
        (nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)), (grid(1, 4, 2, 2),)),
        (nn.ChannelShuffle(2), (grid(1, 4, 2, 2),)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (grid(1, 2, 3, 3),)),
        (nn.UpsamplingNearest2d(scale_factor=2), (grid(1, 2, 3, 3),)),
    ],
    "weight and spectral norm": lambda: [
        (
            nn.Sequential(
                parametrizations.weight_norm(nn.Linear(4, 4)),
                parametrizations.spectral_norm(nn.Linear(4, 3)),
                parametrizations.orthogonal(nn.Linear(3, 3)),
            ),
            (grid(2, 4),),
        )
    ],
}


def _of_modules(make: Callable[[], list[tuple[nn.Module, tuple[Any, ...]]]]) -> Style:
    return lambda: [four_ways(module, *args) for module, args in make()]


for _name, _make in _MODULES.items():
    style(f"nn: {_name}")(_of_modules(_make))


@style("nn: lazy modules")
def lazy() -> Any:
    model = watched(nn.Sequential(nn.LazyConv1d(3, 2), nn.LazyBatchNorm1d(), nn.LazyLinear(3)))
    out = [model(grid(2, 4, 5)) for _ in range(2)]
    out[0].sum().backward()
    return out


# ---- models of the styles below


class Block(nn.Module):
    """Something of each kind: weights, state, random numbers, operators, functions and methods."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.second, self.drop = nn.Linear(2 * width, width), nn.Dropout(0.25)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        y = F.gelu(self.first(self.norm(x)))
        return x + self.drop(self.second(y)).mul(0.5)  # type: ignore[no-any-return]


def net() -> Any:
    return watched(nn.Sequential(Block(), nn.Linear(4, 4), nn.BatchNorm1d(4), Block()))


def step(model: Any, x: Tensor | None = None) -> Tensor:
    """One step of training."""
    out: Tensor = model(grid(3, 4) if x is None else x)
    out.square().mean().backward()  # type: ignore[no-untyped-call]
    return out


class Of(nn.Module):
    """A module of a function, which is given the module."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


# ---- training


def _training(make: Callable[[Any], torch.optim.Optimizer]) -> Any:
    model = net()
    optimizer = make(model.parameters())
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        found.append(step(model))
        optimizer.step()
    return found, optimizer.state_dict()


for _kind in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "Rprop"):
    style(f"training: {_kind}")(
        lambda kind=_kind: _training(lambda ps: getattr(torch.optim, kind)(ps, lr=0.1))  # type: ignore[misc]
    )


@style("training: LBFGS with a closure")
def lbfgs() -> Any:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> float:
        optimizer.zero_grad()
        return float(step(model).square().mean())

    step_by: Any = optimizer.step
    return [step_by(closure) for _ in range(2)]


@style("training: gradients accumulated, clipped, scheduled")
def accumulated() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    norms = []
    for _ in range(2):
        for _ in range(2):
            step(model)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
    return norms, schedule.get_last_lr()


@style("training: GradScaler and autocast")
def scaled() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(grid(3, 4)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss, scaler.get_scale()


@style("training: an optimizer in backward, by hooks")
def in_backward() -> Any:
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return [step(model) for _ in range(2)]


@style("training: an averaged model")
def averaged() -> Any:
    model = net()
    mean = watched(torch.optim.swa_utils.AveragedModel(model))
    for _ in range(2):
        step(model)
        mean.update_parameters(model)
    with torch.no_grad():
        return mean.eval()(grid(3, 4))


@style("training: a data loader")
def loaded() -> Any:
    data = torch.utils.data.TensorDataset(grid(8, 4))
    loader = torch.utils.data.DataLoader(data, 4, shuffle=True)
    model = net()
    return [step(model, x) for (x,) in loader]


@style("training: a data loader with workers")
def loaded_by_workers() -> Any:
    data = torch.utils.data.TensorDataset(grid(8, 4))
    loader = torch.utils.data.DataLoader(data, 4, num_workers=1, multiprocessing_context="fork")
    model = net()
    return [step(model, x) for (x,) in loader]


# ---- dtypes and contexts

for _dtype in (torch.float16, torch.bfloat16, torch.float64):

    @style(f"dtype: {_dtype}")
    def of_dtype(dtype: torch.dtype = _dtype) -> Any:
        model = net().to(dtype)
        return step(model, grid(3, 4).to(dtype))


@style("dtype: complex numbers")
def complexes() -> Any:
    model = watched(nn.Linear(4, 3, dtype=torch.complex64))
    out = model(torch.complex(grid(2, 4), grid(2, 4).cos()))
    out.abs().sum().backward()
    return out, torch.view_as_real(out)


@style("autocast: outside of the model")
def cast_outside() -> Any:
    model = net()
    with torch.autocast("cpu", torch.bfloat16):
        return step(model)


@style("autocast: inside of the model, switched off in a part")
def cast_inside() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.a(x)
            with torch.autocast("cpu", enabled=False):
                return self.b(y.float())  # type: ignore[no-any-return]

    return step(watched(Of(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4))))


@style("contexts: inference mode")
def inferring() -> Any:
    model = net().eval()
    with torch.inference_mode():
        out = model(grid(3, 4))
    return out, out.is_inference()


@style("contexts: no_grad inside of the model")
def partly_without_grad() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.a(x)
        return self.b(y) + x  # type: ignore[no-any-return]

    return step(watched(Of(run, a=nn.Linear(4, 4), b=nn.Linear(4, 4))))


@style("contexts: anomalies are detected")
def anomalies() -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        return step(net())


@style("contexts: deterministic algorithms")
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return step(net())
    finally:
        torch.use_deterministic_algorithms(False)


@style("contexts: a default dtype and device")
def defaults() -> Any:
    torch.set_default_dtype(torch.float64)
    with torch.device("meta"):
        ghost = nn.Linear(4, 4)(torch.ones(2, 4))
    model = net()
    return ghost.shape, ghost.dtype, step(model, grid(3, 4).double())


@style("contexts: the profiler")
def profiled() -> Any:
    with torch.profiler.profile() as profile:
        out = step(net())
    names = {event.key for event in profile.key_averages() if event.key.startswith("aten::")}
    return out, {"aten::addmm", "aten::native_layer_norm"} <= names


@style("contexts: saved tensors packed by hooks")
def packed() -> Any:
    seen = []

    def pack(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x

    model = net()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = step(model)
    with torch.autograd.graph.save_on_cpu():
        return out, step(model), seen


@style("contexts: forward AD")
def dual() -> Any:
    model = net().eval()
    forward_ad: Any = torch.autograd.forward_ad
    with forward_ad.dual_level():
        x = forward_ad.make_dual(grid(3, 4), grid(3, 4).cos())
        out = forward_ad.unpack_dual(model(x))
    return out.primal, out.tangent


# ---- torch.func

_F = torch.func


def _functional() -> tuple[Any, dict[str, Tensor], Callable[..., Tensor]]:
    model = watched(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return _F.functional_call(model, weights, (x,)).square().sum()  # type: ignore[no-any-return]

    return model, weights, loss


_TRANSFORMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "functional_call": lambda m, w, f: f(w, grid(3, 4)),
    "grad": lambda m, w, f: _F.grad(f)(w, grid(3, 4)),
    "grad_and_value": lambda m, w, f: _F.grad_and_value(f)(w, grid(3, 4)),
    "vmap": lambda m, w, f: _F.vmap(m)(grid(3, 2, 4)),
    "vmap of grad": lambda m, w, f: _F.vmap(_F.grad(f), (None, 0))(w, grid(3, 4)),
    "vjp": lambda m, w, f: (lambda out, back: (out, back(torch.ones_like(out))))(
        *_F.vjp(m, grid(3, 4))
    ),
    "jvp": lambda m, w, f: _F.jvp(m, (grid(3, 4),), (grid(3, 4).cos(),)),
    "jacrev": lambda m, w, f: _F.jacrev(m)(grid(4)),
    "jacfwd": lambda m, w, f: _F.jacfwd(m)(grid(4)),
    "hessian": lambda m, w, f: _F.hessian(lambda x: m(x).sum())(grid(4)),
    "linearize": lambda m, w, f: (lambda out, push: (out, push(grid(4).cos())))(
        *_F.linearize(m, grid(4))
    ),
    "functionalize": lambda m, w, f: _F.functionalize(lambda x: m(x).add_(1))(grid(3, 4)),
}


def _transformed(apply: Callable[[Any, Any, Any], Any]) -> Style:
    return lambda: apply(*_functional())


for _name, _apply in _TRANSFORMS.items():
    style(f"torch.func: {_name}")(_transformed(_apply))


@style("torch.func: vmap with random numbers")
def mapped_randomly() -> Any:
    model = watched(nn.Dropout(0.5))
    return [_F.vmap(model, randomness=way)(grid(3, 4)) for way in ("same", "different")]


@style("torch.func: an ensemble of stacked states")
def ensemble() -> Any:
    models = [nn.Linear(4, 2) for _ in range(3)]
    weights, buffers = _F.stack_module_state(models)
    base = watched(copy.deepcopy(models[0]))
    return _F.vmap(lambda w, b, x: _F.functional_call(base, (w, b), (x,)), (0, 0, None))(
        weights, buffers, grid(5, 4)
    )


@style("torch.func: a transform inside of forward")
def transformed_inside() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        return _F.vmap(_F.grad(lambda r: self.a(r).sum()))(x)  # type: ignore[no-any-return]

    return step(watched(Of(run, a=nn.Sequential(nn.Linear(4, 4), nn.Tanh()))), grid(3, 4))


# ---- autograd


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out: Tensor = grad * 2 + x * 0
        return out


@style("autograd: a custom Function")
def custom_function() -> Any:
    return step(
        watched(Of(lambda self, x: Doubling.apply(self.a(x)), a=nn.Linear(4, 4)))  # type: ignore[no-untyped-call]
    )


@style("autograd: gradients of gradients")
def second_order() -> Any:
    model = watched(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    x = grid(3, 4).requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum().backward()  # type: ignore[no-untyped-call]
    return slope, x.grad


@style("autograd: hooks on tensors, nodes and modules")
def hooked() -> Any:
    seen: list[Any] = []
    model = net()
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 1.5,))
    model[1].register_forward_hook(lambda m, args, out: out + 1)
    model[1].register_full_backward_hook(lambda m, took, gave: seen.append(gave[0].sum().item()))
    model[2].register_full_backward_pre_hook(lambda m, gave: (gave[0] * 2,))
    out = model(grid(3, 4))
    out.register_hook(lambda g: seen.append(g.sum().item()))
    out.grad_fn.register_hook(lambda took, gave: seen.append(len(took)))
    out.sum().backward()
    return out, seen


@style("autograd: hooks on every module of the process")
def globally_hooked() -> Any:
    seen: list[str] = []
    every = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: seen.append(type(module).__name__)
    )
    try:
        return step(net()), seen
    finally:
        every.remove()


@style("autograd: retained graphs and gradients")
def retained() -> Any:
    model = net()
    x = grid(3, 4).requires_grad_()
    inner = model[0](x)
    inner.retain_grad()
    loss = model[1](inner).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return inner.grad, x.grad


@style("autograd: backward a second time raises")
def backward_twice() -> Any:
    out = net()(grid(3, 4)).sum()
    out.backward()
    out.backward()


@style("autograd: a tensor changed in place before backward raises")
def changed_before_backward() -> Any:
    model = watched(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()))
    out = model(grid(3, 4))
    out.add_(1)
    out.sum().backward()


@style("autograd: checkpointing, both kinds")
def checkpointed() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        y = checkpoint(self.a, x, use_reentrant=False)
        return checkpoint(self.b, y, use_reentrant=True)  # type: ignore[no-any-return]

    model = watched(Of(run, a=Block(), b=Block()))
    return [step(model, grid(3, 4).requires_grad_()) for _ in range(2)]


@style("autograd: checkpointing of a sequence")
def checkpointed_sequence() -> Any:
    model = net()
    run: Any = checkpoint_sequential
    out = run(model, 2, grid(3, 4).requires_grad_(), use_reentrant=False)
    out.sum().backward()
    return out


# ---- classes of tensors and modes


class Counted(Tensor):
    """A class of tensors that counts what is asked of it."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counted.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


@style("classes: a subclass of Tensor as input")
def subclass_given() -> Any:
    out = step(net(), grid(3, 4).as_subclass(Counted))
    return out, list(Counted.seen)


@style("classes: a subclass of Tensor as weight")
def subclass_weighed() -> Any:
    model = watched(nn.Linear(4, 4))
    model.weight = nn.Parameter(model.weight.detach().as_subclass(Counted))
    return step(model), list(Counted.seen)


class Wrapped(Tensor):
    """A tensor around another one, which answers the dispatcher."""

    enclosed: Tensor
    seen: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, enclosed: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, enclosed.shape, dtype=enclosed.dtype)

    def __init__(self, enclosed: Tensor) -> None:
        self.enclosed = enclosed

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        Wrapped.seen.append(f"{func} in {sys._getframe().f_code.co_name}")
        from torch.utils._pytree import tree_map

        opened = tree_map(
            lambda t: t.enclosed if isinstance(t, Wrapped) else t, (args, kwargs or {})
        )
        out = func(*opened[0], **opened[1])
        return tree_map(lambda t: Wrapped(t) if isinstance(t, Tensor) else t, out)


@style("classes: a wrapper that answers the dispatcher")
def wrapper() -> Any:
    with torch.no_grad():
        out = watched(nn.Linear(4, 4))(Wrapped(grid(3, 4)))
    return out.enclosed, list(Wrapped.seen)


@style("classes: parameters of other classes")
def parameters() -> Any:
    model = Of(lambda self, x: x @ self.held["w"] + self.listed[0])
    model.held = nn.ParameterDict({"w": grid(4, 4)})
    model.listed = nn.ParameterList([grid(4), nn.Buffer(grid(4))])
    return step(watched(model))


class Calls(TorchFunctionMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@style("modes: a function mode around the model")
def function_mode() -> Any:
    with Calls() as calls:
        out = step(net())
    return out, calls.seen


@style("modes: a function mode inside of the model")
def function_mode_inside() -> Any:
    calls = Calls()

    def run(self: Any, x: Tensor) -> Tensor:
        with calls:
            return self.a(x).sin()  # type: ignore[no-any-return]

    return [step(watched(Of(run, a=Block()))) for _ in range(2)], calls.seen


@style("modes: a dispatch mode around the model")
def dispatch_mode() -> Any:
    with Ops() as ops:
        out = step(net())
    return out, ops.seen


@style("modes: a dispatch mode inside of the model")
def dispatch_mode_inside() -> Any:
    ops = Ops()

    def run(self: Any, x: Tensor) -> Tensor:
        with ops:
            return self.a(x).sin()  # type: ignore[no-any-return]

    return step(watched(Of(run, a=Block()))), ops.seen


@style("modes: two of each")
def two_modes() -> Any:
    with Calls() as calls, Ops() as ops, Calls() as inner:
        out = step(net())
    return out, calls.seen, ops.seen, inner.seen


@style("modes: fake tensors")
def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        out = model(torch.empty(3, 4))
    return tuple(out.shape), str(out.dtype), type(out).__name__


@style("modes: flops are counted")
def flops() -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    model = net()
    with FlopCounterMode(display=False) as counter:
        out = step(model)
    return out, counter.get_total_flops()


# ---- programs that trace, script, export or compile themselves


@style("tracing: torch.jit.trace")
def jit_traced() -> Any:
    model = net().eval()
    made = torch.jit.trace(model, grid(3, 4))  # type: ignore[no-untyped-call]
    kinds = [node.kind() for node in made.inlined_graph.nodes()]
    return kinds, made(grid(3, 4))


@style("tracing: torch.jit.trace inside of forward")
def jit_traced_inside() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        traced = torch.jit.trace(self.a, x)  # type: ignore[no-untyped-call]
        return traced(x) * 2  # type: ignore[no-any-return]

    return step(watched(Of(run, a=nn.Linear(4, 4))))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.inner(x).relu()  # type: ignore[no-any-return]
        return self.inner(x)  # type: ignore[no-any-return]


@style("tracing: torch.jit.script")
def jit_scripted() -> Any:
    made = watched(torch.jit.script(Scripted()))
    return step(made), made.code


@style("tracing: a scripted part")
def jit_scripted_part() -> Any:
    return step(watched(nn.Sequential(Block(), torch.jit.script(Scripted()))))


@style("tracing: torch.fx.symbolic_trace")
def fx_traced() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Of(lambda self, x: x + 1))
    traced = watched(torch.fx.symbolic_trace(model))
    return traced.code, step(traced)


@style("tracing: make_fx")
def made_fx() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    model = net().eval()
    traced = make_fx(lambda x: model(x))(grid(3, 4))
    return traced.code, traced(grid(3, 4))


@style("tracing: make_fx with symbolic sizes")
def made_fx_symbolically() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    model = watched(nn.Linear(4, 4))
    made = make_fx(
        lambda x: model(x).view(-1), tracing_mode="symbolic", _allow_non_fake_inputs=True
    )
    return made(grid(3, 4)).code


@style("tracing: torch.export")
def exported() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    program = torch.export.export(watched(model), (grid(3, 4),))
    return str(program.graph), program.module()(grid(3, 4))


@style("tracing: torch.compile of a module, backend eager")
def compiled_module() -> Any:
    return step(torch.compile(net(), backend="eager"))


@style("tracing: torch.compile of a function, backend eager")
def compiled_function() -> Any:
    @torch.compile(backend="eager")
    def run(x: Tensor) -> Tensor:
        return (x.sin() + 1).softmax(-1)

    return [run(grid(3, 4)) for _ in range(2)]


@style("tracing: a part compiled with graph breaks, backend eager")
def compiled_part() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        torch._dynamo.graph_break()
        return y * 2  # type: ignore[no-any-return]

    part: Any = torch.compile(Of(run, a=Block()), backend="eager")
    return step(watched(nn.Sequential(nn.Linear(4, 4), part)))


# ---- distributed


@contextmanager
def group() -> Iterator[tuple[int, int]]:
    """The ranks of this style: one, or as many as its processes."""
    import torch.distributed as dist

    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    room = os.environ.get("STYLE_STORE") or tempfile.mkdtemp()
    dist.init_process_group("gloo", f"file://{room}/store", rank=rank, world_size=size)
    try:
        yield rank, size
    finally:
        dist.destroy_process_group()


def _plain() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))


def _ddp(**options: Any) -> Style:
    def run() -> Any:
        with group() as (rank, _):
            torch.manual_seed(0)
            model = watched(nn.parallel.DistributedDataParallel(_plain(), **options))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            found = []
            for _ in range(2):
                found.append(step(model, grid(3, 4) + rank))
                optimizer.step()
            return found

    return run


def _fsdp1(**options: Any) -> Style:
    def run() -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        with group() as (rank, _):
            torch.manual_seed(0)
            device = torch.device("cpu")
            model = watched(FullyShardedDataParallel(_plain(), device_id=device, **options))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            found = []
            for _ in range(2):
                optimizer.zero_grad()
                found.append(step(model, grid(3, 4) + rank))
                optimizer.step()
            return found

    return run


def _fsdp2() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with group() as (rank, size):
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (size,))
        model = _plain()
        for part in model:
            fully_shard(part, mesh=mesh)
        watched(fully_shard(model, mesh=mesh))
        return [step(model, grid(3, 4) + rank) for _ in range(2)]


def _dtensors() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    with group() as (_, size):
        mesh = init_device_mesh("cpu", (size,))
        x = distribute_tensor(grid(4, 4), mesh, [Shard(0)])
        w = distribute_tensor(grid(4, 4), mesh, [Replicate()])
        out = Of(lambda self, x, w: (x @ w).relu())(x, w)
        return out.to_local(), str(out.placements), out.full_tensor()


def _tensor_parallel() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with group() as (_, size):
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (size,))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        return step(watched(parallelize_module(model, mesh, plan)))


def _collectives() -> Any:
    import torch.distributed as dist

    with group() as (rank, size):

        def run(self: Any, x: Tensor) -> Any:
            y = self.a(x)
            dist.all_reduce(y)
            parts = [torch.empty_like(y) for _ in range(size)]
            dist.all_gather(parts, y)
            return parts

        with torch.no_grad():
            torch.manual_seed(0)
            return watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4) + rank)


for _ranks in (1, 2):
    _on = f"on {_ranks} rank{'s' if _ranks > 1 else ''}"
    style(f"distributed: DDP {_on}", _ranks)(_ddp())
    style(f"distributed: FSDP1 {_on}, flat parameters", _ranks)(_fsdp1())
    style(f"distributed: FSDP1 {_on}, original parameters", _ranks)(_fsdp1(use_orig_params=True))
    style(f"distributed: FSDP2 {_on}", _ranks)(_fsdp2)
    style(f"distributed: DTensor {_on}", _ranks)(_dtensors)
    style(f"distributed: tensor parallel {_on}", _ranks)(_tensor_parallel)
    style(f"distributed: collectives in forward {_on}", _ranks)(_collectives)
style("distributed: DDP with static graph")(_ddp(static_graph=True))


# ---- kinds of tensors


@style("tensors: nested, strided")
def nested_strided() -> Any:
    model = watched(nn.Linear(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(torch.nested.nested_tensor([grid(2, 4), grid(3, 4)]))
    return list(out.unbind())


@style("tensors: nested, jagged")
def nested_jagged() -> Any:
    model = watched(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()))
    x = torch.nested.nested_tensor([grid(2, 4), grid(3, 4)], layout=torch.jagged)
    out = model(x)
    out.values().sum().backward()
    return out.values(), out.offsets()


@style("tensors: sparse COO")
def sparse() -> Any:
    model = watched(Of(lambda self, s, x: torch.sparse.mm(s, self.a(x)), a=nn.Linear(4, 4)))
    out = model(torch.eye(3).to_sparse(), grid(3, 4))
    out.sum().backward()
    return out


@style("tensors: sparse CSR, and a sparse output")
def sparse_rows() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr = torch.eye(3).to_sparse_csr()
    model = watched(Of(lambda self, s, x: (s @ self.a(x)).relu().to_sparse(), a=nn.Linear(4, 4)))
    with torch.no_grad():
        return model(csr, grid(3, 4))


@style("tensors: sparse gradients and SparseAdam")
def sparse_gradients() -> Any:
    model = watched(nn.Embedding(6, 3, sparse=True))
    optimizer: Any = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    for _ in range(2):
        model(_IDS).sum().backward()
        optimizer.step()
    return model.weight


@style("tensors: masked")
def masked() -> Any:
    from torch.masked import masked_tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = masked_tensor(grid(3, 4), grid(3, 4) > 0)
        out = Of(lambda self, x: x.sin().sum())(x)
    return out.get_data(), out.get_mask()


@style("tensors: quantised dynamically")
def quantised_dynamically() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize: Any = torch.ao.quantization.quantize_dynamic
        model = quantize(_plain(), {nn.Linear}, dtype=torch.qint8)
    with torch.no_grad():
        return model(grid(3, 4))


@style("tensors: quantised statically")
def quantised_statically() -> Any:
    ao: Any = torch.ao.quantization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(ao.QuantStub(), nn.Linear(4, 4), nn.ReLU(), ao.DeQuantStub()).eval()
        model.qconfig = ao.get_default_qconfig(torch.backends.quantized.engine)
        ao.prepare(model, inplace=True)
        model(grid(3, 4))
        ao.convert(model, inplace=True)
        with torch.no_grad():
            return model(grid(3, 4))


@style("tensors: quantised by hand")
def quantised_by_hand() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.1, 2, torch.quint8)
        return q.dequantize() + q.int_repr()

    return Of(run)(grid(3, 4))


@style("tensors: float8 and integers")
def small_kinds() -> Any:
    def run(self: Any, x: Tensor) -> Any:
        eight = x.to(torch.float8_e4m3fn)
        return eight, eight.float(), (x * 10).to(torch.uint8) >> 1, x > 0

    return Of(run)(grid(3, 4))


@style("tensors: on the meta device")
def ghosts() -> Any:
    model = nn.Linear(4, 4, device="meta")
    out = model(torch.empty(3, 4, device="meta"))
    return tuple(out.shape), str(out.device)


@style("tensors: views, overlaps and writes in place")
def views() -> Any:
    def run(self: Any, x: Tensor) -> Any:
        y = self.a(x)
        row = y[0]
        y = y.clone()
        y[1:].mul_(2)
        wide = row.expand(5, 4)
        y[y > 0.2] = -1
        y.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 4))
        return (
            y,
            wide,
            y.t(),
            y.as_strided((2, 2), (1, 1)),
            torch.view_as_complex(wide.reshape(5, 2, 2)),
        )

    with torch.no_grad():
        return watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4))


@style("tensors: shared with numpy")
def numpy_shared() -> Any:
    array = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)

    def run(self: Any, x: Tensor) -> Any:
        y = self.a(x)
        array[0] = 7
        return y + torch.from_numpy(np.sqrt(y.detach().abs().numpy())), array

    return watched(Of(run, a=nn.Linear(4, 4)))(torch.from_numpy(array))


# ---- what models take and return


class Pair(NamedTuple):
    first: Tensor
    rest: dict[str, Any]


@dataclass
class Held:
    value: Tensor
    name: str = "held"


@style("results: containers of all kinds")
def containers() -> Any:
    Point = namedtuple("Point", "x y")

    def run(self: Any, given: Any, *, flag: bool) -> Any:
        y = self.a(given["x"])
        held = Held(y[0])
        return Pair(y, {"p": Point(y[0], 1), "o": OrderedDict(z=y), "s": {1, 2}, "h": held.value,
                        "n": None, "flag": flag, "text": "é", "c": 1j})  # fmt: skip

    return watched(Of(run, a=nn.Linear(4, 4)))({"x": grid(3, 4)}, flag=True)


@style("results: numbers, strings, arrays and None")
def plain_results() -> Any:
    def run(self: Any, x: Tensor) -> Any:
        y = self.a(x)
        return y.sum().item(), y.tolist(), str(y.shape), None, y.detach().numpy(), bool(y.any())

    return watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4))


@style("results: a container that holds itself")
def cyclic() -> Any:
    def run(self: Any, x: Tensor) -> Any:
        out: dict[str, Any] = {"y": self.a(x)}
        out["again"] = [out]
        return out

    out = watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4))
    return out["y"], out["again"][0] is out


@style("results: a module without a hash")
def unhashable() -> Any:
    class Unhashable(nn.Linear):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    model = Unhashable(4, 4)
    out = model(grid(3, 4))
    out.sum().backward()
    return out, model.weight.grad


@style("results: the input itself, and a weight")
def aliases() -> Any:
    x = grid(3, 4)
    model = watched(Of(lambda self, x: (x, self.a.weight, x.detach()), a=nn.Linear(4, 4)))
    out = model(x)
    return out[0] is x, out[1] is model.a.weight, out[2].data_ptr() == x.data_ptr()


@style("results: a cache that grows in place")
def cached() -> Any:
    def run(self: Any, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(self.a(x))
        return torch.cat(cache).mean(0)

    cache: list[Tensor] = []
    model = watched(Of(run, a=nn.Linear(4, 4)))
    return [model(grid(1, 4) + i, cache) for i in range(3)], cache


@style("results: models inside of models, shared weights")
def shared_weights() -> Any:
    first = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    other.weight = first.weight
    return step(watched(nn.Sequential(first, other, first)))


@style("results: state dicts saved, loaded and copied")
def reloaded() -> Any:
    model = net()
    step(model)
    with tempfile.TemporaryDirectory() as room:
        torch.save(model.state_dict(), f"{room}/w.pt")
        again = net()
        keys = again.load_state_dict(torch.load(f"{room}/w.pt", weights_only=True))
    return str(keys), step(again), step(watched(copy.deepcopy(model)))


@style("results: modules changed between calls")
def changing() -> Any:
    model = net()
    first = step(model)
    model.append(nn.Linear(4, 4))
    model[1] = nn.Linear(4, 4)
    model[0].register_forward_hook(lambda m, a, out: out * 2)
    return first, step(model)


@style("results: scripts of random numbers")
def random_numbers() -> Any:
    import random

    def run(self: Any, x: Tensor) -> Any:
        own = torch.Generator().manual_seed(7)
        noise = torch.randn(3, 4) + torch.rand(3, 4, generator=own) + random.random()
        return x + noise + float(np.random.rand()), torch.bernoulli(x.sigmoid()), torch.randperm(5)

    return [Of(run)(grid(3, 4)) for _ in range(2)]


@style("results: data that steers the program")
def steered() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        count = 0
        while x.norm() > 0.1 and count < 20:
            x, count = self.a(x) * 0.5, count + 1
        return x[x > x.mean()] + count

    return watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4))


@style("results: control flow ops")
def controlled() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))  # type: ignore[no-any-return]

    with torch.no_grad():
        return Of(run)(grid(3, 4))


@style("results: control flow ops that are trained")
def controlled_training() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.a(x).sin(), lambda x: x.cos(), (x,))  # type: ignore[no-any-return]

    return step(watched(Of(run, a=nn.Linear(4, 4))))


@style("results: scaled_dot_product_attention")
def attention() -> Any:
    q = grid(1, 2, 4, 8)
    model = Of(lambda self, q: F.scaled_dot_product_attention(q, q, q, is_causal=True))
    return model(q), model(q.requires_grad_())


@style("results: an op of the program's own")
def own_op() -> Any:
    @torch.library.custom_op("styles::scaled", mutates_args=())
    def scaled_op(x: Tensor, by: float) -> Tensor:
        return torch.from_numpy(x.numpy() * np.float32(by))

    scaled_op.register_fake(lambda x, by: torch.empty_like(x))
    with torch.no_grad():
        return watched(Of(lambda self, x: scaled_op(self.a(x), 3.0), a=nn.Linear(4, 4)))(grid(3, 4))


# ---- generators, threads, asyncio, processes


@style("running: a forward that yields")
def yielding() -> Any:
    class Yielding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Iterator[Tensor]:
            for _ in range(3):
                x = self.a(x)
                yield x

    made = watched(Yielding())(grid(3, 4))
    return type(made).__name__, made.__name__, list(made)


@style("running: a generator that is sent values and closed")
def coroutine() -> Any:
    seen: list[str] = []

    class Yielding(nn.Module):
        def forward(self, x: Tensor) -> Any:
            try:
                while True:
                    x = x + (yield x)
            finally:
                seen.append("closed")

    made = Yielding()(grid(3))
    found = [next(made), made.send(1), made.send(2)]
    made.close()
    return found, seen


@style("running: threads")
def threads() -> Any:
    models = [net().eval() for _ in range(3)]

    def run(model: Any) -> Tensor:
        with torch.no_grad():
            return model(grid(3, 4))  # type: ignore[no-any-return]

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(run, models))


@style("running: one model in many threads")
def one_in_threads() -> Any:
    model, found = watched(_plain()), {}

    def run(number: int) -> None:
        found[number] = model(grid(3, 4) + number).detach()

    each = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    return [found[n] for n in sorted(found)]


@style("running: DataParallel and replicas by hand")
def replicas() -> Any:
    model = watched(nn.DataParallel(_plain()))
    return step(model)


@style("running: asyncio")
def asynchronous() -> Any:
    model = watched(_plain())

    async def ask(number: int) -> Tensor:
        await asyncio.sleep(0)
        out = model(grid(3, 4) + number)
        await asyncio.sleep(0)
        return out  # type: ignore[no-any-return]

    async def all_of_them() -> list[Tensor]:
        return await asyncio.gather(*(ask(n) for n in range(3)))

    return asyncio.run(all_of_them())


@style("running: a forward that is a coroutine")
def awaited() -> Any:
    class Awaited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        async def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            await asyncio.sleep(0)
            return self.a(y)  # type: ignore[no-any-return]

    async def run() -> list[Tensor]:
        model = watched(Awaited())
        both: list[Tensor] = await asyncio.gather(model(grid(3, 4)), model(grid(3, 4) + 1))
        return both

    return asyncio.run(run())


@style("running: processes that are forked")
def forked() -> Any:
    import multiprocessing

    model = watched(_plain())
    out = model(grid(3, 4))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def run() -> None:
        torch.set_num_threads(1)
        with torch.no_grad():
            results.put(model(grid(3, 4)).tolist())

    child = context.Process(target=run)
    child.start()
    found = results.get()
    child.join()
    return out, found, child.exitcode


@style("running: signals while a model runs")
def signalled() -> Any:
    import signal

    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))

    def run(self: Any, x: Tensor) -> Tensor:
        signal.raise_signal(signal.SIGUSR1)
        return self.a(x)  # type: ignore[no-any-return]

    try:
        return watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4)), seen
    finally:
        signal.signal(signal.SIGUSR1, before)


@style("running: context variables and thread locals")
def context_variables() -> Any:
    from contextvars import ContextVar

    variable: ContextVar[int] = ContextVar("variable", default=0)

    def run(self: Any, x: Tensor) -> Tensor:
        variable.set(variable.get() + 1)
        return self.a(x)  # type: ignore[no-any-return]

    model = watched(Of(run, a=nn.Linear(4, 4)))
    return [model(grid(3, 4)) for _ in range(2)], variable.get()


@style("running: finalizers that call a model")
def finalized() -> Any:
    model, found = watched(_plain()), []

    class Last:
        def __del__(self) -> None:
            found.append(model(grid(3, 4)).sum().item())

    def run(self: Any, x: Tensor) -> Tensor:
        last = Last()
        del last
        return x + 1

    return Of(run)(grid(3)), found


# ---- exceptions and warnings


@style("exceptions: forward raises")
def raising() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        self.a(x)
        raise KeyError("mine", 7)

    watched(Of(run, a=Block()))(grid(3, 4))


@style("exceptions: a shape that does not fit")
def misfit() -> Any:
    net()(grid(3, 5))


@style("exceptions: caught inside of the model")
def caught() -> Any:
    def run(self: Any, x: Tensor) -> Any:
        try:
            self.a(x[:, :2])
        except RuntimeError as error:
            return self.a(x), str(error)

    return watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4))


@style("exceptions: StopIteration, SystemExit and KeyboardInterrupt")
def odd_exceptions() -> Any:
    found = []
    for kind in (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, AssertionError):

        def run(self: Any, x: Tensor, kind: Any = kind) -> Tensor:
            raise kind("mine")

        try:
            Of(run)(grid(3))
        except BaseException as error:
            found.append((type(error).__name__, str(error), error.__context__ is None))
    return found


@style("exceptions: raised from a cause, in a hook")
def chained() -> Any:
    model = net()

    def hook(module: nn.Module, args: Any, out: Any) -> None:
        try:
            os.environ["NO_SUCH_VARIABLE"]
        except KeyError as error:
            raise ValueError("in a hook") from error

    model[1].register_forward_hook(hook)
    model(grid(3, 4))


@style("exceptions: in backward")
def raising_in_backward() -> Any:
    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ArithmeticError("in backward")

    step(watched(Of(lambda self, x: Raising.apply(self.a(x)), a=nn.Linear(4, 4))))  # type: ignore[no-untyped-call]


@style("exceptions: a wrong argument")
def wrong_argument() -> Any:
    watched(_plain())(grid(3, 4), nothing=1)


@style("warnings: of the program and of torch")
def warned() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        warnings.warn("mine", stacklevel=2)
        return F.mse_loss(self.a(x), torch.ones(4))

    return watched(Of(run, a=nn.Linear(4, 4)))(grid(3, 4))


@style("warnings: made to errors")
def warned_as_error() -> Any:
    def run(self: Any, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return F.mse_loss(x, torch.ones(4))

    Of(run)(grid(3, 4))


# ---- recursion


def depth_left() -> int:
    try:
        return 1 + depth_left()
    except RecursionError:
        return 0


@style("recursion: functions of the program inside of forward")
def depth_in_forward() -> Any:
    return [Of(lambda self, x: (x + 1, depth_left()))(grid(3)) for _ in range(2)]


@style("recursion: deep in modules")
def depth_in_modules() -> Any:
    model: nn.Module = Of(lambda self, x: (x.sin(), depth_left()))
    for _ in range(30):
        model = nn.Sequential(nn.Identity(), model)
    return model(grid(3))


@style("recursion: a module that calls itself until it must not")
def nesting() -> Any:
    deepest = 0

    def run(self: Any, x: Tensor, depth: int) -> Tensor:
        nonlocal deepest
        deepest = max(deepest, depth)
        return self(F.softmax(x, -1), depth + 1)  # type: ignore[no-any-return]

    try:
        Of(run)(grid(3), 0)
    except RecursionError as error:
        return deepest, str(error)


@style("recursion: in hooks and in backward")
def depth_in_hooks() -> Any:
    seen: list[int] = []

    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(depth_left())
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    model = watched(nn.Sequential(nn.Linear(4, 4), Of(lambda self, x: Deep.apply(x))))  # type: ignore[no-untyped-call]
    model[0].register_forward_hook(lambda m, args, out: seen.append(depth_left()))
    step(model)
    return seen


@style("recursion: a limit that the program sets")
def limited() -> Any:
    import sys

    def run(self: Any, x: Tensor) -> Any:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + 200)
        try:
            return before, depth_left(), x + 1
        finally:
            sys.setrecursionlimit(before)

    return Of(run)(grid(3)), depth_left(), sys.getrecursionlimit()


@style("recursion: trees of modules")
def trees() -> Any:
    def run(self: Any, tree: Any) -> Tensor:
        if isinstance(tree, Tensor):
            return self.a(tree)  # type: ignore[no-any-return]
        total: Tensor = sum(self(branch) for branch in tree)
        return total

    model = watched(Of(run, a=nn.Linear(4, 4)))
    out = model([grid(1, 4), [grid(1, 4) + 1, [grid(1, 4) + 2]]])
    out.sum().backward()
    return out
