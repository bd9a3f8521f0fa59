"""The sample dumps are what their script builds, and show what the docs say of them."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dumpcmp import demo
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare

BUILD = demo.build
SAMPLES = Path(__file__).parents[2] / "sample_dumps"


def drawn_where_samples_were(size: demo.Size) -> tuple[demo.TinyDecoder, tuple[Tensor]]:
    """The model of the samples. Its weights are drawn, which rounds as the processor does."""
    model, ids = BUILD(size)
    archive = Archive(SAMPLES / "golden")
    told = {f"{key.op}.{key.slot.name}": key for key in archive if key.slot.is_weight}
    with torch.no_grad():
        for name, weight in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(),
        ):
            sample = archive.tensor(told.pop(name if "." in name else f"<root>.{name}"))
            torch.testing.assert_close(weight, sample, rtol=1e-5, atol=1e-6)
            weight.copy_(sample)
    assert not told
    return model, ids


def test_the_samples_are_what_the_script_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "build", drawn_where_samples_were)
    script = runpy.run_path(str(SAMPLES / "build.py"))
    script["build"](tmp_path)
    for name in ("golden", "target"):
        # An op with a fault in it is wrong by itself, wherever another processor rounds it.
        outcome = compare(SAMPLES / name, tmp_path / name, replay="off")
        assert outcome.exit_code == 0, outcome.first_divergence
        assert list(Archive(SAMPLES / name)) == list(Archive(tmp_path / name))


def test_the_samples_show_the_planted_fault() -> None:
    script = runpy.run_path(str(SAMPLES / "build.py"))
    outcome = compare(SAMPLES / "golden", SAMPLES / "target")
    first = outcome.first_divergence
    assert first is not None and first.key.op == script["FAULT"].op
    assert first.key.slot == "output.0" and first.source.startswith("dumpcmp/demo.py:")


def test_the_samples_tell_nothing_of_the_machine_that_made_them() -> None:
    for path in SAMPLES.rglob("*.json"):
        assert not any(word in path.read_text() for word in ("platform", "/home", "Linux", "/tmp"))
