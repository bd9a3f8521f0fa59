"""Which thread ran a call is told: in the archive, and where it is shown."""

import json
import threading
from pathlib import Path

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


def test_a_call_of_the_schema_before_was_run_by_the_main_thread() -> None:
    old = ["layers.0", 0, 3, "torch.f", "m.py:1", "forward", "[]", [], ""]
    call = read_call(completed_call(old), "Model", 0)
    assert (call.thread, call.target, call.order) == ("", "torch.f", 3)
    assert json.dumps(completed_call([*old, "one"])) == json.dumps([*old, "one"])
