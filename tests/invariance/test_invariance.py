"""A model of exact numbers is the same by every schedule; each dependence is named at its op."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dumpcmp import Archive, CaptureError, SelectionError, demo
from dumpcmp.cli import main
from dumpcmp.invariance import check_invariance
from dumpcmp.invariance.schedules import VARY, threads
from dumpcmp.nouns.row import Verdict
from tests.invariance.exact_models import IDS, SENSITIVE, Exact, Sensitive


def test_whole_numbers_are_the_same_by_every_schedule() -> None:
    with threads(2):
        report = check_invariance(Exact(), (IDS,))
    assert report.exit_code == 0 and report.first == {}, report.text()
    assert {row.vary for row in report.rows} == set(VARY)
    assert all(row.num_rows and not row.num_unpaired for row in report.rows), report.text()
    assert len({row.num_rows for row in report.rows}) == 1  # no schedule loses a row


@pytest.mark.parametrize("sensitive", SENSITIVE, ids=lambda sensitive: sensitive.vary)
def test_the_op_that_depends_on_a_schedule_is_named_with_the_size(sensitive: Sensitive) -> None:
    model = Exact()
    model.fault = sensitive.fault
    with threads(2):
        report = check_invariance(model, (IDS,), vary=sensitive.vary)
    assert report.exit_code == 1, report.text()
    row = report.first[sensitive.vary]
    assert (row.op, row.size) == ("mix/add", sensitive.size), report.text()
    assert "with equal inputs" in row.reason
    others = {"order": set(), "decode": {"chunk"}}.get(sensitive.vary, set())
    assert set(report.first) <= {sensitive.vary, *others}


def test_rows_that_attend_to_what_differs_are_not_blamed() -> None:
    """All that follows the op inherits its difference, and only the op itself is named."""
    model = Exact()
    model.fault = SENSITIVE[0].fault
    report = check_invariance(model, (IDS,), vary="batch", layers=["<root>*", "head*"])
    assert report.exit_code == 1
    assert report.first["batch"].op in ("<root>", "<root>/matmul")  # the op itself is left out


def test_a_real_decoder_keeps_its_bits_in_any_batch_or_order_or_padding() -> None:
    model, _ = demo.build()
    report = check_invariance(model, (torch.randint(128, (3, 8)),), vary="order,repeat,padding")
    assert report.compared and report.exit_code == 0, report.text()


def test_what_cannot_be_varied_is_skipped_with_its_reason() -> None:
    report = check_invariance(Exact(), (IDS[:1],), vary=["batch", "repeat"])
    skipped = report.rows[0]
    assert skipped.verdict is Verdict.SKIPPED and "one sequence" in skipped.reason
    assert report.exit_code == 0

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.embed(ids)
            return found

    report = check_invariance(Plain(), IDS, vary="decode")
    assert report.exit_code == 2 and "no argument" in report.rows[0].reason


def test_inputs_without_tokens_and_unknown_words_are_refused() -> None:
    with pytest.raises(CaptureError, match="no token ids"):
        check_invariance(Exact(), (torch.ones(2, 3),))
    with pytest.raises(SelectionError, match="'colour' does not vary"):
        check_invariance(Exact(), (IDS,), vary="colour")
    with pytest.raises(CaptureError, match="have padding"):
        check_invariance(
            Exact(), {"input_ids": IDS, "attention_mask": (IDS > 3).long()}, vary="batch"
        )


def test_the_model_stays_in_the_mode_that_it_was_in_and_archives_can_be_kept(
    tmp_path: Path,
) -> None:
    model = Exact().train()
    check_invariance(model, (IDS,), vary="repeat", path=tmp_path)
    assert model.training
    assert [Archive(path).complete for path in sorted(tmp_path.iterdir())] == [True, True]


def test_the_command_names_the_op_and_the_size() -> None:
    words = ["invariance", "tests.invariance.exact_models:build", "--vary", "batch,repeat"]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1, told.output
    assert told.output.startswith("DIFFERENT by batch: mix/add (call 0) from batches of 4 on")
    assert CliRunner().invoke(main, ["invariance", "nothing"]).exit_code == 2
