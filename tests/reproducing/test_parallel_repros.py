"""A repro of what ranks compute together fails under torchrun, and passes with the right op."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dumpcmp
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.reproducing.case import GuiltyKind, ShownBy
from dumpcmp.reproducing.parallel_case import ParallelCase, flat
from dumpcmp.reproducing.parallel_region import CollectiveStatement, RanksCode, join_of
from dumpcmp.reproducing.region import CodeRegion
from tests.shadows import test_ranks

room = test_ranks.room  # runs on two ranks, with faults

WHOLE = torch.arange(48.0).reshape(4, 12)
PARTS: dict[str, tuple[str, list[Tensor]]] = {
    "replicas": ("the same on 2 ranks", [WHOLE, WHOLE]),
    "shards of rows": ("layout 'd0[tp] d1'", [WHOLE[:2], WHOLE[2:]]),
    "shards of columns": ("layout solved 'd0 d1[ranks]'", [WHOLE[:, :6], WHOLE[:, 6:]]),
    "terms": ("layout 'd0 d1[ranks:partial]'", [WHOLE * 0.25, WHOLE * 0.75]),
    "shards of a merged dim": (
        "layout 'd0 (q k v)[tp:interleaved]'",
        [
            torch.cat([WHOLE[:, 4 * i + 2 * rank : 4 * i + 2 * rank + 2] for i in range(3)], 1)
            for rank in (0, 1)
        ],
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_joining_undoes_sharding_and_the_code_says_the_same(name: str, tmp_path: Path) -> None:
    note, parts = PARTS[name]
    join = join_of(note)
    assert join is not None
    whole = torch.stack([WHOLE, WHOLE]) if join.is_of_replicas else WHOLE
    assert torch.equal(join.of(parts), whole)
    script = tmp_path / "script.py"
    script.write_text(f"import torch\n\n\ndef joined(parts):\n    return {join.code}\n")
    assert torch.equal(runpy.run_path(str(script))["joined"](parts), whole)


@pytest.mark.parametrize("note", ["layout 'd0[tp:cyclic] d1'", "layout 'd0[tp] d1[dp]'", ""])
def test_other_layouts_have_no_join(note: str) -> None:
    assert join_of(note) is None


def all_reduce(op: str, group: tuple[int, ...] = (0, 1)) -> CollectiveStatement:
    words = {"args": [], "kwargs": {"op": op, "group": list(group)}}
    call = Call("M", 0, Op("layer/all_reduce"), 0, 0, "torch.distributed.all_reduce",
                arguments=json.dumps(words))  # fmt: skip
    return CollectiveStatement(call, {"input.0": "x0"}, {"output.0": "v1"}, {"output.0": (4, 12)})


@pytest.mark.parametrize(("op", "right"), [("sum", 3 * WHOLE), ("avg", 1.5 * WHOLE)])
def test_ranks_meet_in_a_collective(op: str, right: Tensor) -> None:
    code = RanksCode({rank: CodeRegion([all_reduce(op)], {}, "v1") for rank in (0, 1)})
    found = code.run_on_ranks({0: {"x0": WHOLE}, 1: {"x0": 2 * WHOLE}})
    assert all(torch.equal(found[rank], right.double()) for rank in (0, 1))
    assert f"dist.ReduceOp.{op.upper()}" in code.lines[1]


def test_a_rank_that_lacks_its_collective_is_told() -> None:
    regions = {0: CodeRegion([all_reduce("sum")], {}, "v1"), 1: CodeRegion([], {}, "x0")}
    with pytest.raises(dumpcmp.DumpcmpError, match="the ranks wait for each other"):
        RanksCode(regions).run_on_ranks({0: {"x0": WHOLE}, 1: {"x0": WHOLE}})


def test_values_that_all_ranks_have_are_stored_once() -> None:
    made = flat({0: {"x0": WHOLE, "x1": WHOLE}, 1: {"x0": WHOLE, "x1": WHOLE + 1}})
    assert set(made) == {"x0", "0.x1", "1.x1"}


def ends(made: dumpcmp.Repro, *arguments: str) -> tuple[int, str]:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-I", *words, str(made.path / "repro.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.long
def test_a_script_for_torchrun_fails_and_passes(room: Path, tmp_path: Path) -> None:
    made = dumpcmp.repro(room / "a bias on each rank", room / "golden", path=tmp_path / "repro")
    assert isinstance(made.case, ParallelCase)
    assert (made.case.kind, made.case.num_ranks) == (GuiltyKind.PARALLEL, 2)
    assert made.case.shown is ShownBy.FRESH
    assert made.command == f"torchrun --nproc-per-node 2 {made.path / 'repro.py'}"
    status, said = ends(made)
    assert (status, "AssertionError" in said) == (1, True), said
    assert ends(made, "--right")[0] == 0
    assert "torchrun" in (made.path / "README.md").read_text()
