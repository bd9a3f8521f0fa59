"""Values whose like came before are not described again: the archive holds the same either way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.taps.recording import sources, values
from tests.taps.randomly import MineError, Program

STEPS = 4


class Shifting(nn.Module):
    """Meets other shapes, dtypes, strides and calls in each step, and negated and aliased views."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        wide = x.repeat(self.step % 3 + 1, 1)
        wide = wide.double() if self.step % 2 else wide
        turned = torch.view_as_complex(wide.reshape(-1, 3, 2).contiguous())
        part = turned.conj().imag if self.step > 2 else turned.imag
        y = self.linear(x) + x
        for _ in range(self.step):
            y = y.t().contiguous().t() + part.sum()
        y.detach().numpy()[0] += 1  # which torch does not count
        z = y * 2 + torch.zeros(0).sum() + y.new_ones(1).expand(4, 6)
        out: Tensor = z.transpose(0, 1) @ z
        return out


def forgetting(patch: pytest.MonkeyPatch) -> None:
    """Have every value described, looked at with care, and copied by torch."""
    patch.setattr(ArchiveWriter, "put_known", lambda *_: False)
    patch.setattr(values, "counts_writes", lambda _: None)
    patch.setattr(sources, "GATHER", None)


def contents(path: Path) -> Any:
    """All that an archive says, but for where the bytes lie."""
    archive = dumpcmp.Archive(path)
    records = [replace(record, location=None) for record in archive.values()]
    held = [r for r in archive.values() if r.kept.holds]
    told = list(archive.calls.items())
    assert all(record.order == archive.calls[record.key.site].order for record in records)
    return records, [archive.load(record).bits.tobytes() for record in held], told


def run(model: nn.Module, path: Path, **selection: Any) -> Any:
    torch.manual_seed(1)
    with dumpcmp.capture(model, path, **selection):
        for step in range(STEPS):
            x = torch.randn(4, 6, requires_grad=True)
            try:
                if step == 1:
                    with torch.inference_mode(selection.get("mode") is None):
                        model(x.detach())
                else:
                    model(x).sum().backward()
            except MineError:
                continue
            if isinstance(model, Program):
                random.Random(step).shuffle(model.moves)
    return contents(path)


WAYS: list[dict[str, Any]] = [
    {"backward": True, "weights": True},
    {"backward": True, "keep": "summary"},
    {"level": "modules", "backward": True},
    {"mode": "aten"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_known_again_is_written_as_if_it_were_described(
    way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: tuple[Callable[[], nn.Module], ...] = (Shifting, partial(Program, 3, length=6))
    for number, make in enumerate(models):
        torch.manual_seed(0)
        quick = run(make(), tmp_path / f"quick-{number}", **way)
        with monkeypatch.context() as patch:
            forgetting(patch)
            torch.manual_seed(0)
            slow = run(make(), tmp_path / f"slow-{number}", **way)
        assert len(quick[0]) > 10
        for one, other in zip(quick, slow, strict=True):
            assert one == other
