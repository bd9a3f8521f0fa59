"""Partitioned runs against whole ones: no false alarm, and every fault at its op and rank."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.row import Row, Verdict
from tests.choosing_cases import long

LAYOUTS = """
mesh: tp=2
'**attn.qkv*':
  output.0: b s (q k v)[tp:interleaved]
  param.weight: (q k v)[tp:interleaved] i
  param.bias: (q k v)[tp:interleaved]
  grad.weight: (q k v)[tp:interleaved] i
  grad.bias: (q k v)[tp:interleaved]
'**mlp.gate_up*':
  output.0: b s (gate up)[tp:interleaved]
  param.weight: (gate up)[tp:interleaved] i
  grad.weight: (gate up)[tp:interleaved] i
'*attn.o/linear': {output.0: 'b s h[tp:partial]', input.0: 'b s h[tp]', input.1: 'o i[tp]'}
'*mlp.down/linear': {output.0: 'b s h[tp:partial]', input.0: 'b s h[tp]', input.1: 'o i[tp]'}
'layers.*.attn.o': {output.0: b s h, input.0: 'b s h[tp]', 'p*.weight': 'o i[tp]'}
'layers.*.mlp.down': {output.0: b s h, input.0: 'b s h[tp]', 'p*.weight': 'o i[tp]'}
"""

CLEAN = [
    ("golden-plain", "dtensor-2"),
    ("golden-plain", "fsdp-2"),
    ("golden-plain", "ddp-2"),
    ("golden-plain", "by hand-2"),
    ("golden-plain", "pipeline-2"),
    ("golden-plain", "interleaved-2"),
    ("golden-plain", "copying-2"),
    ("golden-fused", "megatron-2"),
    ("golden-fused", "annotated-2"),
    ("golden-dropout", "dropout-2"),
    ("golden-one", "sequence-2"),
    ("golden-experts", "experts-2"),
    ("golden-plain", "fsdp-tp-4"),
    ("fsdp-2", "ddp-2"),
]
LONG = [
    ("megatron-2", "megatron-4"),
    ("golden-plain", "dtensor-4"),
    ("golden-fused", "megatron-4"),
    ("dtensor-2", "dtensor-4"),
    ("fsdp-2", "fsdp-tp-4"),
    ("golden-fused", "megatron-8"),
]
CLEAN_AT_LENGTH = [pytest.param(*names, marks=pytest.mark.long) for names in LONG]


@pytest.fixture
def found(goldens: Path, partitioned: Callable[[str], Path]) -> Callable[[str], Path]:
    """Where a run is, by its name."""
    return lambda name: goldens / name if name.startswith("golden-") else partitioned(name)


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, str], Outcome]:
    """Comparisons that were made."""
    return {}


@pytest.fixture
def compared(found: Any, known: dict[tuple[str, str], Outcome]) -> Any:
    """The comparison of two runs by their names, made once for all tests that look at it."""

    def get(golden: str, target: str) -> Outcome:
        if (golden, target) not in known:
            known[golden, target] = compare(found(golden), found(target))
        return known[golden, target]

    return get


def _by_place(outcome: Outcome) -> dict[tuple[str, str], Row]:
    """The rows by op and slot."""
    return {(row.key.op, row.key.slot): row for row in outcome.rows}


def _paired(outcome: Outcome) -> float:
    return sum(row.paired_by != "" for row in outcome.rows) / len(outcome.rows)


@pytest.mark.parametrize("golden, target", [*CLEAN, *CLEAN_AT_LENGTH])
def test_a_right_partitioned_run_raises_no_alarm(compared: Any, golden: Any, target: Any) -> None:
    outcome = compared(golden, target)
    odd = [row for row in outcome.rows if row.verdict is not Verdict.PASS]
    assert not [row for row in odd if row.verdict.fails]
    assert all(row.judgement.reason for row in odd) and len(odd) <= 0.02 * len(outcome.rows)
    assert _paired(outcome) >= 0.95 and outcome.exit_code == 0 and not outcome.roots


OTHERWISE = [("golden-plain", "exported-2", 0.8), ("golden-long", "context-2", 0.95)]


@pytest.mark.parametrize("golden, target, share", OTHERWISE)
def test_a_run_that_computes_in_another_way_raises_no_alarm(
    found: Any, golden: Any, target: Any, share: Any
) -> None:
    """Stages are traced by torch.export; keys are gathered and put in order by ops of their own."""
    outcome = compare(found(golden), found(target))
    assert outcome.exit_code == 0 and not outcome.roots
    held = {row.golden_key: row.verdict is Verdict.PASS for row in outcome.rows if row.golden_key}
    assert sum(held.values()) >= share * len(held)


def test_terms_of_gradients_are_covered_by_the_weights_that_their_sum_gave(found: Any) -> None:
    """The last step's, too: they are added up as those of the step before."""
    outcome = compare(found("golden-bucketed"), found("bucketed-2"))
    terms = [row for row in outcome.rows if row.key.slot.is_parameter_gradient]
    assert outcome.exit_code == 0 and {row.key.step for row in terms} == {0, 1}
    assert all(row.verdict is Verdict.COVERED for row in terms)
    assert all("@after/all_reduce#0 adds them up to 2 times golden" in row.reason for row in terms)


