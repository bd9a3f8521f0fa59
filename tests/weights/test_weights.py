"""Weights that are the checkpoint's are called so in any form; each fault is called by its name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp.cli import main
from dumpcmp.nouns.errors import ArchiveError, SelectionError
from dumpcmp.weights import WeightReport, compare_weights

pytest.importorskip("safetensors")
from tests.weights.checkpoints import (
    PLANTED,
    Planted,
    Weights,
    as_engine,
    by_rows,
    checkpoint,
    cut,
    dequantised,
    in_blocks,
    on_ranks,
    quantised,
    save,
    save_ranks,
)

O_PROJ = "model.layers.1.self_attn.o_proj.weight"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("golden")
    save(checkpoint(), room / "model.safetensors")
    return room


def verdicts(report: WeightReport) -> dict[str, str]:
    return {row.name: str(row.verdict) for row in report.rows if row.fails}


def transposed(found: Weights) -> Weights:
    return {n: t.t().contiguous() if "down_proj" in n else t for n, t in found.items()}


def renamed(found: Weights) -> Weights:
    return {n.replace("model.layers", "transformer.h"): t for n, t in found.items()}


def in_other_words(found: Weights) -> Weights:
    """No name is golden's: all must be found by their values."""
    return {f"block_{number}": tensor for number, tensor in enumerate(found.values())}


def padded(found: Weights) -> Weights:
    names = ("lm_head.weight", "model.embed_tokens.weight")
    return found | {
        name: torch.cat([found[name], torch.zeros(56, 64).bfloat16()]) for name in names
    }


def in_groups(found: Weights) -> Weights:
    """Queries, keys and values of each group beside each other, as Megatron has them."""
    mine = as_engine(found)
    for name in [each for each in mine if "qkv_proj" in each]:
        parts = cut(mine[name], [64, 32, 32])
        grouped = [part.reshape(2, -1, *part.shape[1:]) for part in parts]
        mine[name] = torch.cat(grouped, 1).reshape(mine[name].shape)
    return mine


def tied(found: Weights) -> Weights:
    return found | {"lm_head.weight": found["model.embed_tokens.weight"].clone()}


def without_head(found: Weights) -> Weights:
    return {name: tensor for name, tensor in tied(found).items() if name != "lm_head.weight"}


def cast(found: Weights) -> Weights:
    return {name: tensor.float() for name, tensor in found.items()}


SOUND: dict[str, tuple[Callable[[Weights], Weights], Callable[[Weights], Weights]]] = {
    "the same": (dict, dict),
    "merged and stacked": (dict, as_engine),
    "split again": (as_engine, dict),
    "in groups": (dict, in_groups),
    "transposed": (dict, transposed),
    "renamed": (dict, renamed),
    "other names": (dict, in_other_words),
    "padded vocabulary": (dict, padded),
    "golden ties its head": (without_head, tied),
    "mine ties its head": (tied, without_head),
    "wider": (dict, cast),
    "narrower": (cast, dict),
    "fp8 in blocks on both sides": (
        lambda found: quantised(found, in_blocks, "_scale_inv"),
        lambda found: quantised(found, in_blocks, "_scale_inv"),
    ),
    "fp8 in blocks, applied": (
        lambda found: quantised(found, in_blocks, "_scale_inv"),
        lambda found: dequantised(quantised(found, in_blocks, "_scale_inv")),
    ),
    "quantised to fp8": (dict, lambda found: quantised(found, in_blocks, "_scale_inv")),
    "quantised to int8": (dict, lambda found: quantised(found, by_rows, "_scale")),
}


@pytest.mark.parametrize("name", SOUND)
def test_weights_in_another_form_are_the_checkpoints(name: str, tmp_path: Path) -> None:
    of_golden, of_mine = SOUND[name]
    golden = save(of_golden(checkpoint()), tmp_path / "golden.safetensors")
    mine = save(of_mine(checkpoint()), tmp_path / "mine.safetensors")
    report = compare_weights(golden, mine)
    assert verdicts(report) == {}
    assert report.exit_code == 0 and report.passed


@pytest.mark.parametrize("num", [2, 4])
def test_shards_of_ranks_are_the_checkpoints_and_a_lost_rank_is_missed(
    num: int, golden: Path, tmp_path: Path
) -> None:
    ranks = on_ranks(as_engine(checkpoint()), num)
    mine = save_ranks(ranks, tmp_path / "mine")
    assert verdicts(compare_weights(golden, mine)) == {}
    for name in ranks[-1]:
        if "w13" in name:
            ranks[-1][name] = ranks[0][name]
    told = verdicts(compare_weights(golden, save_ranks(ranks, tmp_path / "again")))
    assert told and all("experts" in name for name in told)


def test_pieces_on_the_wrong_ranks_are_permuted(golden: Path, tmp_path: Path) -> None:
    ranks = on_ranks(as_engine(checkpoint()), 2)
    name = "model.layers.0.mlp.experts.w2_weight"
    ranks[0][name], ranks[1][name] = ranks[1][name], ranks[0][name]
    report = compare_weights(golden, save_ranks(ranks, tmp_path / "mine"))
    assert verdicts(report) == {name: "permuted"}
    assert report.failures[0].detail == "its pieces lie on the ranks in the order 1, 0"


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_each_fault_is_called_by_its_name(planted: Planted, golden: Path, tmp_path: Path) -> None:
    older = save(checkpoint(seed=1), tmp_path / "older.safetensors")
    mine = as_engine(checkpoint())
    planted.plant(mine)
    report = compare_weights(golden, save(mine, tmp_path / "mine.safetensors"), older=older)
    rows = {row.name: row for row in report.failures}
    row = rows[planted.weight]
    assert (str(row.verdict), report.exit_code) == (planted.verdict, 1)
    assert planted.evidence in row.detail, row.detail
    assert "missing" in planted.verdict or len(rows) <= 2  # an exchange has two sides


