"""Graphs broken on purpose: ops or one sentence, in time, and no command of theirs ever runs.

``DUMPCMP_MUTANTS=100000 pytest tests/partitioning/test_fuzz_graphs.py`` is the long version.
"""

from __future__ import annotations

import io
import os
import random
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dumpcmp.partitioning.checkpoint import read_checkpoint
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.exported import read_exported
from tests.test_fuzz_inputs import broken

MUTANTS = int(os.environ.get("DUMPCMP_MUTANTS", "150"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
LOADED = 50  # one in so many is loaded by torch as well, which takes long
LONGEST = 5.0  # seconds of computing for one mutant
REAL = Path(__file__).parent / "data" / "nnscaler_linear_relu.ckp"
COMMANDS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen")

_ran: list[str] = []


def _watch(event: str, _: object) -> None:
    if event in COMMANDS:
        _ran.append(event)


sys.addaudithook(_watch)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.relu().reshape(-1, 2)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "model.pt2"
    torch.export.save(torch.export.export(Small(), (torch.ones(2, 4),)), path)
    return path.read_bytes()


def rezipped(content: bytes, draws: random.Random) -> bytes:
    """A package in which one entry is broken: what no checksum of the file tells."""
    room = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(room, "w") as new:
        names = old.namelist()
        json = [name for name in names if name.endswith(".json")]
        chosen = draws.choice(json if draws.random() < 0.8 else names)
        for name in names:
            entry = old.read(name)
            new.writestr(name, broken(entry, draws) if name == chosen else entry)
    return room.getvalue()


def test_packages(program: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, path, load = random.Random(SEED), tmp_path / "model.pt2", torch.export.load
    path.write_bytes(program)
    assert read_exported(path)
    _ran.clear()
    number = 0

    def some(copy: Any) -> Any:
        if number % LOADED:
            raise ValueError("it is clean, and that is all that is asked here")
        return load(copy)

    monkeypatch.setattr(torch.export, "load", some)
    for number in range(MUTANTS):
        change = rezipped if number % 3 else broken
        path.write_bytes(change(program, draws))
        began = time.process_time()
        with suppress(PartitionError):
            read_exported(path)
        assert time.process_time() - began < LONGEST
    assert not _ran


def test_checkpoints(tmp_path: Path) -> None:
    content, draws, path = REAL.read_bytes(), random.Random(SEED), tmp_path / "graph.ckp"
    _ran.clear()
    for _ in range(MUTANTS):
        path.write_bytes(broken(content, draws))
        began = time.process_time()
        try:
            read_checkpoint(path)
        except PartitionError as error:
            assert str(path) in str(error)
        assert time.process_time() - began < LONGEST
    assert not _ran