def test_terms_of_gradients_are_covered_by_the_gradient_that_they_are_added_to(found: Any) -> None:
    outcome = compare(found("golden-summed up"), found("summed up-2"))
    terms = {row.key.step: row.verdict for row in outcome.rows if row.key.slot == "grad.weight"}
    assert outcome.exit_code == 0 and terms == {0: Verdict.COVERED, 1: Verdict.PASS}


@pytest.mark.parametrize("fault", ["bucket not averaged", "bucket not added up"])
def test_terms_of_gradients_are_covered_by_no_weights_that_differ(found: Any, fault: Any) -> None:
    outcome = compare(found("golden-bucketed"), found(f"{fault}-2"))
    terms = [row for row in outcome.rows if row.key.slot.is_parameter_gradient]
    assert outcome.exit_code == 1
    assert not any(row.verdict in (Verdict.PASS, Verdict.COVERED) for row in terms)


def test_nothing_passes_unseen(compared: Any, found: Any) -> None:
    """Every row that passes was measured on all elements of the whole value."""
    outcome = compared("golden-fused", "megatron-2")
    golden = Archive(found("golden-fused"))
    for row in outcome.rows:
        if row.key.op.is_effect and row.verdict is Verdict.SKIPPED:
            continue  # of the end of a run, which is recorded of one rank alone
        assert row.metrics is not None and row.metrics.exact
        if row.paired_by == "key" and row.golden_key:
            shape = golden[row.golden_key].shape
            count = 1
            for size in shape:
                count *= size
            assert row.metrics.count == count


def test_solved_layouts_are_said_to_be_solved(compared: Any) -> None:
    outcome = compared("golden-fused", "megatron-2")
    said = {where: row.layout for where, row in _by_place(outcome).items()}
    assert "solved" in said["layers.0.attn.qkv", "output.0"]
    assert "[ranks:interleaved]" in said["layers.0.attn.qkv", "param.weight"]
    assert "[ranks:partial]" in said["layers.0.mlp.down/linear", "output.0"]


def test_dtensor_layouts_are_recorded_and_not_solved(compared: Any, found: Any) -> None:
    outcome = compared("golden-plain", "fsdp-tp-4")
    rows = _by_place(outcome)
    for op in ("embed", "layers.0.attn.q", "layers.0.mlp.up"):
        assert rows[op, "grad.weight"].layout == "layout 'd0[tp,dp] d1'"
    key = rows["head", "grad.weight"].target_key
    assert key is not None
    records = Archive(found("fsdp-tp-4")).shards(key)
    assert sorted(record.shape[0] for record in records) == [16, 16, 16, 17]  # 65 over four


def test_collectives_are_named_by_the_axis_of_the_mesh_that_they_run_over(found: Any) -> None:
    archive = Archive(found("fsdp-tp-4"))
    said = [c.arguments for c in archive.calls_of(0).values() if '"group"' in c.arguments]
    assert any('"axis":"tp"' in words for words in said)
    assert any('"axis":"dp"' in words for words in said)


