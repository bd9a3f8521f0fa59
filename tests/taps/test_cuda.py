"""Captures on a GPU: right under reuse and several streams, and without waiting for the device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_native_id
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive, Retention, demo
from dumpcmp.nouns.key import Key

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@contextmanager
def never_waiting() -> Iterator[None]:
    """Make any call that synchronises with the device raise."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def numbers(archive: Archive, *key: object) -> np.ndarray:
    return archive.load(archive[Key(*key)]).numbers()  # type: ignore[arg-type]


class Overwriter(nn.Module):
    """Overwrites its values as soon as they were used."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20):
            y = x * 2
            x = y + 1
            y.zero_()
        return x


def test_overwritten_values_are_as_they_were(tmp_path: Path) -> None:
    x = torch.full((1 << 20,), 3.0, device="cuda")
    with dumpcmp.capture(None, tmp_path / "d1"):
        Overwriter()(x)
    archive, value = Archive(tmp_path / "d1"), 3.0
    for i in range(20):
        doubled = numbers(archive, "Overwriter", 0, "<root>/mul", i, "output.0")
        assert (doubled == np.float32(value * 2)).all()
        value = value * 2 + 1
        assert (numbers(archive, "Overwriter", 0, "<root>/zero", i, "output.0") == 0).all()


def test_nothing_waits_for_the_device(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
    x = torch.randn(64, 256, device="cuda")
    with dumpcmp.capture(model, tmp_path / "d1", backward=True):
        model(x).sum().backward()  # warm: libraries wait when they start
        torch.cuda.synchronize()
        with never_waiting():
            model(x).sum().backward()
    assert {key.step for key in Archive(tmp_path / "d1")} == {0, 1}


WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def waits_of(run: Callable[[], object], trace: Path) -> list[str]:
    """The calls by which this thread waits for the device in `run`, by a trace of the profiler."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    here = [e for e in events if e.get("cat") == "cuda_runtime" and e["tid"] == get_native_id()]
    assert len(here) >= 9, "the trace has what this thread launched, and its wait at the end"
    return sorted(e["name"] for e in here if e["name"] in WAITS)


@pytest.mark.parametrize(
    "kept", [{}, {"keep": "summary"}, {"sample_rows": 8}, {"keep": Retention(buffer=1 << 28)}],
    ids=["full", "summary", "rows", "buffer"],
)  # fmt: skip
def test_a_trace_has_no_wait_that_the_program_alone_has_not(
    kept: dict[str, Any], tmp_path: Path
) -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
    x = torch.randn(512, 256, device="cuda")
    model(x)
    alone = waits_of(lambda: model(x), tmp_path / "alone.json")
    with dumpcmp.capture(model, tmp_path / "d", **kept), torch.no_grad():
        model(x)  # libraries wait when they start, and kernels are compiled
        torch.cuda.synchronize()
        assert waits_of(lambda: model(x), tmp_path / "captured.json") == alone


def test_several_streams(tmp_path: Path) -> None:
    class Streams(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            outs, here = [], torch.cuda.current_stream()
            for i in range(4):
                side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                side.wait_stream(here)
                with torch.cuda.stream(side):
                    torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
                    outs.append(x * (i + 1))
                here.wait_stream(side)
            return torch.stack(outs).sum(0)

    x = torch.ones(1 << 20, device="cuda")
    with dumpcmp.capture(None, tmp_path / "d1"):
        Streams()(x)
    archive = Archive(tmp_path / "d1")
    for i in range(4):
        assert (numbers(archive, "Streams", 0, "<root>/mul", i, "output.0") == i + 1).all()
    assert (numbers(archive, "Streams", 0, "<root>", 0, "output.0") == 10).all()


@pytest.mark.parametrize("mode", ["eager", "fx", "aten"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_capture_changes_nothing(mode: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = demo.build(dtype=dtype)[0].cuda()
    prompt = torch.tensor([demo.PROMPT], device="cuda")
    with torch.no_grad():
        plain = model(prompt)[0].clone()
        before = torch.cuda.get_rng_state()
        with dumpcmp.capture(model, tmp_path / "d1", mode=mode):
            assert torch.equal(model(prompt)[0], plain)
        assert torch.equal(torch.cuda.get_rng_state(), before)
    logits = Archive(tmp_path / "d1")[Key("TinyDecoder", 0, "<root>", 0, "output.0")]
    assert logits.device == "cuda:0"
    bits = Archive(tmp_path / "d1").load(logits).bits
    assert bits.tobytes() == bytes(plain.cpu().view(torch.uint8).numpy())


def test_gradients_and_random_states(tmp_path: Path) -> None:
    first = nn.Linear(8, 8)
    model = nn.Sequential(first, nn.Dropout(0.5), nn.ReLU(inplace=True)).cuda()
    x = torch.randn(4, 8, device="cuda")
    with dumpcmp.capture(model, tmp_path / "d1", backward=True):
        model(x).square().sum().backward()
    archive = Archive(tmp_path / "d1")
    grad = numbers(archive, "Sequential", 0, "0", 0, "grad.weight")
    assert first.weight.grad is not None
    assert np.array_equal(grad, first.weight.grad.cpu().numpy())
    state = numbers(archive, "Sequential", 0, "1/dropout", 0, "rng.cuda")
    torch.cuda.set_rng_state(torch.from_numpy(state.copy()))
    hidden = numbers(archive, "Sequential", 0, "1/dropout", 0, "input.0")
    again = nn.functional.dropout(torch.from_numpy(hidden.copy()).cuda(), 0.5)
    drawn = numbers(archive, "Sequential", 0, "1/dropout", 0, "output.0")
    assert np.array_equal(again.cpu().numpy(), drawn)


@pytest.mark.parametrize("keep", ["full", "summary"])
def test_moments_that_a_batch_norm_wrote_are_not_those_before(keep: str, tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.norm(x) + 1)
            return y

    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model, x = Twice().to(device), torch.randn(16, 8)
        with dumpcmp.capture(model, tmp_path / device, keep=keep, backward=True):
            for _ in range(3):
                model(x.to(device)).logsumexp(-1).sum().backward()
    outcome = dumpcmp.compare(tmp_path / "cpu", tmp_path / "cuda")
    assert outcome.passed, outcome
    found = [row for row in outcome.rows if str(row.key.op) == "norm@1/batch_norm"]
    assert {"input.1", "input.2"} <= {row.key.slot for row in found}


def test_what_an_op_wrote_in_place_is_not_what_it_was_given(tmp_path: Path) -> None:
    class Writer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y.add_(1).relu_()
            y[0] = 7
            torch._foreach_mul_([y], 3)
            return y.clamp_(max=20)

    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        x = torch.randn(4, 8).to(device)
        with torch.no_grad(), dumpcmp.capture(None, tmp_path / device, mode="aten"):
            Writer()(x)
    outcome = dumpcmp.compare(tmp_path / "cpu", tmp_path / "cuda")
    assert outcome.passed, outcome
    archive = Archive(tmp_path / "cuda")
    doubled = numbers(archive, "Writer", 0, "<root>/aten.mul", 0, "output.0")
    added = numbers(archive, "Writer", 0, "<root>/aten.add", 0, "output.0")
    assert np.array_equal(added, doubled + 1)
