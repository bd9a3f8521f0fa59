"""What a script leaves behind is recorded though its model is gone when the run ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dumpcmp
from dumpcmp.dumping.programs import dump, script_program
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.outcome import Conclusion

MAIN = """
import gc, sys, weakref, torch
from torch import nn

def main(fault):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.scale = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(2):
        loss = (model(torch.arange(12.0).reshape(3, 4)) * model.scale).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.rand(1)
    with torch.no_grad():
        if fault == "weight":
            model[0].bias.add_(0.5)
        if fault == "own weight":
            model.scale.mul_(2)
        if fault == "buffer":
            model[1].running_var.mul_(2)
        if fault == "momentum":
            optimizer.state[model[0].bias]["exp_avg"].mul_(2)
    return [weakref.ref(one) for one in (model, model[0].weight, optimizer)]
"""
GONE = "assert [ref() for ref in main(sys.argv[1])] == [None, None, None]"
KEPT = """
def program():  # which holds the globals of the script
    return model

torch.manual_seed(0)
model = nn.Linear(2, 2)
with torch.no_grad():
    model(torch.ones(1, 2))
    if sys.argv[1]:
        model.bias.add_(1)
if sys.argv[1] == "exit":
    sys.exit()
"""
CYCLE = """
model = nn.Linear(2, 2)
model.itself = [model]
model(torch.ones(1, 2))
gone = weakref.ref(model)
del model
gc.collect()
assert gone() is None
"""
FAULTS = {
    "weight": Effect.STATE, "own weight": Effect.STATE, "buffer": Effect.STATE,
    "momentum": Effect.OPTIMIZER,
}  # fmt: skip


def dumped(room: Path, name: str, text: str, fault: str = "") -> Path:
    script = room / "program.py"
    script.write_text(text)
    torch.manual_seed(7)
    ran = dump(script_program(str(script), (fault,)), room / name, backward=True)
    assert ran.error is None and not ran.remarks
    return room / name


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_function_made_is_looked_at_as_it_goes(fault: str, tmp_path: Path) -> None:
    golden, target = dumped(tmp_path, "golden", MAIN + GONE), tmp_path / "mine"
    outcome = dumpcmp.compare(golden, dumped(tmp_path, target.name, MAIN + GONE, fault))
    assert outcome.conclusion is Conclusion.EFFECT
    (wrong,) = outcome.failures
    assert wrong.key.op == FAULTS[fault].op and wrong.key.step == 1


def test_what_differs_in_nothing_is_the_same(tmp_path: Path) -> None:
    golden, target = (dumped(tmp_path, name, MAIN + GONE) for name in ("golden", "mine"))
    outcome = dumpcmp.compare(golden, target)
    assert outcome.conclusion is Conclusion.SAME
    ends = {row.key.op for row in outcome.rows if row.key.op.is_effect}
    assert {Effect.STATE.op, Effect.OPTIMIZER.op, Effect.GENERATORS.op} <= ends


@pytest.mark.parametrize("fault", ["end", "exit"])
def test_globals_of_a_script_live_until_its_run_has_ended(fault: str, tmp_path: Path) -> None:
    golden = dumped(tmp_path, "golden", MAIN + KEPT)
    outcome = dumpcmp.compare(golden, dumped(tmp_path, "mine", MAIN + KEPT, fault))
    assert outcome.headline.startswith("DIFFERENT state at token 0: param.bias")


def test_nothing_lives_longer_for_it(tmp_path: Path) -> None:
    dumped(tmp_path, "d", MAIN + CYCLE)