def test_a_bucket_of_gradients_is_recorded_as_it_was_in_its_own_step(found: Any) -> None:
    """Torch waits for it where Python sees nothing, and uses its memory again in the next step."""
    archive = Archive(found("ddp steps-2"))
    given = [key for key in archive if "all_reduce" in key.op and key.slot == "input.0"]
    assert [key.step for key in given] == [0, 1, 2]
    for key in given:
        terms = [archive.tensor(record) for record in archive.shards(key)]
        got = [archive.tensor(record) for record in archive.shards(key.site.key("output.0"))]
        assert len(got) == 2 and all(torch.equal(one, terms[0] + terms[1]) for one in got)


def test_gradients_of_ranks_are_held_against_the_backward_pass_of_their_op(compared: Any) -> None:
    outcome = compared("golden-plain", "dtensor-2")
    gradients = [row for row in outcome.rows if row.key.slot.is_gradient]
    known = [row for row in gradients if row.replay is not None and row.replay.is_known]
    assert len(known) >= 0.9 * len(gradients)


def test_layouts_can_be_declared_in_a_file(found: Any, tmp_path: Path) -> None:
    path = tmp_path / "layouts.yaml"
    path.write_text(LAYOUTS)
    outcome = compare(found("golden-fused"), found("megatron-2"), layouts=str(path))
    assert outcome.exit_code == 0 and not [r for r in outcome.rows if r.verdict.fails]
    weight = _by_place(outcome)["layers.0.attn.qkv", "param.weight"]
    assert weight.layout == "layout '(q k v)[tp:interleaved] i'"


WRONG = [
    ("layers.0.attn.qkv output.0=b s h[tp]", Verdict.FAIL),
    ("layers.0.attn.qkv output.0=b s[tp] h", Verdict.SHAPE),
    ("layers.0.attn.qkv output.0=b h[tp]", Verdict.ERROR),
    ("layers.0.attn.qkv output.0=b s h", Verdict.SHAPE),
]


@pytest.mark.parametrize("layout, verdict", WRONG)
def test_a_wrong_layout_does_not_pass_and_is_corrected_without_a_new_dump(
    found: Any, layout: Any, verdict: Any
) -> None:
    def verdicts(*layouts: str) -> set[Verdict]:
        sides, op = (found("golden-fused"), found("megatron-2")), "layers.0.attn.qkv"
        outcome = compare(*sides, layouts=layouts, layers=op)
        rows = [row for row in outcome.rows if (row.key.op, row.key.slot) == (op, "output.0")]
        return {row.verdict for row in rows}

    assert verdicts(layout) == {verdict}
    right = "layers.0.attn.qkv output.0=b s (q k v)[tp:interleaved]"
    assert verdicts(layout, right) == {Verdict.PASS}


def test_a_layout_without_a_slot_is_that_of_the_outputs(found: Any) -> None:
    """What comes into a row-parallel layer is sharded, whatever its output is."""
    lines = ["layers.*.attn.o=b s h", "layers.*.attn.qkv=b s (q k v)[tp:interleaved]"]
    outcome = compare(found("golden-fused"), found("megatron-2"), layouts=lines)
    assert not [row for row in outcome.rows if row.verdict.fails and not row.key.slot.is_gradient]
    rows = _by_place(outcome)
    assert rows["layers.0.attn.o", "output.0"].layout.startswith("layout ")
    assert rows["layers.0.attn.o", "input.0"].layout.startswith("layout solved")


# Fault -> golden, where it began, and what is said about it. Ranks 0 and 1; rank 1 is faulty.
NAMED = [
    ("swapped shards", "fused", "layers.1.attn.qkv", "rank 0 holds the shard of rank 1"),
    ("forgotten all_reduce", "fused", "layers.1.attn.o", "REPLICA: the ranks hold partial terms"),
    ("all_reduce twice", "fused", "layers.1.attn.o/all_reduce", "2 times golden"),
    ("bias on every rank", "fused", "layers.1.attn.o/linear", ""),
    ("stale weights", "fused", "layers.1.attn.o", "wrong: rank 1"),
    ("gradients not summed", "fused", "layers.1.norm1/layer_norm", "off the op in float64"),
    (
        "different dropout seeds",
        "dropout",
        "layers.0.dropout/dropout",
        "REPLICA: rank 1 differs from rank 0",
    ),
    ("wrong sequence offset", "one", "<root>", "rank 1 holds the shard of rank 0"),
    ("gradients not averaged", "plain", "", "2 times golden"),  # in every parameter alike
    ("router differs on one rank", "experts", "layers.1.mlp.router", "REPLICA: rank 1 differs"),
    ("order", "plain", "<root>", "microbatch 0 on rank 0 holds the shard of microbatch 1"),
    ("unscaled", "plain", "", "2 times golden"),
    ("activation", "plain", "layers.1.mlp/gelu", "wrong: rank 1"),
    (
        "a copy that changes numbers",
        "plain",
        "<root>/mul",
        "only the target on rank 1 has it",
    ),
    ("offset", "long", "layers.1.attn/sub", "only the target on rank 1 has it"),
]


