"""How the names of other tools become ops, slots, steps and ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dumpcmp.archive.read.reader import Archive
from dumpcmp.importing import import_dump
from dumpcmp.importing.titles import Title, by_custom, by_pattern
from dumpcmp.nouns.errors import ArchiveError, SelectionError
from dumpcmp.nouns.record import Kept, Phase
from tests.importing.written import imported, msprobe

# A file's path, a name in it -> what the value is called.
NAMES = {
    ("layers.0.attn", ""): Title("layers.0.attn"),
    ("step3/rank1/layers.0.attn.output.1", ""): Title("layers.0.attn", "output.1", 3, 1),
    ("iter_000002/rank_7/attn_q", ""): Title("attn_q", step=2, rank=7),
    ("TP0_PP0_Rank3_pid77/Pass00012", "model.norm"): Title("model.norm", step=12, rank=3),
    ("worldsize8_global_rank5/token=4/x", ""): Title("x", step=4, rank=5),
    ("step1", "layers.0.mlp/linear#2.input.0"): Title("layers.0.mlp/linear", "input.0", 1, call=2),
    ("a", "block.inputs.mask"): Title("block", "input.mask"),
    ("a", "block.output"): Title("block", "output.0"),
    ("a", "block.grad_output.0"): Title("block", "grad_output.0"),
    ("a", "lm_head.param.weight"): Title("lm_head", "param.weight"),
    ("a", "layers.0.weight.grad"): Title("layers.0.weight.grad"),
    ("a", "output.0"): Title("<root>", "output.0"),
    ("a", "stepwise.rank2d"): Title("stepwise.rank2d"),
    ("a", "conv#3"): Title("conv", call=3),
}


@pytest.mark.parametrize("path, name", NAMES)
def test_names_are_read_as_most_tools_write_them(path: str, name: str) -> None:
    assert by_custom(path, name) == NAMES[path, name]


def test_a_pattern_reads_any_other(tmp_path: Path) -> None:
    read = by_pattern(r"(?P<order>\d+)__(?P<op>[\w.]+)-(?P<slot>output\.\d)-t(?P<step>\d+)")
    assert read("00012__layers.0-output.1-t5", "") == Title("layers.0", "output.1", 5, order=12)
    named = by_pattern(r"(?P<op>.+)\.(?P<slot>[A-Z]\w+\.\w+)")
    assert named("add_1.OUTPUT.Logits", "") == Title("add_1", "output.Logits")
    stamped = by_pattern(r"(?P<op>\w+)\.(?P<order>\d+)")
    stamp = 20_240_125_031_118_787_351
    assert stamped(f"mm.{stamp}", "") == Title("mm", "output.0", order=stamp)
    (tmp_path / "d").mkdir()
    for order, name in enumerate(("b", "c", "a")):
        np.save(tmp_path / "d" / f"{order}__{name}-output.0-t0.npy", np.ones(2))
    import_dump(tmp_path / "d", tmp_path / "out", pattern=r"(?P<order>\d+)__(?P<op>\w)-.*")
    calls = Archive(tmp_path / "out").calls_at("Model", 0).values()
    assert [call.op for call in sorted(calls, key=lambda call: call.order)] == ["b", "c", "a"]


@pytest.mark.parametrize("pattern, match", [
    ("(", "no regular expression"),
    ("(?P<step>.)", "has no group 'op'"),
    ("(?P<op>.)(?P<layer>.)", "has a group 'layer'"),
    ("(?P<op>z)", "does not fit 'ab'"),
    ("(?P<op>a)(?P<step>b)", "which is no such number"),
])  # fmt: skip
def test_patterns_that_do_not_fit_are_refused(pattern: str, match: str) -> None:
    with pytest.raises(SelectionError, match=match):
        by_pattern(pattern)("ab", "")


def test_numbers_that_are_too_large_are_refused() -> None:
    for digits in ("9" * 41, "9" * 5000):
        with pytest.raises(SelectionError, match="which is no such number"):
            by_pattern(r"(?P<op>a)(?P<order>\d+)")(f"a{digits}", "")
    assert by_pattern(r"(?P<op>a)(?P<step>\d+)")("a" + "0" * 5000 + "7", "").step == 7


def test_two_values_of_one_name_are_refused(tmp_path: Path) -> None:
    torch.save({"a.0": torch.ones(1), "a.1": torch.ones(1)}, tmp_path / "d.pt")
    with pytest.raises(ArchiveError, match=r"two values are called .*'a.0' of .*d.pt and 'a.1'"):
        import_dump(tmp_path / "d.pt", tmp_path / "out", pattern=r".*/(?P<op>a)\..")


def test_dumps_of_sglang(tmp_path: Path) -> None:
    root = tmp_path / "d" / "dump_1"
    root.mkdir(parents=True)
    told = {"dims": "b h[tp]", "sglang_parallel_info": {"tp_rank": 1, "tp_size": 2}}
    names = ("attn_out___layer_id=3", "attn_out___layer_id=3", "non_intrusive__norm.inputs.0",
             "param__lm_head.weight", "grad__attn_out___layer_id=3")  # fmt: skip
    for rank in range(2):
        told["sglang_parallel_info"] = {"tp_rank": rank, "tp_size": 2}
        for at, name in enumerate(names):
            file = f"step=0___rank={rank}___dump_index={12 - at}___name={name}.pt"
            torch.save({"value": torch.full((1, 4), float(at)), "meta": told}, root / file)
    archive = imported(tmp_path / "d")
    shards = archive.shards_at("Model", 0)
    assert {f"{key.op}#{key.call} {key.slot}" for key in shards} == {
        "layers.3.attn_out#0 output.0", "layers.3.attn_out#1 output.0", "norm#0 input.0",
        "lm_head#0 param.weight", "layers.3.attn_out#0 grad_output.0",
    }  # fmt: skip
    assert {tuple(r.layout for r in records) for records in shards.values()} == {
        ("b h[tp] @ tp:0/2", "b h[tp] @ tp:1/2")
    }
    seen = {
        key.call: archive.load(records[0]).bits.flat[0]
        for key, records in shards.items()
        if key.op == "layers.3.attn_out" and key.slot.is_output
    }
    assert seen == {0: 1.0, 1: 0.0}  # dump_index is the order


LINEAR = "Functional.linear.0.forward"
ATTN = "Module.layers.0.attn.Attention.forward.1"


def test_dumps_of_msprobe(tmp_path: Path) -> None:
    values = {
        f"{ATTN}!input.0": torch.ones(2),
        f"{LINEAR}!input.0": torch.ones(3),
        f"{LINEAR}!output.0": torch.ones(4),
        "Tensor.__add__.0.forward!output.0": torch.ones(5),
        f"{ATTN}!output.0": torch.ones(6),
        f"{ATTN}!parameters.weight": torch.ones(7),
        "Functional.linear.0.backward!input.0": torch.ones(8),
        "Functional.linear.0.backward!output.0": torch.ones(9),
        "Module.layers.0.attn.Attention.parameters_grad!weight": torch.ones(10),
    }
    place = msprobe(tmp_path / "d", values, {LINEAR: ATTN})
    archive = imported(tmp_path / "d")
    assert {f"{k.op}#{k.call} {k.slot}": r.shape[0] for k, r in archive.items()} == {
        "layers.0.attn#1 input.0": 2,
        "layers.0.attn@1/linear#0 input.0": 3,
        "layers.0.attn@1/linear#0 output.0": 4,
        "<root>/add#0 output.0": 5,
        "layers.0.attn#1 output.0": 6,
        "layers.0.attn#1 param.weight": 7,
        "layers.0.attn@1/linear#0 grad_output.0": 8,
        "layers.0.attn@1/linear#0 grad_input.0": 9,
        "layers.0.attn#0 grad.weight": 10,
    }
    calls = {str(call.op): call for call in archive.calls_at("Model", 0).values()}
    assert calls["layers.0.attn@1/linear"].target == "Functional.linear"
    assert calls["layers.0.attn@1/linear"].phase is Phase.FORWARD

    (place / "dump_tensor_data" / f"{LINEAR}.output.0.pt").unlink()  # msProbe kept a statistic
    import_dump(tmp_path / "d", tmp_path / "less")
    less = {f"{k.op} {k.slot}": r for k, r in Archive(tmp_path / "less").items()}
    lost = less["layers.0.attn@1/linear output.0"]
    assert (lost.kept, "Max 1.0" in lost.problem, len(less)) == (Kept.NOTHING, True, 9)

    (place / "dump.json").unlink()  # as where stop() was never called
    import_dump(tmp_path / "d", tmp_path / "named")
    assert len(Archive(tmp_path / "named")) == 8
    (place / "dump.json").write_text("{")
    with pytest.raises(ArchiveError, match="it is no JSON"):
        import_dump(tmp_path / "d", tmp_path / "broken")
