"""A switch file turns single patterns of Inductor off, and the run says so."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive, Compiled
from dumpcmp.cli import main
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.taps.inductor.switches import Switches, fusions, read_switches


class Attention(nn.Module):
    """Attention as one writes it, which Inductor replaces by one kernel."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = torch.matmul(q, k.transpose(-2, -1)).div(4.0).softmax(-1).matmul(v)
        return out


def switch_file(path: Path, **switch: Any) -> Path:
    path.write_text(json.dumps({"Switch": switch}))
    return path


def num_fused(path: Path, mode: Compiled) -> int:
    """How often attention was replaced while a dump compiled it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    uncached = torch.compiler.config.patch(force_disable_caches=True)  # type: ignore[attr-defined]
    q, k, v = torch.randn(3, 2, 4, 8, 16, generator=torch.Generator().manual_seed(0))
    model = Attention()
    with uncached, dumpcmp.capture(model, path, mode=mode), torch.no_grad():
        model(q, k, v)
    return int(torch._dynamo.utils.counters["inductor"]["fuse_attention"])


def patterns_of_attention() -> dict[str, str]:
    return {name: "off" for name in fusions() if name.startswith("_sfdp_pattern")}


def test_a_pattern_that_is_off_is_not_applied_and_the_values_are_the_same(tmp_path: Path) -> None:
    file = switch_file(tmp_path / "off.json", GraphFusion=patterns_of_attention())
    assert num_fused(tmp_path / "on", Compiled()) == 1
    assert num_fused(tmp_path / "off", Compiled(fusion_switch=file)) == 0
    assert num_fused(tmp_path / "again", Compiled()) == 1  # nothing of it stays behind
    facts = Archive(tmp_path / "off").run[0]["run"]
    assert "_sfdp_pattern_1" in facts["switches"]["off"]
    outcome = dumpcmp.compare(tmp_path / "off", tmp_path / "on")
    assert not [row for row in outcome.rows if row.key.slot.is_output and row.verdict.fails]


def test_all_and_single_switches() -> None:
    some = Switches(off=frozenset({"ALL"}), on=frozenset({"bmm_to_mm"}))
    assert some.turns_off("mm_plus_mm")
    assert not some.turns_off("bmm_to_mm")
    assert not Switches().turns_off("mm_plus_mm")


@pytest.mark.parametrize(
    "text, told",
    [
        ("{", "cannot read"),
        ('{"Switch": {"GraphFusion": {"mm_plus_mmm": "off"}}}', "closest: mm_plus_mm"),
        ('{"Switch": {"GraphFusion": {"ALL": "maybe"}}}', "maybe"),
        ('{"Switch": {"Fusion": {"ALL": "off"}}}', "Fusion"),
        ('{"Switch": {"UBFusion": {"one": "off"}}}', "one"),
    ],
)
def test_what_a_switch_file_cannot_say_is_refused(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "switch.json"
    path.write_text(text)
    with pytest.raises(SelectionError, match=told):
        read_switches(path)


def test_the_command_lists_what_there_is_and_dump_refuses_other_modes(tmp_path: Path) -> None:
    listed = CliRunner().invoke(main, ["fusions"])
    assert listed.exit_code == 0
    assert {"mm_plus_mm", "_sfdp_pattern_1"} <= set(listed.output.split())
    file = switch_file(tmp_path / "off.json", UBFusion={"ALL": "off"})
    assert not read_switches(file).kernels
    options = ["--mode", "eager", "--path", str(tmp_path / "d"), "--fusion-switch", str(file)]
    refused = CliRunner().invoke(main, ["dump", *options])
    assert refused.exit_code == 2
    assert "--fusion-switch says nothing to --mode eager" in refused.output