# What each of them is told by, another tells as well.
AT_LENGTH = (
    "all_reduce twice",
    "wrong sequence offset",
    "router differs on one rank",
    "unscaled",
    "activation",
    "offset",
)


@pytest.mark.parametrize(
    "fault, golden, op, said",
    [pytest.param(*one, marks=[pytest.mark.long] * (one[0] in AT_LENGTH)) for one in NAMED],
)
def test_a_planted_fault_is_named_at_its_op_and_rank(
    found: Any, fault: Any, golden: Any, op: Any, said: Any
) -> None:
    outcome = compare(found(f"golden-{golden}"), found(f"{fault}-2"))
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None
    assert first.key.op == op or (not op and first.key.slot.is_gradient)
    assert said in first.judgement.reason


DECLARED = ["layers.*.attn.o output.0=b s h", "*.attn.o/linear output.0=b s h[tp:partial]"]
BY_DECLARATION = [
    ("forgotten all_reduce", "layers.1.attn.o", "the sum over the ranks is golden's value"),
    long("bias on every rank", "layers.1.attn.o/linear", "off the op in float64"),
]


@pytest.mark.parametrize("fault, op, said", BY_DECLARATION)
def test_with_declared_layouts_the_fault_is_where_they_do_not_hold(
    found: Any, fault: Any, op: Any, said: Any
) -> None:
    outcome = compare(found("golden-fused"), found(f"{fault}-2"), layouts=DECLARED)
    first = outcome.first_divergence
    assert first is not None and first.key.op == op and said in first.judgement.reason


def test_a_rank_that_is_missing_is_named_and_the_rest_is_compared(
    found: Any, tmp_path: Path
) -> None:
    shutil.copytree(found("megatron-4"), tmp_path / "d")
    shutil.rmtree(tmp_path / "d" / "worldsize4_global_rank2")
    outcome = compare(found("golden-fused"), tmp_path / "d")
    assert any("rank 2 is missing" in remark for remark in outcome.remarks)
    rows = _by_place(outcome)
    assert rows["layers.0.attn.o", "output.0"].verdict is Verdict.PASS  # replicas
    sharded = rows["layers.0.attn.qkv", "output.0"]
    assert sharded.verdict is Verdict.INCONCLUSIVE and "2" in sharded.judgement.reason
    assert not [row for row in outcome.rows if row.verdict is Verdict.FAIL]


def test_every_collective_is_recorded_with_its_group_and_gives_what_it_should(found: Any) -> None:
    path = found("letters-2")
    archive = Archive(path)
    names = [name[2].rpartition("/")[2] for name in archive.calls_of(0)]
    for name in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]:
        assert name in names
    assert any(name[2].endswith("/recv") for name in archive.calls_of(1))
    groups = [c.arguments for c in archive.calls_of(0).values() if "group" in c.arguments]
    assert groups and all('"group":[0,1]' in arguments for arguments in groups)
    outcome = compare(path, path)
    moved = [row for row in outcome.rows if row.paired_by == "collective"]
    assert len(moved) >= 20
    assert {row.verdict for row in moved} == {Verdict.PASS}


def test_no_value_of_a_partitioned_run_is_lost(found: Any) -> None:
    for name in ("dtensor-2", "fsdp-2", "ddp-2", "pipeline-2", "megatron-2"):
        archive = Archive(found(name))
        assert archive.complete and archive.ranks == (0, 1)
        assert all(r.kept is Kept.FULL for key in archive for r in archive.shards(key))
