"""The commands that a report proposes can be pasted as they are."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dumpcmp.cli import main
from dumpcmp.comparing import compare
from dumpcmp.dumping.programs import dump, script_program
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.advice import fault_commands

_PROGRAM = """
import sys, torch
layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
torch.nn.init.eye_(layer.weight), torch.nn.init.zeros_(layer.bias)
torch.nn.Sequential(layer, torch.nn.ReLU() if sys.argv[2] == "relu" else torch.nn.SiLU())(x)
"""


def graft_in(outcome: Outcome) -> str:
    return next(line for line, _ in fault_commands(outcome) if "--at" in line)


@pytest.mark.filterwarnings("ignore::dumpcmp.CaptureWarning")
def test_a_graft_is_proposed_with_my_program_and_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(_PROGRAM)
    for name, layer in (("golden", "relu"), ("mine", "silu")):
        dump(script_program("program.py", ("two words", layer)), name)
    outcome = compare("golden", "mine")
    assert graft_in(outcome).endswith("program.py 'two words' silu")
    told = CliRunner().invoke(main, ["compare", "--my-path", "mine", "--golden-path", "golden"])
    assert told.exit_code == 1 and "at 1/relu" in told.stdout and "nan" not in told.stdout
    facts = {**dict(outcome.background.target.facts), "program": "x.py; rm -rf $HOME"}
    target = replace(outcome.background.target, facts=tuple(facts.items()))
    hostile = replace(outcome, background=replace(outcome.background, target=target))
    assert graft_in(hostile).endswith("'x.py;' rm -rf '$HOME'")
