"""Steps that go on from what an earlier one did are judged by what they were given."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Why


class Remembering(nn.Module):
    """Attention of one position to all before it; a faulty one forgets the first, from step 2."""

    def __init__(self, forgets: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out, self.forgets = nn.Linear(8, 24), nn.Linear(8, 8), forgets

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache:
            k, v = torch.cat([cache[0], k], 0), torch.cat([cache[1], v], 0)
        cache[:] = [k, v]
        if self.forgets and len(k) > 2:
            k, v = k[1:], v[1:]
        out: Tensor = self.out(torch.softmax(q @ k.T, -1) @ v)
        return out


def run(path: Path, forgets: bool) -> Path:
    model, cache = Remembering(forgets), list[Tensor]()
    with dumpcmp.capture(model, path), torch.no_grad():
        x = torch.linspace(-1, 1, 8).reshape(1, 8)
        for _ in range(5):
            x = model(x, cache)
    return path


def test_no_call_of_a_later_step_is_wrong_that_is_right_for_what_it_was_given(
    tmp_path: Path,
) -> None:
    outcome = dumpcmp.compare(run(tmp_path / "golden", False), run(tmp_path / "mine", True))
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None and first.key.step == 2
    assert not [row for row in outcome.roots if row.judgement.why is Why.INTRODUCED]
