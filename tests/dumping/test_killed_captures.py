"""Captures that are killed at any moment: one repair mends all that there is, and a second nothing.

``make fuzz`` kills a thousand.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.capturing import capture

KILLS = int(os.environ.get("DUMPCMP_KILLS", "6"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
LONGEST = 0.4  # seconds until the kill


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def drawn(chance: random.Random) -> dict[str, Any]:
    """How a capture is made."""
    options: dict[str, Any] = {"backward": chance.random() < 0.3, "weights": chance.random() < 0.3}
    if chance.random() < 0.2:
        options["mode"] = "aten"
    if chance.random() < 0.2:
        options["keep"] = "summary"
    return options


def capture_for_ever(path: Path, chance: random.Random) -> None:
    """The child: it never comes back."""
    width, rows, options = chance.choice([8, 64, 512]), chance.choice([1, 16, 200]), drawn(chance)
    net, x = Net(width), torch.randn(rows, width)
    try:
        with capture(net, path, **options):
            (path / "begun").touch()
            while True:
                y = net(x)
                if options["backward"]:
                    y.sum().backward()
    finally:
        os._exit(3)


def killed(path: Path, chance: random.Random) -> None:
    """Capture into `path`, and kill it."""
    child = os.fork()
    if child == 0:
        capture_for_ever(path, chance)
    while not (path / "begun").exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the capture ended by itself"
        time.sleep(0.002)
    time.sleep(chance.uniform(0, LONGEST))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (path / "begun").unlink()


@pytest.mark.parametrize("trial", range(KILLS))
def test_one_repair_mends_all_that_a_kill_has_left(tmp_path: Path, trial: int) -> None:
    path = tmp_path / "d"
    killed(path, random.Random(f"{SEED} {trial}"))
    first = audit(path, repair=True)
    assert first.exit_code == 0, first.findings
    again = audit(path, repair=True)
    assert again.exit_code == 0 and again.num_records == first.num_records
    assert not [finding for finding in again.findings if finding.repair], again.findings
    archive = Archive(path)
    assert len(list(archive.values())) <= first.num_records and not archive.complete
    if first.num_records:
        assert dumpcmp.compare(path, path).exit_code == 2, "it is not whole"
