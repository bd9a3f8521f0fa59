"""Faults that are planted into the compiler are found at their op; without, there is no alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from tests.choosing_cases import often
from tests.taps.inductor.conftest import run
from tests.taps.inductor.models import FAULTS, Fault, net, normed

Golden = Callable[[bool], Path]


def compared(golden: Golden, fault: Fault, path: Path, **way: Any) -> Outcome:
    model, x = net()
    with (
        fault.plant(),
        dumpcmp.capture(model, path, mode=dumpcmp.Compiled(**way), backward=fault.backward),
    ):
        run(model, x, fault.backward)
    return dumpcmp.compare(golden(fault.backward), path)


LONG = ("mul becomes add", "wrong constant")
OFTEN = [fault.name for fault in FAULTS if fault.name not in LONG]


@pytest.mark.parametrize("fault", often(FAULTS, *OFTEN), ids=lambda fault: fault.name)
def test_a_fault_is_named_in_the_fused_graph(fault: Fault, golden: Golden, tmp_path: Path) -> None:
    outcome = compared(golden, fault, tmp_path / "d")
    found = outcome.first_divergence
    assert found is not None and outcome.exit_code == 1
    assert (found.key.op, found.key.slot) == (fault.op, fault.slot)


def test_without_a_twin_a_fault_is_named_where_its_kernel_stores(
    golden: Golden, tmp_path: Path
) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == "sub is swapped")
    found = compared(golden, fault, tmp_path / "d", twin=False).first_divergence
    assert found is not None and found.key.op == "<root>/mul"
    assert f"{fault.op}#0" in found.reason


def test_materialising_every_op_tells_fused_suspects_apart(golden: Golden, tmp_path: Path) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == "sub is swapped")
    found = compared(golden, fault, tmp_path / "d", realize=True).first_divergence
    assert found is not None
    assert (found.key.op, found.key.slot) == (fault.op, fault.slot)


# How a sound compiler is run, whether it trains, and how many outputs may stay inside kernels.
WAYS: dict[str, tuple[dict[str, Any], bool, int]] = {
    "fused": ({}, True, 6),  # each of two matmuls that add the residual is one call
    "fused, without twins": ({"twin": False}, True, 10),
    "realize": ({"realize": True}, True, 0),
    "fusion off": ({"fusion": False}, False, 0),
}


@pytest.mark.parametrize("name", often(WAYS, "fused, without twins"))
def test_a_sound_compiler_raises_no_alarm(name: str, golden: Golden, tmp_path: Path) -> None:
    way, backward, most_fused = WAYS[name]
    model, x = net()
    compiled = dumpcmp.Compiled(**way)
    with dumpcmp.capture(model, tmp_path / "d", mode=compiled, backward=backward):
        run(model, x, backward)
    sound(dumpcmp.compare(golden(backward), tmp_path / "d"), most_fused)


@pytest.mark.long  # so are the norms of test_norms, of two kinds
@pytest.mark.parametrize("name", ["fused", "realize", "fusion off"])
def test_an_op_that_becomes_many_raises_no_alarm(name: str, tmp_path: Path) -> None:
    way, backward, _ = WAYS[name]
    for path, mode in (("golden", "eager"), ("d", dumpcmp.Compiled(**way))):
        model, x = normed(affine=name != "fusion off")  # where each op is a kernel
        with dumpcmp.capture(model, tmp_path / path, mode=mode, backward=backward):
            run(model, x, backward)
    sound(dumpcmp.compare(tmp_path / "golden", tmp_path / "d"), 0)


def sound(outcome: Outcome, most_fused: int) -> None:
    assert outcome.exit_code == 0, [row for row in outcome.rows if row.verdict.fails]
    outputs = [row for row in outcome.rows if row.key.slot.startswith("output")]
    fused = [row for row in outputs if row.verdict is Verdict.FUSED]
    assert len(fused) <= most_fused
    assert all(row.paired_by for row in outputs if row not in fused)
