"""Table "verify": compiled Hugging Face models, what verify says of them, and what it costs."""

import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.tables import Table
from dumpcmp import AutomaticValueChecker, VerificationError, VerifyConfig, explain, verify

REPEATS = 5
IDS = (torch.arange(512) * 37 % 1024).reshape(4, 128)


def inputs_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """4 x 128 tokens in float32; 1 x 16 in bfloat16, whose products most CPUs emulate."""
    wide = next(iter(model.parameters())).dtype == torch.float32
    ids = IDS if wide else IDS[:1, :16]
    return {"input_ids": ids, "labels": ids}


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=688, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=1024, n_positions=256, n_embd=256, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


MODELS = {
    "Llama": (llama, "model.layers.1.mlp.up_proj"),
    "GPT-2": (gpt2, "transformer.h.1.mlp.c_proj"),
}


def table() -> Table:
    """Measure in a process of one thread, so that neither BLAS shares the cores with the other."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.verify"],
        env={**os.environ, **dict.fromkeys(names, "1")},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    headings = ("model", "dtype", "pass", "values", "worst rel_l2", "default", "rounding", "fault",
                "explain", "cost", "cost with float64")  # fmt: skip
    return Table("verify", headings, rows, HOW)


HOW = (
    "Two layers from a config with random weights, width 256, 4 x 128 tokens (bfloat16: 1 x 16), "
    "Inductor on the CPU, one thread. default and rounding: verdict on the unmodified compiler. "
    "fault: the weight of one linear layer times 1.01, held against RoundingChecker; explain: the "
    "op that it names in the compiled target. cost: CPU time of verify over that of running both "
    f"models once, median of {REPEATS} interleaved repeats, everything compiled before; in float32 "
    "only, since bfloat16 products are emulated on most CPUs."
)


def measured() -> Iterator[list[str]]:
    for name, (build, place) in MODELS.items():
        for dtype in (torch.float32, torch.bfloat16):
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = build().to(dtype).eval()
            compiled = torch.compile(model)
            found = explained(model, place) if dtype == torch.float32 else ["–", "–"]
            for backward in (False, True):
                torch._dynamo.reset()
                yield [name, str(dtype).removeprefix("torch."),
                       "forward and backward" if backward else "forward",
                       *verdicts(model, compiled, backward), *found,
                       *(costs(model, compiled, backward) if dtype == torch.float32
                         else ["–", "–"])]  # fmt: skip
                found = ["", ""]


def verdicts(model: nn.Module, compiled: Any, backward: bool) -> list[str]:
    with torch.enable_grad() if backward else torch.no_grad():
        forge = VerifyConfig(backward=backward, value_checker=AutomaticValueChecker())
        plain = checked(model, compiled, forge)
        rounding = checked(model, compiled, VerifyConfig(backward=backward))
    return [*plain, rounding[-1]]


def checked(model: nn.Module, target: Any, config: VerifyConfig) -> list[str]:
    """How many values, the worst rel_l2, and whether all passed."""
    try:
        report = verify(inputs_of(model), model, target, config)
    except VerificationError as error:
        return ["–", "–", error.message.splitlines()[0].split(": ")[1]]
    worst = max(row.metrics.rel_l2 for row in report.rows if row.metrics)
    return [str(len(report.rows)), f"{worst:.1e}", "pass"]


def explained(model: nn.Module, place: str) -> list[str]:
    """Whether a fault in one layer is caught, and what explain calls it."""
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong.get_parameter(f"{place}.weight").mul_(1.01)
    target = torch.compile(wrong)
    said = checked(model, target, VerifyConfig())[-1]
    op = explain(inputs_of(model), model, target).op
    return ["missed" if said == "pass" else "caught", f"{op}, planted in {place}"]


def costs(model: nn.Module, compiled: Any, backward: bool) -> list[str]:
    """CPU time of verify over that of both models, without and with the reference."""
    plain = VerifyConfig(backward=backward)
    wide = VerifyConfig(backward=backward, reference="float64")

    def both() -> None:
        once(model, backward)
        once(compiled, backward)

    runs: list[Callable[[], Any]] = [
        both,
        lambda: verify(inputs_of(model), model, compiled, plain),
        lambda: verify(inputs_of(model), model, compiled, wide),
    ]
    with nullcontext() if backward else torch.no_grad():
        times = interleaved(runs)
    return [f"{times[1] / times[0]:.2f} x", f"{times[2] / times[0]:.2f} x"]


def interleaved(runs: list[Callable[[], Any]]) -> list[float]:
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(REPEATS + 1):
        for run, times in zip(runs, seconds, strict=True):
            began = time.process_time()
            run()
            if turn:
                times.append(time.process_time() - began)
    return [median(times) for times in seconds]


def once(model: Any, backward: bool) -> None:
    output = model(**inputs_of(model))
    if backward:
        for parameter in model.parameters():
            parameter.grad = None
        roots = [output.loss, output.logits]
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for row in measured():
        print(json.dumps(row), flush=True)
