"""Comparing step by step: while the run goes on, and up to the first token that fails."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from dumpcmp import demo
from dumpcmp.archive.ending import finished_steps, has_ended
from dumpcmp.archive.read.reader import Archive
from dumpcmp.cli import main
from dumpcmp.comparing.stepping import is_count_settled
from dumpcmp.comparing.watching import compare_by_steps
from dumpcmp.dumping.capturing import capture
from dumpcmp.faults import Fault, on_output, planted, scale
from dumpcmp.nouns.outcome import Outcome

OP = "layers.1.mlp.down_proj"

SLOW = """
import sys, time
import torch
from dumpcmp import demo
from dumpcmp.dumping.capturing import capture
from dumpcmp.faults import Fault, on_output, planted, scale

model, (tokens,) = demo.build()
fault = Fault("scaled", "layers.1.mlp.down_proj", "linear", on_output(scale), step=1)
with planted(model, fault), capture(model, sys.argv[1]), torch.no_grad():
    for step in range(200):
        model(tokens)
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Golden of three tokens, and a target that is wrong from the second on."""
    room = tmp_path_factory.mktemp("watching")
    model, (tokens,) = demo.build()
    fault = Fault("scaled", OP, "linear", on_output(scale), step=1)
    with torch.no_grad():
        with capture(model, room / "golden"):
            for _ in range(3):
                model(tokens)
        with planted(model, fault), capture(model, room / "target"):
            for _ in range(3):
                model(tokens)
    return room


def test_it_stops_at_the_first_token_that_fails(room: Path) -> None:
    seen: list[int] = []

    def tell(steps: list[int], _: Outcome) -> None:
        seen.extend(steps)

    outcome = compare_by_steps(room / "golden", room / "target", stop_at_first=True, tell=tell)
    assert seen == [0, 1] and {row.key.step for row in outcome.rows} == {1}
    assert outcome.first_divergence and outcome.first_divergence.key.op == f"{OP}/linear"
    whole = compare_by_steps(room / "golden", room / "target")
    assert {row.key.step for row in whole.rows} == {0, 1, 2} and whole.exit_code == 1
    assert compare_by_steps(room / "golden", room / "golden", stop_at_first=True).passed


@pytest.mark.parametrize("option", ["--stop-at-first", "--follow"])
def test_the_command_needs_no_token_offset(option: str, room: Path, tmp_path: Path) -> None:
    paths = ["--golden-path", str(room / "golden"), "--my-path", str(room / "target")]
    ended = CliRunner().invoke(main, ["compare", *paths, option, "--output", str(tmp_path)])
    assert ended.exit_code == 1, ended.output
    assert f"{OP}/linear" in ended.output
    assert "token 0: SAME" in ended.output and f"token 1: WRONG at {OP}/linear" in ended.output


def other_tokens(path: Path, firsts: Sequence[int], wrong_at: int = 1000) -> Path:
    """A run whose steps are given tokens of their own, told by the first of them."""
    model, (tokens,) = demo.build()
    fault = Fault("scaled", OP, "linear", on_output(scale), step=wrong_at)
    with torch.no_grad(), planted(model, fault), capture(model, path):
        for first in firsts:
            model((tokens + first) % 64)
    return path


def test_a_warm_up_is_no_token_that_fails(tmp_path: Path) -> None:
    golden = other_tokens(tmp_path / "golden", (1, 2, 3))
    target = other_tokens(tmp_path / "target", (9, 1, 2, 3), wrong_at=2)  # golden's second
    seen: list[int] = []

    def tell(steps: list[int], _: Outcome) -> None:
        seen.extend(steps)

    outcome = compare_by_steps(golden, target, stop_at_first=True, tell=tell)
    assert seen == [0, 1] and {row.key.step for row in outcome.rows} == {1}
    assert outcome.first_divergence and outcome.first_divergence.key.op == f"{OP}/linear"


def test_how_a_run_counts_is_known_once_its_steps_tell(tmp_path: Path) -> None:
    golden = Archive(other_tokens(tmp_path / "golden", (1, 2, 3)))
    cases = {(9,): False, (9, 1): False, (9, 1, 2): True, (1,): True, (1, 9): True}
    for firsts, is_known in cases.items():
        target = Archive(other_tokens(tmp_path / str(firsts), firsts))
        assert is_count_settled(golden, target, None) is is_known, firsts
        assert is_count_settled(golden, target, 0), "it is stated"


def test_steps_of_a_run_that_has_ended_are_whole(room: Path) -> None:
    assert has_ended(room / "golden") and finished_steps(room / "golden") == [0, 1]
    assert not has_ended(room / "nothing") and finished_steps(room / "nothing") == []


def test_a_run_is_compared_while_it_goes_on(room: Path, tmp_path: Path) -> None:
    running = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path / "live")])
    try:
        outcome = compare_by_steps(
            room / "golden", tmp_path / "live", follow=True, stop_at_first=True
        )
        assert running.poll() is None, "it was to be compared while it ran"
    finally:
        running.kill()
        running.wait()
    assert outcome.first_divergence and outcome.first_divergence.key.op == f"{OP}/linear"
    assert {row.key.step for row in outcome.rows} == {1}
