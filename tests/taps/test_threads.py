"""Which thread ran a call is told: in the archive, and where it is shown."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import dumpcmp
from dumpcmp.archive.schema import completed_call, read_call
from dumpcmp.cli.show import command


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_every_call_tells_its_thread(tmp_path: Path, mode: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with dumpcmp.capture(model, tmp_path / "d", mode=mode):
        model(torch.ones(2, 3))
        thread = threading.Thread(target=model, args=(torch.ones(2, 3),), name="other [one]")
        thread.start()
        thread.join()
    archive = dumpcmp.Archive(tmp_path / "d")
    found = {(call.step, call.thread) for call in archive.calls.values()}
    assert found == {(0, ""), (1, "other [one]")}
    shown = CliRunner().invoke(command, [str(tmp_path / "d")]).output
    first, second = shown.split("token 1")
    assert "in thread other [one]" in second and "thread" not in first


class Wide(nn.Sequential): ...


class Deep(nn.Sequential): ...


@pytest.mark.parametrize("way", [{}, {"backward": True}, {"keep": "summary"}], ids=str)
def test_threads_record_what_each_records_alone(way: dict[str, Any], tmp_path: Path) -> None:
    """Each in the midst of the others' steps, which begin and end between any two of its calls."""
    models = [Wide(nn.Linear(4, 4)), Deep(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))]
    before = sys.getswitchinterval()
    ran: list[int] = []

    def run(model: nn.Module) -> None:
        for step in range(20):
            model(torch.full((2, 4), float(step))).sum().backward()
        ran.append(1)

    with dumpcmp.capture(None, tmp_path / "alone", **way):
        for model in models:
            run(model)
    for model in models:
        model.zero_grad()
    sys.setswitchinterval(1e-5)
    try:
        with dumpcmp.capture(None, tmp_path / "together", **way):
            threads = [threading.Thread(target=run, args=(model,)) for model in models]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(ran) == 4, "no thread died of the capture"
    alone, together = dumpcmp.Archive(tmp_path / "alone"), dumpcmp.Archive(tmp_path / "together")
    assert set(alone) == set(together) and dumpcmp.audit(tmp_path / "together").sound
    assert all(alone[key].same_as == together[key].same_as for key in alone)
    assert all(alone[key].digest == together[key].digest for key in alone)


def test_a_call_of_the_schema_before_was_run_by_the_main_thread() -> None:
    old = ["layers.0", 0, 3, "torch.f", "m.py:1", "forward", "[]", [], ""]
    call = read_call(completed_call(old), "Model", 0)
    assert (call.thread, call.target, call.order) == ("", "torch.f", 3)
    assert json.dumps(completed_call([*old, "one"])) == json.dumps([*old, "one"])
