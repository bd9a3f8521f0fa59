"""Recurrent layers, and transforms to frequencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import define, number
from dumpcmp.replay.unreplayable import Unreplayable

_COMPOSES = FunctionKind.COMPOSES
_Cell = Callable[..., tuple[Tensor, ...]]
_USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _check(kind: str, activations: Sequence[str], clip: float, told: dict[str, Any]) -> None:
    usual = _USUAL[kind]
    is_usual = all(name == usual[at % len(usual)] for at, name in enumerate(activations))
    if not is_usual or clip or told.get("layout") or told.get("input_forget"):
        raise Unreplayable("this form of it is not known")


def _scanned(
    x: Tensor, lengths: Tensor | None, direction: str, hidden: list[list[Tensor]], cells: list[Any]
) -> tuple[Tensor, list[list[Tensor]]]:
    """The outputs of each direction over the steps of `x`, and the states at the end."""
    if lengths is not None and not bool((lengths == x.shape[0]).all()):
        raise Unreplayable("sequences of several lengths are not known")
    made, last = [], []
    for at, (state, cell) in enumerate(zip(hidden, cells, strict=True)):
        is_back = direction == "reverse" or at == 1
        steps = reversed(range(x.shape[0])) if is_back else range(x.shape[0])
        found: dict[int, Tensor] = {}
        for step in steps:
            state = list(cell(x[step], *state))
            found[step] = state[0]
        made.append(torch.stack([found[step] for step in range(x.shape[0])]))
        last.append(state)
    return torch.stack(made, 1), last


def _started(given: Tensor | None, x: Tensor, directions: int, size: int) -> list[Tensor]:
    zeros = x.new_zeros((x.shape[1], size))
    return [zeros if given is None else given[at] for at in range(directions)]


def _as_it_is(x: Tensor) -> Tensor:
    return x


@define("LSTM", _COMPOSES)
def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, c: Tensor | None = None, peephole: Tensor | None = None,
    hidden_size: int = 0, direction: str = "forward", activations: Sequence[str] = (),
    clip: float = 0.0, rounds: Callable[[Tensor], Tensor] = _as_it_is, **told: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A layer of LSTM cells; `rounds` is applied to what is multiplied with weights."""
    del hidden_size
    x = rounds(x)
    _check("LSTM", activations, clip, told)
    if peephole is not None:
        raise Unreplayable("this form of it is not known")
    size = r.shape[-1]

    def cell_of(at: int) -> _Cell:
        bias = 0 if b is None else b[at][: 4 * size] + b[at][4 * size :]

        def cell(seen: Tensor, hidden: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
            gates = seen @ w[at].mT + rounds(hidden) @ r[at].mT + bias
            i, o, f, g = gates.chunk(4, -1)
            kept = torch.sigmoid(f) * kept + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(kept), kept

        return cell

    count = w.shape[0]
    states = zip(_started(h, x, count, size), _started(c, x, count, size), strict=True)
    made, last = _scanned(
        x, lengths, direction, [list(s) for s in states], [cell_of(i) for i in range(count)]
    )
    return made, torch.stack([s[0] for s in last]), torch.stack([s[1] for s in last])


@define("GRU", _COMPOSES)
def _gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, hidden_size: int = 0, direction: str = "forward",
    activations: Sequence[str] = (), clip: float = 0.0, linear_before_reset: int = 0, **told: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    del hidden_size
    _check("GRU", activations, clip, told)
    size = r.shape[-1]

    def cell_of(at: int) -> _Cell:
        zeros = x.new_zeros(3 * size)
        wb, rb = (zeros, zeros) if b is None else (b[at][: 3 * size], b[at][3 * size :])

        def cell(seen: Tensor, hidden: Tensor) -> tuple[Tensor]:
            given = seen @ w[at].mT + wb
            z_in, r_in, n_in = given.chunk(3, -1)
            z_w, r_w, n_w = r[at].chunk(3, 0)
            z_b, r_b, n_b = rb.chunk(3, -1)
            update = torch.sigmoid(z_in + hidden @ z_w.mT + z_b)
            reset = torch.sigmoid(r_in + hidden @ r_w.mT + r_b)
            if linear_before_reset:
                new = torch.tanh(n_in + reset * (hidden @ n_w.mT + n_b))
            else:
                new = torch.tanh(n_in + (reset * hidden) @ n_w.mT + n_b)
            return ((1 - update) * new + update * hidden,)

        return cell

    count = w.shape[0]
    states = [[each] for each in _started(h, x, count, size)]
    made, last = _scanned(x, lengths, direction, states, [cell_of(i) for i in range(count)])
    return made, torch.stack([state[0] for state in last])


@define("RNN", _COMPOSES)
def _rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, hidden_size: int = 0, direction: str = "forward",
    activations: Sequence[str] = (), clip: float = 0.0, **told: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    del hidden_size
    relu = bool(activations) and all(name == "Relu" for name in activations)
    _check("RNN", () if relu else activations, clip, told)
    size, act = r.shape[-1], torch.relu if relu else torch.tanh

    def cell_of(at: int) -> _Cell:
        bias = 0 if b is None else b[at][:size] + b[at][size:]
        return lambda seen, hidden: (act(seen @ w[at].mT + hidden @ r[at].mT + bias),)

    count = w.shape[0]
    states = [[each] for each in _started(h, x, count, size)]
    made, last = _scanned(x, lengths, direction, states, [cell_of(i) for i in range(count)])
    return made, torch.stack([state[0] for state in last])


def _window(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(size: Tensor, output_datatype: int = 1, periodic: int = 1) -> Tensor:
        del output_datatype
        return make(int(number(size)), periodic=bool(periodic), dtype=torch.float64)

    return run


define("HannWindow", _COMPOSES)(_window(torch.hann_window))
define("HammingWindow", _COMPOSES)(
    _window(lambda n, **told: torch.hamming_window(n, alpha=25 / 46, beta=21 / 46, **told))
)
define("BlackmanWindow", _COMPOSES)(_window(torch.blackman_window))


@define("DFT", _COMPOSES, versioned=True)
def _dft(
    x: Tensor, length: Tensor | None = None, at: Tensor | None = None, axis: int = 1,
    inverse: int = 0, onesided: int = 0, opset: int = 20,
) -> Tensor:  # fmt: skip
    dim = int(number(at, -2)) if opset >= 20 else axis
    dim = dim if dim >= 0 else dim + x.ndim
    size = None if length is None else int(number(length))
    seen = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
    if inverse:
        if onesided:
            raise Unreplayable("this form of it is not known")
        return torch.view_as_real(torch.fft.ifft(seen, size, dim))
    found = torch.fft.fft(seen, size, dim)
    found = found.narrow(dim, 0, found.shape[dim] // 2 + 1) if onesided else found
    return torch.view_as_real(found)


@define("STFT", _COMPOSES)
def _stft(
    signal: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None,
    onesided: int = 1,
) -> Tensor:  # fmt: skip
    seen = signal[..., 0] if signal.ndim == 3 else signal
    size = int(number(length)) if length is not None else 0
    size = size or (window.numel() if window is not None else 0)
    frames = seen.unfold(-1, size, int(number(step)))
    if window is not None:
        spare = size - window.numel()
        frames = frames * torch.nn.functional.pad(window, (spare // 2, spare - spare // 2))
    found = torch.fft.rfft(frames) if onesided else torch.fft.fft(frames)
    return torch.view_as_real(found)