WRONG_SCALES: dict[str, tuple[Callable[[Weights, Tensor, Tensor], Weights], str]] = {
    "never applied": (lambda mine, codes, _: mine | {O_PROJ: codes.bfloat16()}, "not applied"),
    "of another block": (
        lambda mine, codes, scale: (
            quantised(mine, in_blocks, "_scale_inv") | {O_PROJ + "_scale_inv": scale.flip(0)}
        ),
        "each block of 32 x 32",
    ),
}


@pytest.mark.parametrize("name", WRONG_SCALES)
def test_a_scale_that_is_not_applied_or_wrong_is_named(name: str, tmp_path: Path) -> None:
    plant, evidence = WRONG_SCALES[name]
    found = checkpoint()
    codes, scale = in_blocks(found[O_PROJ])
    is_applied = name == "never applied"
    golden = quantised(found, in_blocks, "_scale_inv") if is_applied else found
    mine = dequantised(golden) if is_applied else found
    mine = plant(mine, codes, scale)
    report = compare_weights(
        save(golden, tmp_path / "g.safetensors"), save(mine, tmp_path / "m.safetensors")
    )
    assert verdicts(report) == {O_PROJ: "scaled"}
    assert evidence in report.failures[0].detail


def test_an_archive_holds_the_weights_of_the_last_step_or_of_an_earlier_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.ones(1, 8)
    first = {name: t.detach().clone() for name, t in model.state_dict().items()}
    with dumpcmp.capture(model, tmp_path / "d", weights=True):
        model(x)
        with torch.no_grad():
            dict(model.named_parameters())["0.weight"].mul_(2)
        model(x)
    last = {name: t.detach().clone() for name, t in model.state_dict().items()}
    for saved, step, failing in ((first, 0, []), (last, None, []), (last, 0, ["0.weight"])):
        torch.save(saved, tmp_path / "c.pt")
        report = compare_weights(tmp_path / "c.pt", tmp_path / "d", step=step)
        assert [row.name for row in report.failures] == failing
    assert "times 0.5" in report.failures[0].detail


def test_buffers_that_no_checkpoint_has_are_told_and_fail_nothing(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("table", torch.ones(3), persistent=False)
    torch.save(model.state_dict(), tmp_path / "c.pt")
    with dumpcmp.capture(model, tmp_path / "d", weights=True):
        model(torch.ones(1, 4))
    report = compare_weights(tmp_path / "c.pt", tmp_path / "d")
    assert report.passed and "table" in report.remarks[0]


def test_nothing_to_compare_is_trouble(golden: Path, tmp_path: Path) -> None:
    other = save({"a": torch.randn(3, 5)}, tmp_path / "other.safetensors")
    report = compare_weights(golden, other)
    assert report.exit_code == 2 and report.headline.startswith("UNKNOWN")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArchiveError, match="has no weights"):
        compare_weights(golden, tmp_path / "empty")
    with pytest.raises(SelectionError, match="no difference that can be allowed"):
        compare_weights(golden, other, allow=["zero"])


def test_weights_of_which_summaries_are_left_are_not_known(tmp_path: Path) -> None:
    model = nn.Linear(64, 64, bias=False)
    torch.save(model.state_dict(), tmp_path / "c.pt")
    with dumpcmp.capture(model, tmp_path / "d", keep="summary"):
        model(torch.ones(1, 64))
    report = compare_weights(tmp_path / "c.pt", tmp_path / "d")
    assert report.exit_code == 2 and {str(row.verdict) for row in report.rows} == {"unread"}


def test_weights_that_an_engine_has_packed_are_not_known(golden: Path, tmp_path: Path) -> None:
    """As vLLM has them on a CPU: the parameter is empty, and a kernel has the numbers."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv_proj = nn.Linear(64, 128)
            self.qkv_proj.weight = nn.Parameter(torch.empty(0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.qkv_proj.bias.sum()

    parts = {
        f"{n}_proj.weight": torch.randn(rows, 64)
        for n, rows in zip("qkv", (64, 32, 32), strict=True)
    }
    model = Packed()
    parts["qkv_proj.bias"] = model.qkv_proj.bias.detach()
    with dumpcmp.capture(model, tmp_path / "d", weights=True):
        model(torch.ones(1, 64))
    report = compare_weights(save(parts, tmp_path / "g.safetensors"), tmp_path / "d")
    assert {row.name: str(row.verdict) for row in report.rows} == {
        "qkv_proj.bias": "equal", "qkv_proj.weight": "unread",
    }  # fmt: skip
    assert report.exit_code == 2 and "packed" in report.failures[0].detail


def test_a_cast_that_overflows_is_no_cast(tmp_path: Path) -> None:
    golden = save({"w": torch.full((4, 4), 1e6)}, tmp_path / "g.safetensors")
    mine = save({"w": torch.full((4, 4), 1e6).half()}, tmp_path / "m.safetensors")
    (row,) = compare_weights(golden, mine).failures
    assert row.verdict == "other" and "infinite" in row.detail


def test_the_command_prints_what_fails_and_writes_a_line_a_weight(
    golden: Path, tmp_path: Path
) -> None:
    mine = as_engine(checkpoint()) | {O_PROJ: checkpoint()[O_PROJ].t().contiguous()}
    words = ["weights", "--golden", str(golden), "--my"]
    words += [str(save(mine, tmp_path / "m.safetensors")), "--out", str(tmp_path / "out.csv")]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1 and "transposed" in told.output, told.output
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 1 + len(compare_weights(golden, tmp_path / "m.safetensors").rows)
    assert CliRunner().invoke(main, [*words, "--allow", "transposed"]).exit_code == 0
