"""Calls that an archive may claim: those that ask for much are not run, nor any that write."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dumpcmp
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call
from tests.archive.values import put

X: dict[str, Any] = {"slot": "input.0"}
CALLS: dict[str, list[Any]] = {
    "torch.Tensor.repeat": [X, 1 << 33],
    "torch.tile": [X, {"tuple": [1 << 33]}],
    "torch.zeros": [1 << 36],
    "torch.arange": [1 << 36],
    "torch.eye": [1 << 20],
    "torch.repeat_interleave": [X, 1 << 33],
    "torch.nn.functional.pad": [X, [1 << 33, 1 << 33]],
    "torch.nn.functional.interpolate": [X, 1 << 30],
    "torch.nn.functional.one_hot": [X, 1 << 33],
    "torch.linalg.matrix_power": [X, 1 << 40],
    "torch.Tensor.pow": [X, 10**400],
    "torch.einsum": ["abcdefgh,ij->abcdefghij", X, X],
    "torch.Tensor.as_strided": [X, [1 << 20], [1 << 20], 1 << 20],
    "torch.Tensor.__getitem__": [X, {"tuple": [[1 << 40]]}],
    "torch.Tensor.view": [X, [-7, 3]],
    "torch.cumsum": [X, 1 << 62],
    "torch.Tensor.unfold": [X, 0, 1 << 40, 1],
    "torch.conv1d": [X, X, None, 0, 0, 0],
    "torch.fft.fft": [X, 1 << 33],
    "torch.Tensor.set_": [X],
    "torch.Tensor.numpy": [X],
    "torch.save": [X, "evil"],
    "torch.load": ["evil"],
    "torch.hub.load": [".", "evil"],
    "torch.os.mkdir": ["evil"],
    "builtins.open": ["evil", "w"],
    "operator.methodcaller": ["evil"],
    "torch.ops.load_library": ["evil"],
}


@pytest.mark.parametrize("target", CALLS)
def test_a_call_that_no_capture_writes_costs_and_does_nothing(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given, op = np.arange(4, dtype="f4"), Op("a/x")
    for name, factor in (("golden", 1.0), ("mine", 1.5)):
        with ArchiveWriter(tmp_path / name) as sink:
            arguments = json.dumps({"args": CALLS[target]})
            sink.call(Call("Model", 0, op, 0, 0, target, "m.py:1", arguments=arguments))
            put(sink, Key("Model", 0, op, 0, "input.0"), given)
            put(sink, Key("Model", 0, op, 0, "output.0"), given * factor)
            sink.finish_step("Model", 0)
    memory, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine", replay="all")
    assert outcome.exit_code == 1
    assert time.process_time() - began < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 1 << 20
    assert sorted(each.name for each in tmp_path.iterdir()) == ["golden", "mine"]
