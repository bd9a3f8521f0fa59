"""Whole graphs: exported programs of real models, resumed runs, and the commands."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dumpcmp.cli import main
from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning import PartitionError, register_annotation, verify_graph
from dumpcmp.partitioning.findings import COLUMNS
from tests.partitioning.models import exported


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("graphs") / "resnet.pt2"
    torch.export.save(exported("resnet"), path)
    return path


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("bert", "gpt2")]


@pytest.mark.parametrize("name", ["demo", "llama", *LONG])
def test_models_are_annotated_and_none_of_their_partitions_fails(name: Any, tmp_path: Path) -> None:
    if name != "demo":
        pytest.importorskip("transformers")
    found = verify_graph(exported(name), tmp_path)
    assert [str(row) for row in found.rows if row.verdict.fails] == []
    assert found.num_annotated >= 0.9 * found.num_compute
    assert found.tally[Verdict.PASS] > found.num_compute / 4
    assert found.exit_code == 0


def test_a_conv_net_in_training_passes_and_is_written_down(resnet: Any, tmp_path: Path) -> None:
    seen = []
    found = verify_graph(resnet, tmp_path, progress=lambda *step: seen.append(step[:2]))
    assert {row.verdict for row in found.rows} == {Verdict.PASS}
    assert found.num_annotated == found.num_compute == 28
    assert seen == [(i + 1, len(seen)) for i in range(len(seen))]
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(found.rows)
    assert rows[0]["source"].startswith("models.py:")
    names = " ".join(row["node"] for row in rows if not row["idx"]).split()
    assert sorted(names) == sorted(set(names))  # every node is in just one op
    assert (tmp_path / "summary.txt").read_text().startswith("SKIPPED 0 of 28 nodes")


def test_columns_are_as_documented() -> None:
    assert ",".join(COLUMNS) == (
        "node,op,annotation,idx,dim,num,rule,verdict,loss_single,loss_multi,max_abs_diff,"
        "max_rel_err,rmse_reference,rmse_single,rmse_partitioned,worst_slot,reason,source,seconds"
    )


class Odd(nn.Module):
    """Has an op that no table knows, a random one, and one that is in order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.linalg.inv(nn.functional.dropout(x, 0.5, True) + 9 * torch.eye(4))
        return out


def test_what_is_not_known_is_skipped_and_what_is_random_is_inconclusive(tmp_path: Path) -> None:
    found = verify_graph(torch.export.export(Odd(), (torch.randn(4, 4),)), tmp_path)
    by_op = {row.op: row.verdict for row in found.rows}
    assert by_op["aten.linalg_inv_ex.default" if "aten.linalg_inv_ex.default" in by_op else
                 "aten.linalg_inv.default"] is Verdict.SKIPPED  # fmt: skip
    assert by_op["aten.dropout.default"] is Verdict.INCONCLUSIVE
    assert by_op["aten.add.Tensor"] is Verdict.PASS
    assert "no annotation" in (tmp_path / "summary.txt").read_text().split("annotated")[0]


def test_a_second_run_skips_what_passed(resnet: Any, tmp_path: Path) -> None:
    first = verify_graph(resnet, tmp_path)
    memory = tmp_path / "verified.jsonl"
    lines = memory.read_text().splitlines()
    again = verify_graph(resnet, tmp_path)
    assert (first.num_remembered, again.num_remembered) == (0, len(lines))
    assert again.to_csv() == first.to_csv()
    assert memory.read_text().splitlines() == lines
    memory.write_text("\n".join(lines[1:]) + "\n" + lines[0][:40])  # as if killed while writing
    third = verify_graph(resnet, tmp_path)
    assert third.num_remembered == len(lines) - 1
    assert [row.verdict for row in third.rows] == [row.verdict for row in first.rows]
    assert verify_graph(resnet, tmp_path, seed=1).num_remembered == 0
    assert all(
        json.loads(line)["rows"] for line in memory.read_text().splitlines()[: len(lines) - 1]
    )


def test_what_passed_under_another_annotation_is_run_again(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.special.i0(x)
            return out

    program = torch.export.export(Scaled(), (torch.randn(4, 6),))
    (op,) = {row.op for row in verify_graph(program, tmp_path).rows}  # no annotation: skipped
    for anno, num in (("a^ b -> a^ b", 1), ("a b -> a b", 2), ("a b -> a b", 2)):
        register_annotation(op, anno)
        found = verify_graph(program, tmp_path)
        assert sum(row.idx is not None for row in found.rows) == num
    assert found.num_remembered == 1


def test_jobs_find_the_same(resnet: Any, tmp_path: Path) -> None:
    one, two = (verify_graph(resnet, tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert [(row.node, row.rule, row.verdict) for row in one.rows] == [
        (row.node, row.rule, row.verdict) for row in two.rows
    ]


def test_what_is_no_graph_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with pytest.raises(PartitionError, match="no file"):
        verify_graph(path, tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(PartitionError, match="is not a program"):
        verify_graph(path, tmp_path)


HEAD = "from dumpcmp.partitioning import *\n"
RELU = "PartitionConfig('torch.relu', [TensorInfo('shape', (4, 6))], parti_options=[{}])\n"
FILES = [
    ("ok", HEAD + "good = " + RELU.format("{'idx': 0, 'dim': 1}"), 0, "PASS torch.relu"),
    ("called", HEAD + "c = " + RELU.format("{'idx': 0, 'dim': 1}")
     + "assert verify_partition_options(c)\n", 0, "partitions: 1 tried: 1 PASS"),
    ("refused", HEAD + "bad = [" + RELU.strip().format("{'idx': 0, 'dim': 3}") + "]\n", 1,
     "no dim 3"),
    ("wrong", HEAD + "c = PartitionConfig('torch.softmax', [TensorInfo('shape', (4, 6))],"
     " {'dim': 0}, parti_options=[{'idx': 0, 'dim': 0}], anno='a b -> a b')\n", 1,
     "off the float64 run"),
    ("random", HEAD + "c = PartitionConfig('torch.bernoulli', [TensorInfo('shape', (40, 6))],"
     " {'p': 0.5})\n", 2, "random"),
    ("empty", HEAD, 2, "holds no PartitionConfig"),
]  # fmt: skip


@pytest.mark.parametrize("name, text, code, word", FILES, ids=[name for name, *_ in FILES])
def test_verify_op_runs_a_file_and_exits_with_its_verdict(
    name: Any, text: Any, code: Any, word: Any, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    told = CliRunner().invoke(main, ["verify-op", str(file), "-o", str(tmp_path / "out.csv")])
    assert told.exit_code == code, told.output
    assert word in told.output
    assert name == "empty" or (tmp_path / "out.csv").read_text().startswith("node,op,")


def test_verify_graph_shows_what_it_skipped_first(resnet: Any, tmp_path: Path) -> None:
    told = CliRunner().invoke(
        main, ["verify-graph", "--graph", str(resnet), "--outdir", str(tmp_path)]
    )
    assert told.exit_code == 0, told.output
    assert told.output.startswith("SKIPPED 0 of 28 nodes")
    assert "results.csv" in told.output
