"""However a program is spread over ranks, it is the same; and no spreading hides a fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dumpcmp
from dumpcmp.shadows.proving import ProofAnswer
from tests.shadows.proved import prove
from tests.shadows.ranked import SOUND, WRONG, Whole, given
from tests.taps.distributed.launching import forked

# Fault -> the functions at which it may be named, on either side, and the ranks.
PLACES = {
    "eps": ({"layer_norm"}, {1}),
    "a bias on each rank": ({"linear", "all_reduce", "add"}, {0, 1}),
    "not summed": ({"linear", "add", "all_reduce"}, {0, 1}),
    "the same rows": ({"linear"}, {0}),
    "no norm": ({"layer_norm", "linear"}, {0}),
    "stale": ({"layer_norm"}, {1}),
}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranked")
    forked(2, "tests.shadows.ranked", str(path))
    model = Whole()
    with torch.no_grad(), dumpcmp.capture(model, path / "golden"):
        model(given())
    return path


@pytest.mark.parametrize("name", SOUND)
def test_a_program_spread_over_ranks_is_the_same(room: Path, name: str) -> None:
    proof = prove(room / "golden", room / name)
    assert proof.answer is ProofAnswer.SAME, str(proof)
    assert prove(room / name, room / "golden").answer is ProofAnswer.SAME


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_on_ranks_is_named_with_its_rank(room: Path, name: str) -> None:
    first = prove(room / "golden", room / name).first
    assert first is not None, name
    assert first.answer in (ProofAnswer.DIFFERENT_PROGRAM, ProofAnswer.DIFFERENT_START), str(first)
    functions, ranks = PLACES[name]
    is_weight = name == "stale" and first.slot == "param.weight"
    assert (is_weight or first.op.function in functions) and first.rank in ranks, str(first)
    assert prove(room / name, room / "golden").answer is not ProofAnswer.SAME


@pytest.mark.parametrize("name", SOUND)
def test_compare_says_so(room: Path, name: str) -> None:
    outcome = dumpcmp.compare(room / "golden", room / name)
    assert outcome.exit_code == 0, outcome.word


@pytest.mark.parametrize("name", WRONG)
def test_compare_finds_it(room: Path, name: str) -> None:
    first = (outcome := dumpcmp.compare(room / "golden", room / name)).first_divergence
    assert outcome.exit_code == 1 and first is not None, outcome.word
    functions = PLACES[name][0]
    is_told = any(f"{first.key.op.module}/{function}#" in first.reason for function in functions)
    is_near = first.key.op.function in functions or first.key.slot.is_weight or is_told
    assert is_near, outcome.word


def test_the_rank_is_told(room: Path) -> None:
    first = dumpcmp.compare(room / "golden", room / "eps").first_divergence
    assert first is not None and "rank 1" in first.reason
