"""The same laws under Triton, where there is a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.modes import Compiled
from dumpcmp.dumping.programs import dump
from tests.taps.inductor.models import FAULTS, Fault, Net, net

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_gpu() -> tuple[Net, torch.Tensor]:
    model, x = net()
    return model.cuda(), x.cuda()


def step(backward: bool) -> None:
    model, x = on_gpu()
    with torch.set_grad_enabled(backward):
        out = model(x)
    if backward:
        out.square().sum().backward()


def test_triton_kernels_are_tapped_and_unchanged(tmp_path: Path) -> None:
    dump(lambda: step(True), tmp_path / "golden", backward=True)
    dumped = dump(
        lambda: step(True), tmp_path / "target", mode="compiled", backward=True, certify=True
    )
    assert dumped.error is None
    assert dumped.certified
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 0, [row for row in outcome.rows if row.verdict.fails]
    kernels = {call.kernel for call in Archive(tmp_path / "target").calls.values()}
    assert any(kernel.startswith("triton_") for kernel in kernels)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named_under_triton(fault: Fault, tmp_path: Path) -> None:
    dump(lambda: step(fault.backward), tmp_path / "golden", backward=fault.backward)
    with fault.plant():
        dump(
            lambda: step(fault.backward), tmp_path / "target", mode=Compiled(realize=True),
            backward=fault.backward,
        )  # fmt: skip
    found = dumpcmp.compare(tmp_path / "golden", tmp_path / "target").first_divergence
    assert found is not None and (found.key.op, found.key.slot) == (fault.op, fault.slot)


@pytest.mark.parametrize("way", [{}, {"realize": True}, {"fusion": False}])
def test_no_alarm_on_a_sound_compiler(way: dict[str, Any], tmp_path: Path) -> None:
    dump(lambda: step(True), tmp_path / "golden", backward=True)
    dumped = dump(lambda: step(True), tmp_path / "target", mode=Compiled(**way), backward=True)
    assert dumped.error is None
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 0, [row for row in outcome.rows if row.verdict.fails]
