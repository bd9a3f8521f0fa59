"""Laws of summaries taken on two ranks: right runs raise no alarm, and faults are found."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from tests.choosing_cases import asked_for, often
from tests.taps.distributed.launching import forked

Compared = Callable[[str, str], Outcome]

RIGHT = {"dtensor": "plain", "fsdp": "plain", "ddp": "plain", "megatron": "fused"}
FAULTY = {
    "forgotten all_reduce": "layers.1",
    "bias on every rank": "layers.1.attn.o",
    "swapped shards": "layers.1.attn",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    names = asked_for(request.session.items, (*RIGHT, *FAULTY))
    forked(2, "tests.compacting.programs.summarised", str(path), *names)
    return path


@pytest.fixture
def compared(goldens: Path, runs: Path) -> Compared:
    """Holds a run on two ranks against a golden."""
    return lambda name, golden: dumpcmp.compare(goldens / f"golden-{golden}", runs / name)


@pytest.mark.parametrize("name", often(RIGHT, "fsdp", "megatron"))
def test_a_right_run_raises_no_alarm_and_says_what_it_cannot_tell(
    compared: Compared, name: str
) -> None:
    outcome = compared(name, RIGHT[name])
    of_ends = [row for row in outcome.rows if row.key.op.is_effect]
    assert {row.verdict for row in of_ends} <= {Verdict.SKIPPED}  # recorded of one rank alone
    found = Counter(row.verdict for row in outcome.rows if row not in of_ends)
    assert set(found) <= {Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.COVERED, Verdict.DEAD}
    assert found[Verdict.PASS] > 3 * found[Verdict.INCONCLUSIVE]
    unsure = [r.judgement.reason for r in outcome.rows if r.verdict is Verdict.INCONCLUSIVE]
    assert unsure and all("--keep-full '" in reason for reason in unsure)


@pytest.mark.parametrize("name", often(FAULTY, "forgotten all_reduce", "swapped shards"))
def test_a_fault_is_found_near_its_op(compared: Compared, name: str) -> None:
    first = compared(name, "fused").first_divergence
    assert first is not None and first.key.op.startswith(FAULTY[name])
