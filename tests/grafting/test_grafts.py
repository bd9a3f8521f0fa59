"""Roots put right on archives and in a run: each by itself, and what is left."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import dumpcmp
from benchmarks import grafted_layers, quantised
from dumpcmp.cli import main
from dumpcmp.dumping.programs import dump
from dumpcmp.grafting.measuring_roots import EXACT
from dumpcmp.grafting.running_again import _check_no_term, _part_like
from dumpcmp.nouns.key import Op, Slot
from tests.grafting.models import (
    Change,
    dumped,
    left_out,
    other_function,
    other_weight,
    program,
    wrong_kernel,
)

SEVERAL: dict[str, tuple[tuple[Change, ...], set[str]]] = {
    "two kernels": (
        (wrong_kernel("layers.0.down"), wrong_kernel("layers.2.up")),
        {"layers.0.down", "layers.2.up"},
    ),
    "kernel, function, weight": (
        (wrong_kernel("layers.2.down"), other_function(0), other_weight(1)),
        {"layers.2.down", "layers.0", "layers.1.up.weight"},
    ),
    "left out beside another function": (
        (left_out(0), other_function(1)),
        {"layers.0", "layers.1"},
    ),
}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("golden") / "d1")


@pytest.mark.parametrize("name", SEVERAL)
def test_each_of_several_faults_is_named_and_nothing_is_left(
    name: str, golden: Path, tmp_path: Path
) -> None:
    changes, wanted = SEVERAL[name]
    found = dumpcmp.graft_all(dumped(tmp_path / "d2", *changes), golden)
    assert found.exit_code == 1
    for step in found.steps:
        named = {root.op.module if "/" in root.op else str(root.op) for root in step.roots}
        assert named == wanted
        assert step.left <= EXACT < step.total
        assert step.is_explained
        assert all(root.alone > EXACT for root in step.roots)
        assert sum(root.gone for root in step.roots) > 0.5
        assert math.isfinite(step.total)


def test_where_nothing_differs_there_is_nothing_to_put_right(golden: Path, tmp_path: Path) -> None:
    found = dumpcmp.graft_all(dumped(tmp_path / "d2"), golden)
    assert (found.exit_code, found.roots) == (0, [])


def test_the_larger_of_two_faults_has_the_larger_share(golden: Path, tmp_path: Path) -> None:
    mine = dumped(tmp_path / "d2", wrong_kernel("layers.0.down"), left_out(2))
    for step in dumpcmp.graft_all(mine, golden).steps:
        assert [root.op.module for root in step.roots] == ["layers.2", "layers.0.down"]
        assert step.roots[0].gone > 0.8


def test_gradients_are_effects_too(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "d1", trains=True, num_layers=1)
    faults = wrong_kernel("layers.0.up"), other_function(0)
    mine = dumped(tmp_path / "d2", *faults, trains=True, num_layers=1)
    first = dumpcmp.graft_all(mine, golden).steps[0]
    assert first.num_effects > 8
    assert first.left <= EXACT
    assert {"layers.0.up", "layers.0"} <= {root.op.module for root in first.roots}


def test_part_of_a_run_is_refused(golden: Path, tmp_path: Path) -> None:
    dump(program(left_out(0)), tmp_path / "d2", layers="layers.0*")
    with pytest.raises(dumpcmp.DumpcmpError, match="only some of the run's values"):
        dumpcmp.graft_all(tmp_path / "d2", golden)


# a program that runs again


@pytest.mark.parametrize("mode", ["eager", "aten", pytest.param("fx", marks=pytest.mark.long)])
def test_with_goldens_value_in_place_the_rest_is_goldens(
    mode: str, golden: Path, tmp_path: Path
) -> None:
    fault = wrong_kernel("layers.1.down")
    again = dumpcmp.graft(
        program(fault), golden, "layers.1.down/linear", path=tmp_path / "d3", mode=mode
    )
    assert len(again.done) == 2
    archives = dumpcmp.Archive(golden), dumpcmp.Archive(tmp_path / "d3")
    for step in (0, 1):
        one, other = (each.tensor("<root>", step=step) for each in archives)
        assert torch.equal(one, other)
    outcome = dumpcmp.compare(golden, tmp_path / "d3")
    assert outcome.exit_code == 0, outcome.headline


@pytest.mark.parametrize("at", ["layers.0.down/linear", "layers.0.down", "layers.0"])
def test_another_fault_is_then_the_first(at: str, golden: Path, tmp_path: Path) -> None:
    faults = wrong_kernel("layers.0.down"), wrong_kernel("layers.2.up")
    dumpcmp.graft(program(*faults), golden, at, path=tmp_path / "d3")
    first = dumpcmp.compare(golden, tmp_path / "d3").first_divergence
    assert first is not None
    assert first.key.op == "layers.2.up/linear"


def test_what_a_replaced_module_calls_is_not_on_record(golden: Path, tmp_path: Path) -> None:
    run = program(wrong_kernel("layers.0.down"))
    dumpcmp.graft(run, golden, "layers.0", path=tmp_path / "d3", steps="0")
    archive = dumpcmp.Archive(tmp_path / "d3")
    inside = {key.step for key in archive if key.op == "layers.0.down/linear"}
    assert inside == {1}  # where it counts


def test_only_rows_and_tokens_that_are_asked_for_are_replaced(golden: Path, tmp_path: Path) -> None:
    run = program(wrong_kernel("layers.1.down"))
    dumpcmp.graft(
        run, golden, "layers.1.down/linear", path=tmp_path / "d3", rows="1", steps="1"
    )  # fmt: skip
    ours, theirs = dumpcmp.Archive(golden), dumpcmp.Archive(tmp_path / "d3")
    for step, row, is_same in ((0, 0, False), (0, 1, False), (1, 0, False), (1, 1, True)):
        one, other = (each.tensor("<root>", step=step)[row] for each in (ours, theirs))
        assert torch.equal(one, other) is is_same


def test_an_op_can_be_its_own_result_in_float64(golden: Path, tmp_path: Path) -> None:
    made = dumpcmp.graft(
        program(), golden, ["layers.1/gelu"], path=tmp_path / "d3", in_float64=True
    )
    assert len(made.done) == 2
    one = dumpcmp.Archive(golden).tensor("layers.1/gelu")
    other = dumpcmp.Archive(tmp_path / "d3").tensor("layers.1/gelu")
    assert 0 < float((one - other).abs().max()) < 1e-6


def test_gradients_go_through_what_was_replaced(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "d1", trains=True)
    run = program(wrong_kernel("layers.1.down"), trains=True)
    dumpcmp.graft(run, golden, "layers.1.down", path=tmp_path / "d3", backward=True)
    ours, theirs = dumpcmp.Archive(golden), dumpcmp.Archive(tmp_path / "d3")
    one, other = (a.tensor("layers.0.up", slot="grad.weight") for a in (ours, theirs))
    assert float((other - one).norm() / one.norm()) < 0.02  # its own slope is 1 % too steep


WRONG_CALLS = {
    "no such op": ({"at": "layers.9/linear"}, "no value called"),
    "a mode that has no ops": (
        {"at": "layers.1/gelu", "mode": dumpcmp.Boundary("aot_eager")},
        "cannot put values into",
    ),
    "a row too many": ({"at": "layers.1/gelu", "rows": "7"}, "there is no row 7"),
    "an op of eager in aten": ({"at": "layers.1/gelu", "mode": "aten"}, "names its ops otherwise"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_what_cannot_be_done_is_told(name: str, golden: Path, tmp_path: Path) -> None:
    options, said = WRONG_CALLS[name]
    with pytest.raises(dumpcmp.DumpcmpError, match=said):
        made = dumpcmp.graft(program(), golden, path=tmp_path / "d3", **options)  # type: ignore[arg-type]
        if made.dumped.error is not None:
            raise made.dumped.error


def test_a_call_that_never_runs_is_trouble(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(dumpcmp.CaptureError, match=r"did not call layers\.1/gelu#0"):
        dumpcmp.graft(program(left_out(1)), golden, "layers.1/gelu", path=tmp_path / "d3")


def test_a_rank_gets_its_part_of_goldens_value() -> None:
    whole = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    part = whole[:, 4:] * 1.01
    found = _part_like(whole, part)
    assert found is not None
    assert torch.equal(found, whole[:, 4:])
    assert _part_like(whole, torch.zeros(6, 4)) is None  # which part is not known
    assert _part_like(whole, torch.zeros(3, 4)) is None


def test_what_may_be_a_term_of_a_sum_is_not_replaced_by_the_sum() -> None:
    key = dumpcmp.Key("Chain", 0, Op("layers.0.down/linear"), 0, Slot("output.0"))
    whole = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    _check_no_term(key, whole, whole * 1.2)
    for term in (whole / 3, torch.full_like(whole, torch.nan)):
        with pytest.raises(dumpcmp.CaptureError, match="may be a term of a sum"):
            _check_no_term(key, whole, term)


def test_the_commands(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = dumped(tmp_path / "d2", wrong_kernel("layers.1.down"))

    def ends(*words: object) -> int:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return int(end.value.code or 0)

    assert ends("graft", "--all", mine, golden) == 1
    said = capsys.readouterr().out
    assert "layers.1.down/linear#0, token 0: wrong kernel; put right alone, 100% of it" in said
    assert "which rounding explains" in said
    assert ends("graft", "--all", mine) == 2
    assert ends("graft", "--at", "layers.1", "x.py") == 2
    assert ends("explain", mine, golden) == 1
    said = capsys.readouterr().out
    value = "'layers.1.down/linear#0 output.0'"
    assert f"dumpcmp repro {mine} {golden} {value} --path repro\n" in said
    assert f"dumpcmp graft --all {mine} {golden}\n" in said
    assert f"dumpcmp graft --golden-path {golden} --at {value} --path grafted-1 SCRIPT" in said


@pytest.mark.parametrize("name", ["int4 weights, by groups", "int8 weights and inputs"])
def test_quantised_layers_are_ranked_as_runs_that_leave_each_out(name: str, tmp_path: Path) -> None:
    subject, (scheme,) = quantised.decoder(), [s for s in quantised.SCHEMES if s.name == name]
    model, given = subject.build(), dict(subject.given)
    golden = quantised.dumped(model, given, tmp_path / "d1")
    mine = quantised.dumped(quantised.quantised(model, scheme), given, tmp_path / "d2")
    report = dumpcmp.graft_all(mine, golden, allow=scheme.word)
    layers = grafted_layers.linears(model)
    run = grafted_layers.left_out(model, scheme, given)
    found = grafted_layers.by_layer(report, layers)
    assert grafted_layers.spearman(run, found) >= 0.9
    assert all(step.left <= EXACT for step in report.steps)


# a compiled program


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "d2"
    assert dump(program(other_weight(1)), path, mode="compiled").error is None
    return path


@pytest.mark.long
@pytest.mark.parametrize("at", ["layers.1.up/linear", "layers.1.up", "layers.1"])
def test_a_compiled_program_goes_on_from_goldens_value(
    at: str, golden: Path, spoilt: Path, tmp_path: Path
) -> None:
    made = dumpcmp.graft(
        program(other_weight(1)), golden, at, path=tmp_path / "d3", mode="compiled"
    )
    assert made.dumped.error is None
    assert (len(made.done), made.missing) == (2, [])
    for step in (0, 1):
        one, before, other = (
            dumpcmp.Archive(path).tensor("<root>", step=step)
            for path in (golden, spoilt, tmp_path / "d3")
        )
        assert float((other - one).norm() / one.norm()) < 1e-6 < float((before - one).norm())
    names = {key.op for key in dumpcmp.Archive(tmp_path / "d3")}
    assert ("layers.1.up/linear" in names) is (at != "layers.1")
    assert "layers.2.up/linear" in names


@pytest.mark.long
def test_a_compiled_op_can_be_its_own_result_in_float64(golden: Path, tmp_path: Path) -> None:
    made = dumpcmp.graft(
        program(), golden, "layers.1/gelu", path=tmp_path / "d3", mode="compiled", in_float64=True
    )
    assert len(made.done) == 2
    archive = dumpcmp.Archive(tmp_path / "d3")
    given = archive.tensor("layers.1.up/linear")
    right = torch.nn.functional.gelu(given.double()).float()
    assert torch.equal(archive.tensor("layers.1/gelu"), right)


@pytest.mark.long
def test_gradients_go_through_a_compiled_op_that_was_replaced(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "d1", trains=True)
    run = program(trains=True)
    options = {"mode": "compiled", "backward": True}
    dumpcmp.graft(run, golden, "layers.1.down", path=tmp_path / "d3", **options)  # type: ignore[arg-type]
    ours, theirs = dumpcmp.Archive(golden), dumpcmp.Archive(tmp_path / "d3")
    one, other = (a.tensor("layers.0.up", slot="grad.weight") for a in (ours, theirs))
    assert float((other - one).norm() / one.norm()) < 1e-5
