"""Ports whose dims lie in another order: tokens first, weights transposed, square ones too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.align.turning import turned, turns_of
from dumpcmp.nouns.outcome import Outcome

BATCH, TOKENS, WIDTH, INNER = 2, 6, 8, 12


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (1, 3, 4), (2, 2, 5), (4, 3, 2, 5)])
def test_a_turned_value_is_the_value(shape: tuple[int, ...]) -> None:
    golden = np.arange(np.prod(shape)).reshape(shape)
    for order in {tuple(range(len(shape)))[::-1], (*range(1, len(shape)), 0)}:
        target = golden.transpose(order)
        back = [turned(target, turn, shape) for turn in turns_of(shape, target.shape)]
        assert any(np.array_equal(golden, one) for one in back)
        assert all(one.shape == shape for one in back)


def test_dims_of_one_element_are_no_difference() -> None:
    assert list(turns_of((1, 8, 4), (8, 4))) == [(0, 1)]
    assert list(turns_of((2, 8), (2, 9))) == []


class Golden(nn.Module):
    """Samples first; a square projection and two that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(x).cumsum(1)
        out: Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


class Columns(nn.Module):
    """A projection that keeps its weight transposed."""

    def __init__(self, theirs: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(theirs.weight.detach().T.contiguous())
        self.bias = nn.Parameter(theirs.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Port(nn.Module):
    """Tokens first, and all weights transposed."""

    def __init__(self, theirs: Golden, fault: str = "") -> None:
        super().__init__()
        self.first, self.wide, self.narrow = map(Columns, (theirs.mix, theirs.up, theirs.down))
        self.fault = fault
        if fault == "not transposed":
            self.first.weight.data = theirs.mix.weight.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1).contiguous()
        x = x + self.first(x).cumsum(1 if self.fault == "other dim" else 0)
        inner = torch.tanh(self.wide(x))
        out: Tensor = x + self.narrow(inner * 1.01 if self.fault == "scaled" else inner)
        return out.transpose(0, 1).contiguous()


def compared(room: Path, fault: str = "", stated: str = "") -> Outcome:
    torch.manual_seed(0)
    golden = Golden()
    x = torch.randn(BATCH, TOKENS, WIDTH)
    for name, model in (("d1", golden), ("d2", Port(golden, fault))):
        with torch.no_grad(), dumpcmp.capture(model, room / name):
            model(x)
    mapping = dumpcmp.propose_mapping(room / "d1", room / "d2").write(room / "map.yaml")
    assert fault or "up: {to: wide, order: [1, 0, 2]}" in mapping.read_text()
    if stated:
        mapping.write_text(stated)
    return dumpcmp.compare(room / "d1", room / "d2", mapping=mapping)


def test_a_port_with_its_dims_in_another_order_is_the_same(tmp_path: Path) -> None:
    outcome = compared(tmp_path)
    rows = {f"{row.key.op} {row.key.slot}": row for row in outcome.rows}
    assert outcome.exit_code == 0 and not outcome.roots
    for name in ("mix param.weight", "up param.weight", "up output.0", "down output.0"):
        metrics = rows[name].metrics
        assert metrics is not None and metrics.rel_l2 < 1e-6, name
    assert rows["mix param.weight"].layout == "my dims in golden's order: 1 0"
    assert rows["up output.0"].layout == "my dims in golden's order: 1 0 2"


@pytest.mark.parametrize(
    "fault, ops",
    [
        ("scaled", ("<root>/tanh", "down", "<root>/mul")),
        ("other dim", ("<root>/cumsum",)),
        ("not transposed", ("mix", "mix/linear", "first/matmul")),
    ],
)
def test_a_fault_of_such_a_port_is_named(tmp_path: Path, fault: str, ops: tuple[str, ...]) -> None:
    outcome = compared(tmp_path, fault)
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None
    assert first.key.op in ops


def test_an_order_that_is_stated_holds_where_the_values_are_wrong(tmp_path: Path) -> None:
    lines = "mix: {to: first, order: [1, 0, 2]}\nup: {to: wide, order: [1, 0, 2]}\ndown: narrow\n"
    outcome = compared(tmp_path, "not transposed", lines)
    rows = {f"{row.key.op} {row.key.slot}": row for row in outcome.rows}
    assert rows["mix output.0"].verdict == rows["up output.0"].verdict == "FAIL"


def test_an_order_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dumpcmp.AlignError, match="gives not"):
        compared(tmp_path, stated="up: {to: wide, order: [0, 1, 2]}\nmix: first\ndown: narrow\n")
