"""Plugins capture an engine's requests, with their ids and positions, and none of its warm-up."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dumpcmp import Archive, SelectionError
from dumpcmp.serving.served_capture import OPTIONS, PATH, ServedCapture, served_capture
from dumpcmp.serving.sglang_plugin import RunnerWatcher
from dumpcmp.serving.vllm_plugin import plain_names, watch_worker
from tests.serving.small_engine import PagedModel, Worker, serve

PROMPTS = {"a": [1, 2, 3, 4, 5, 6, 7], "b": [8, 9], "c": [10, 11, 12, 13]}


def asked(room: Path, monkeypatch: pytest.MonkeyPatch, options: str = "") -> ServedCapture:
    monkeypatch.setenv(PATH, str(room / "d"))
    monkeypatch.setenv(OPTIONS, options)
    found = served_capture()
    assert found is not None
    return found


def served(
    room: Path, monkeypatch: pytest.MonkeyPatch, budget: int = 100, padded_to: int = 0
) -> Archive:
    """What a worker of the small engine records, which warms up as vLLM's does."""
    worker = Worker()
    watch_worker(worker, asked(room, monkeypatch))
    worker.load_model()
    worker.model_runner._dummy_run(16)  # profiles memory
    serve(worker, PROMPTS, budget, padded_to)
    worker.model_runner._dummy_run(8)
    worker.shutdown()
    assert worker.is_shut_down
    return Archive(room / "d")


@pytest.mark.parametrize("budget", [100, 5, 3])
def test_each_position_of_each_request_is_one_row(
    budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = served(tmp_path, monkeypatch, budget)
    assert archive.complete and set(archive.models) == {"PagedModel", "LogitsProcessor"}
    rows = [row for step in archive.steps("PagedModel")
            for row in archive.rows_at("PagedModel", step)[0]]  # fmt: skip
    expected = [(name, i) for name, tokens in PROMPTS.items() for i in range(len(tokens) + 2)]
    assert Counter(rows) == Counter(expected)
    assert archive.steps("PagedModel")[0] == 0  # the warm-up was not counted


def test_rows_of_logits_are_the_last_ones_of_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = served(tmp_path, monkeypatch, budget=5)
    for step in archive.steps("PagedModel"):
        last = {}
        for row in archive.rows_at("PagedModel", step)[0]:
            assert row is not None
            last[row[0]] = row
        assert list(archive.rows_at("LogitsProcessor", step)[0]) == list(last.values())


def test_rows_that_fill_a_batch_up_are_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = served(tmp_path, monkeypatch, padded_to=16)
    for step in archive.steps("PagedModel"):
        ids = archive.rows_at("PagedModel", step)[0]
        assert len(ids) == 16 and ids.runs[-1][0] is None
        assert archive.tensor("project", step=step, model="PagedModel").shape[0] == 16


def test_the_engine_computes_what_it_does_without_a_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, tapped = Worker(), Worker()
    watch_worker(tapped, asked(tmp_path, monkeypatch))
    for worker in (plain, tapped):
        worker.load_model()
        serve(worker, PROMPTS, 5)
    tapped.shutdown()
    assert torch.equal(plain.model_runner.model.pages, tapped.model_runner.model.pages)


def test_sglang_names_requests_and_leaves_out_batches_without_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, model = RunnerWatcher(asked(tmp_path, monkeypatch, "--level modules")), PagedModel()
    runner = SimpleNamespace(model=model)

    def forward(_: Any, batch: Any) -> Any:
        model.tables, model.lengths = batch.tables, batch.lengths
        return model(batch.input_ids, batch.positions)

    def batch(rids: Any, lengths: list[int], positions: list[int], **more: Any) -> Any:
        ids = torch.zeros(len(positions), dtype=torch.int64)
        tables = [[4 * i + j for j in range(4)] for i in range(len(lengths))]
        return SimpleNamespace(rids=rids, lengths=lengths, tables=tables, input_ids=ids,
                               positions=torch.tensor(positions), **more)  # fmt: skip

    assert watcher.loaded("kept", runner) == "kept"
    batches = [
        batch(None, [2], [0, 1]),
        batch(["x", "y"], [3, 2], [0, 1, 2, 0, 1], extend_seq_lens_cpu=[3, 2]),
        batch(["y", "x"], [1, 1], [2, 3], extend_seq_lens=None),
    ]
    with torch.inference_mode():
        for one in batches:
            watcher.forward(forward, runner, one)
    watcher.capture.end()
    archive = Archive(tmp_path / "d")
    found = [archive.rows_at("PagedModel", step)[0].runs for step in archive.steps("PagedModel")]
    assert found == [(("x", 0, 3), ("y", 0, 2)), (("y", 2, 1), ("x", 3, 1))]


def test_ids_that_an_engine_made_its_own_are_plain_again() -> None:
    assert plain_names(["0-b38559de", "cmpl-7-0-00000000"]) == ["0", "cmpl-7-0"]
    same = ["0-b38559de", "0-00000000"]
    assert plain_names(same) == same  # two requests came with one id


def test_options_are_those_of_dump_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--layer 'layers.0.*' --layer x --token 0-3 --every 2 --disk-budget 2G --overwrite"
    options = asked(tmp_path, monkeypatch, words).options
    assert (options.layer, options.token, options.every) == (["layers.0.*", "x"], "0-3", 2)
    assert options.disk_budget == 2 << 30 and options.overwrite
    with pytest.raises(SelectionError, match="unrecognized arguments: --colour"):
        asked(tmp_path, monkeypatch, "--colour red")


OFF = """
import sys
from dumpcmp.serving import sglang_plugin, vllm_plugin
vllm_plugin.register()
sglang_plugin.register()
heavy = {'torch', 'numpy', 'vllm', 'sglang', 'h5py'} & set(sys.modules)
assert not heavy, heavy
"""


def test_plugins_that_are_not_switched_on_do_nothing_and_import_nothing() -> None:
    subprocess.run([sys.executable, "-c", OFF], check=True)


SERVES = """
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(model={model!r}, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True,
              max_model_len=128, max_num_seqs=4, dtype="float32", max_num_batched_tokens=16,
              block_size=32, seed=0, enable_prefix_caching=False)
    prompts = [{{"prompt_token_ids": list(range(3, 3 + n))}} for n in (5, 3, 40)]
    llm.generate(prompts, SamplingParams(max_tokens=3, temperature=0, detokenize=False,
                                         ignore_eos=True))
"""
CONFIG = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, '
    '"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, '
    '"num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 128, '
    '"tie_word_embeddings": false, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}'
)


@pytest.mark.slow
def test_vllm_itself_records_each_position_of_each_request_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(CONFIG)
    (tmp_path / "serve.py").write_text(SERVES.format(model=str(tmp_path / "model")))
    monkeypatch.setenv(PATH, str(tmp_path / "d"))
    monkeypatch.setenv(OPTIONS, "--level modules")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    subprocess.run([sys.executable, str(tmp_path / "serve.py")], check=True, cwd=tmp_path)
    archive = Archive(tmp_path / "d")
    rows = [row for step in archive.steps("LlamaForCausalLM")
            for row in archive.rows_at("LlamaForCausalLM", step)[0]]  # fmt: skip
    lengths = {"0": 5, "1": 3, "2": 40}
    expected = [(name, i) for name, length in lengths.items() for i in range(length + 2)]
    assert Counter(rows) == Counter(expected) and archive.complete
