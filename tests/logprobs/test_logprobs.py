"""Log probabilities of any form are aligned by tokens, and each cause is named with evidence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp import demo
from dumpcmp.cli import main
from dumpcmp.logprobs import compare_logprobs
from dumpcmp.nouns.errors import AlignError, ArchiveError
from tests.choosing_cases import often
from tests.logprobs.scored import CASES, Case, save, sides

OFTEN = [
    "one token late, one step", "temperature 0.6 for 1", "wrong from position 48 on, one step",
    "one sample of 16", "weights off by 5 %, one step", "weights that stay behind, few samples",
    "nothing, one step", "nothing, few short samples",
]  # fmt: skip


@pytest.mark.parametrize("case", often(CASES, *OFTEN), ids=lambda case: case.name)
def test_each_cause_is_named_and_nothing_where_there_is_none(case: Case, tmp_path: Path) -> None:
    golden, mine = sides(case.rollout, case.scoring, is_noisy=case.is_noisy)
    paths = save(golden, tmp_path / "g.jsonl"), save(mine, tmp_path / "m.jsonl")
    report = compare_logprobs(*paths)
    assert (report.diagnosis.cause if report.diagnosis else "") == case.cause, report.headline
    assert report.exit_code == (1 if case.cause else 0)
    assert report.numbers.count == sum(len(line["tokens"]) - 16 for line in golden)


TOKENS, LENGTH = list(range(10, 22)), 12
SCORES = [-0.1 * (i + 1) for i in range(LENGTH)]
PROMPT = 4
RESPONSE = SCORES[PROMPT:]
CHAT = [{"token": f"token_id:{t}", "logprob": s, "bytes": None}
        for t, s in zip(TOKENS[PROMPT:], RESPONSE, strict=True)]  # fmt: skip
FORMS: dict[str, tuple[str, Any]] = {
    "slime": ("a.jsonl", {"index": 0, "tokens": TOKENS, "response_length": 8,
                          "loss_mask": [1] * 8, "rollout_log_probs": RESPONSE}),
    "slime, a whole rollout": ("0.json", {"rollout_id": 0, "samples": [
        {"index": 0, "tokens": TOKENS, "response_length": 8, "rollout_log_probs": RESPONSE}]}),
    "NeMo-RL": ("train_data_step0.jsonl", {
        "idx": 0, "token_ids": [*TOKENS, 0, 0], "input_lengths": LENGTH,
        "token_loss_mask": [0] * PROMPT + [1] * 8 + [0, 0],
        "generation_logprobs": [*SCORES, 0.0, 0.0]}),
    "a whole batch in one line": ("b.jsonl", {"idx": [0], "token_ids": [TOKENS],
                                              "token_loss_mask": [[0] * PROMPT + [1] * 8],
                                              "generation_logprobs": [SCORES]}),
    "miles": ("rank_0.json", {"rank": 0, "logprob_entries": [[
        {"global_position": i - 1, "token_id": TOKENS[i], "logprob": SCORES[i],
         "is_valid": i >= PROMPT} for i in range(1, LENGTH)]]}),
    "completions": ("c.jsonl", {"choices": [{"index": 0, "prompt_token_ids": TOKENS[:PROMPT],
        "logprobs": {"tokens": [f"token_id:{t}" for t in TOKENS[PROMPT:]],
                     "token_logprobs": RESPONSE}}]}),
    "chat": ("d.jsonl", {"choices": [{"index": 0, "prompt_token_ids": TOKENS[:PROMPT],
                                      "logprobs": {"content": CHAT}}]}),
    "chat without its prompt": ("e.jsonl", {"choices": [{"logprobs": {"content": CHAT}}]}),
    "a batch of requests": ("f.jsonl", {"custom_id": "0", "response": {"body": {
        "choices": [{"logprobs": {"content": CHAT}}]}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_same_sample_in_any_form_is_the_same(name: str, tmp_path: Path) -> None:
    file, line = FORMS[name]
    (tmp_path / file).write_text(json.dumps(line) + "\n")
    golden = save([FORMS["slime"][1]], tmp_path / "golden_step0.jsonl")
    report = compare_logprobs(golden, tmp_path / file)
    assert report.numbers.count == 8
    assert report.numbers.max < 1e-12 and report.exit_code == 0


def test_a_pt_of_a_trainer_is_read_without_unpickling_objects(tmp_path: Path) -> None:
    line = FORMS["slime"][1]
    torch.save({"rollout_id": 0, "samples": [line]}, tmp_path / "0.pt")
    golden = save([line], tmp_path / "golden_step0.jsonl")
    assert compare_logprobs(golden, tmp_path / "0.pt").numbers.max == 0
    torch.save({"samples": [line | {"status": nn.Linear(1, 1)}]}, tmp_path / "0.pt")
    with pytest.raises(ArchiveError, match="holds more than tensors"):
        compare_logprobs(golden, tmp_path / "0.pt")


def test_a_file_that_has_both_sides_is_compared_with_itself(tmp_path: Path) -> None:
    line = FORMS["NeMo-RL"][1]
    both = line | {"prev_logprobs": [s - 0.5 for s in line["generation_logprobs"]]}
    path = save([both], tmp_path / "train_data_step3.jsonl")
    report = compare_logprobs(path, path)
    assert abs(report.numbers.bias - 0.5) < 1e-12  # mine is the rollout, golden the trainer
    assert "golden: prev_logprobs, mine: generation_logprobs" in report.remarks
    same = compare_logprobs(path, path, my_field="prev_logprobs")
    assert same.numbers.max == 0 and "of the same file" in same.remarks[0]


def test_of_other_tokens_the_common_beginning_is_compared_and_that_is_said(tmp_path: Path) -> None:
    line = FORMS["slime"][1]
    other = line | {"tokens": [*TOKENS[:9], 99, *TOKENS[10:]], "rollout_log_probs": RESPONSE}
    golden, mine = save([line], tmp_path / "g.jsonl"), save([other], tmp_path / "m.jsonl")
    report = compare_logprobs(golden, mine)
    assert report.numbers.count == 9 - PROMPT
    assert any("common beginning" in remark for remark in report.remarks)


def test_ranks_of_context_parallelism_are_put_together(tmp_path: Path) -> None:
    entries = FORMS["miles"][1]["logprob_entries"][0]
    for rank in range(2):
        mine = [
            e | {"is_valid": e["is_valid"] and e["global_position"] % 2 == rank} for e in entries
        ]
        told = json.dumps({"rank": rank, "logprob_entries": [mine]})
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / f"rank_{rank}.json").write_text(told)
    golden = save([FORMS["slime"][1]], tmp_path / "g.jsonl")
    assert compare_logprobs(golden, tmp_path / "m").numbers.count == 8


TROUBLE: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "has no log probabilities"),
    "other tokens": ([FORMS["slime"][1] | {"tokens": list(range(50, 62))}], "no token of"),
    "other fields": ([{"tokens": TOKENS, "scores": SCORES}], "it has none of"),
    "too many": ([FORMS["slime"][1] | {"rollout_log_probs": [0.0] * 30, "response_length": 30}],
                 "stand beside 12 tokens|are told of a response"),
    "no list": ([{"tokens": "words", "logprobs": 3}], "is no list of token ids"),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLE)
def test_what_cannot_be_compared_is_trouble(name: str, tmp_path: Path) -> None:
    listed, said = TROUBLE[name]
    golden = save([FORMS["slime"][1]], tmp_path / "g.jsonl")
    mine = save(listed, tmp_path / "m.jsonl")
    with pytest.raises((AlignError, ArchiveError), match=said):
        compare_logprobs(golden, mine)
    words = ["logprobs", "--golden-path", str(golden), "--my-path", str(mine)]
    assert CliRunner().invoke(main, words).exit_code == 2


class Decoder(nn.Module):
    """The demo's decoder with the words of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, _ = demo.build()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, cache: Any = None
    ) -> tuple[Tensor, Any]:
        found: tuple[Tensor, Any] = self.inner(input_ids, cache)
        return found


