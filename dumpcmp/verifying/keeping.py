"""Keeps what a verification ran on and what both sides gave, as two archives to compare."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from torch import nn

from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.selection import Level, Tap
from dumpcmp.nouns.version import __version__
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.verifying.isolate import Inputs


class _Given(nn.Module):
    """Gives what a side gave, so that a capture sees it as the call of a model."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        super().__init__()
        self.outputs = tuple(outputs)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ARG002
        return self.outputs


def keep(path: str, name: str, inputs: Inputs, outputs: Sequence[Sequence[Any]]) -> Path:
    """Write `inputs` and each side's `outputs` under `path`; return where: ``verify-0``.

    It holds two archives, ``golden`` and ``target``, of one call of the model `name`.
    """
    numbered = (Path(path, f"verify-{number}") for number in count())
    room = next(place for place in numbered if not place.exists())
    for side, given in zip(("golden", "target"), outputs, strict=True):
        _keep(room / side, name, inputs, given)
    return room


def _keep(path: Path, name: str, inputs: Inputs, outputs: Sequence[Any]) -> None:
    root = type(name, (_Given,), {})(outputs)
    run = {"mode": "verify", "versions": {"dumpcmp": __version__}}
    with ArchiveWriter(path, run=run) as out:
        capture = ModuleCapture(Recorder(out, Tap(level=Level.MODULES), 0), (root,))
        with capture.running():
            root(*inputs.args, **inputs.kwargs)
