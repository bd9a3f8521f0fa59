"""What run.json counts is there: where somebody has removed a token or a part, it is told."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import Conclusion, Outcome, audit, compact
from dumpcmp.archive.upload import upload
from dumpcmp.taps.distributed import ranks

TOKENS = 3


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


def dumped(path: Path, num_ranks: int = 1, **options: Any) -> Path:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)), torch.ones(64, 64)
    for rank in range(num_ranks):
        if num_ranks > 1:
            dumpcmp.set_rank(rank, num_ranks)
        with dumpcmp.capture(model, path, **options):
            for _ in range(TOKENS):
                model(x).sum().backward()
    return path


KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "gradients": {"backward": True, "weights": True},
    "summaries": {"keep": "summary"},
    "sampled": {"sample_rows": 4},
    "tokens": {"tokens": "0,2"},
    "every": {"every": 2},
    "layers": {"layers": ["2*"]},
    "aten": {"mode": "aten"},
    "modules": {"level": "modules"},
    "outputs": {"io": "output"},
    "ranks": {"num_ranks": 2},
    "compacting": {"keep": dumpcmp.Retention(compact=True)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_all_that_it_counts(kind: str, tmp_path: Path) -> None:
    golden, target = (dumped(tmp_path / name, **KINDS[kind]) for name in ("golden", "target"))
    for _ in range(2):
        found = audit(golden)
        assert found.sound, found.findings
        counted = [json.loads(run.read_text())["num_records"] for run in golden.glob("*/run.json")]
        assert found.num_records == sum(counted) > 0
        assert dumpcmp.compare(golden, target).conclusion is Conclusion.SAME
        compact(golden)


def test_so_has_one_in_a_store(tmp_path: Path) -> None:
    url = f"memory://counted/{tmp_path.name}"
    upload(path := dumped(tmp_path / "golden"), url)
    assert audit(url).sound
    assert dumpcmp.compare(path, url).conclusion is Conclusion.SAME


def last_token(path: Path) -> None:
    shutil.rmtree(path / "worldsize1_global_rank0" / "Sequential" / "2")


def first_token(path: Path) -> None:
    shutil.rmtree(path / "worldsize1_global_rank0" / "Sequential" / "0")


def a_part(path: Path) -> None:
    (path / "worldsize1_global_rank0" / "Sequential" / "1" / "part-0000.h5").unlink()


REMOVED: dict[Callable[[Path], None], tuple[int, str]] = {
    last_token: (2, "token 2 of Sequential is gone"),
    first_token: (0, "token 0 of Sequential is gone"),
    a_part: (1, "token 1 of Sequential: part 0 is gone"),
}


def lost_of(path: Path, remove: Callable[[Path], None]) -> str:
    """What is to be said of `path` once `remove` is done."""
    step, told = REMOVED[remove]
    lines = json.loads((path / "worldsize1_global_rank0" / "manifest.json").read_text())
    values = sum(sum(line[3].values()) for line in lines if line[1] == step)
    return f"{told}, with {values} values that the run wrote"


def said_of(outcome: Outcome, side: str) -> list[str]:
    return [said for said in outcome.missing if said.startswith(f"{side}: rank 0: token")]


@pytest.mark.parametrize("remove", REMOVED)
def test_what_is_gone_from_both_sides_is_missed(
    remove: Callable[[Path], None], tmp_path: Path
) -> None:
    golden, target = dumped(tmp_path / "golden"), dumped(tmp_path / "target")
    told = lost_of(golden, remove)
    for path in (golden, target):
        remove(path)
    outcome = dumpcmp.compare(golden, target)
    assert outcome.conclusion is Conclusion.UNKNOWN and outcome.exit_code == 2
    assert said_of(outcome, "golden") == [f"golden: rank 0: {told}"]
    assert said_of(outcome, "my side") == [f"my side: rank 0: {told}"]
    assert dumpcmp.compare(golden, target, partial=True).exit_code == 0
    found = audit(golden)
    assert not found.sound
    counts = [flaw for flaw in found.findings if flaw.stands and flaw.place.name == "run.json"]
    assert [flaw.problem for flaw in counts] == [told]


def test_each_rank_is_counted_by_itself(tmp_path: Path) -> None:
    golden, target = (dumped(tmp_path / name, num_ranks=2) for name in ("golden", "target"))
    for path in (golden, target):
        for rank in range(2):  # the same token of both, so that none has fewer than the other
            shutil.rmtree(path / f"worldsize2_global_rank{rank}" / "Sequential" / "2")
    outcome = dumpcmp.compare(golden, target)
    assert outcome.exit_code == 2
    assert all(f"golden: rank {rank}: token 2" in str(outcome.missing) for rank in (0, 1))


def test_a_repair_marks_the_run_as_not_whole(tmp_path: Path) -> None:
    golden, target = dumped(tmp_path / "golden"), dumped(tmp_path / "target")
    last_token(golden)
    assert audit(golden, repair=True).sound
    assert audit(golden).sound
    told = json.loads((golden / "worldsize1_global_rank0" / "run.json").read_text())
    assert told["complete"] is False and "token 2 of Sequential is gone" in told["problem"]
    last_token(target)
    assert dumpcmp.compare(golden, target).exit_code == 2


def test_tokens_that_are_not_compared_are_not_counted(tmp_path: Path) -> None:
    golden, target = dumped(tmp_path / "golden"), dumped(tmp_path / "target")
    assert dumpcmp.compare(golden, target, tokens="0").exit_code == 0