def test_decoding_step_by_step_is_one_forward_and_padding_is_no_token(tmp_path: Path) -> None:
    model, tokens = Decoder().eval(), torch.randint(128, (2, 9))
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "whole", layers=["<root>"]):
        model(input_ids=tokens)
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "grown", layers=["<root>"]):
        _, cache = model(input_ids=tokens[:, :5])
        for i in range(5, 9):
            _, cache = model(input_ids=tokens[:, i : i + 1], cache=cache)
    report = compare_logprobs(tmp_path / "whole", tmp_path / "grown")
    assert report.numbers.count == 16 and report.numbers.max < 1e-5
    padded = torch.cat([tokens, torch.zeros(2, 3, dtype=torch.int64)], 1)
    mask = (torch.arange(12) < 9).long().expand(2, -1).clone()
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "padded", layers=["<root>"]):
        model(input_ids=padded, attention_mask=mask)
    report = compare_logprobs(tmp_path / "whole", tmp_path / "padded")
    assert report.numbers.count == 16 and report.numbers.max < 1e-5


def test_an_infinite_log_probability_on_one_side_is_a_difference(tmp_path: Path) -> None:
    line = FORMS["slime"][1]
    mine = line | {"rollout_log_probs": [*RESPONSE[:-1], float("-inf")]}
    paths = save([line], tmp_path / "g.jsonl"), save([mine], tmp_path / "m.jsonl")
    report = compare_logprobs(*paths)
    assert report.exit_code == 1 and "infinite log probability" in report.headline


def test_the_command_prints_the_diagnosis_and_writes_a_line_a_token(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "one token late, one step")
    golden, mine = sides(case.rollout, case.scoring)
    words = ["logprobs", "--golden-path", str(save(golden, tmp_path / "g.jsonl"))]
    words += ["--my-path", str(save(mine, tmp_path / "m.jsonl")), "-o", str(tmp_path / "o.csv")]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1 and told.output.startswith("DIFFERENT: shifted: mean |delta| is")
    assert all(word in told.output for word in ("k3", "above ln 2", "by position: 16-", "next: "))
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 1 + 16 * 80
