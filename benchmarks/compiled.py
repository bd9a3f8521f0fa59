"""How much of a compiled run is seen, whether looking changes it, and what it costs."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dumpcmp
from benchmarks.capture import Transformer
from benchmarks.tables import Table
from dumpcmp import demo
from dumpcmp.dumping.programs import dump
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row, Verdict

Made = tuple[nn.Module, tuple[Tensor, ...]]
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "realize": {"realize": True},
    "fusion off": {"fusion": False},
}


class ConvNet(nn.Module):
    """Convolutions, batch norm, pooling and a shortcut."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )  # fmt: skip
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(width * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(self.body(x) + x)
        out: Tensor = self.head(self.pool(x).flatten(1))
        return out


def tokens(batch: int = 2, length: int = 16, vocabulary: int = 128) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def decoder() -> Made:
    return demo.TinyDecoder(demo.Size()), (tokens(),)


def transformer() -> Made:
    return Transformer(64, 4, 128), (tokens(),)


def convnet() -> Made:
    return ConvNet(), (torch.randn(2, 3, 8, 8),)


def llama() -> Made:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), (tokens(),)


def gpt2() -> Made:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), (tokens(),)


MODELS: dict[str, Callable[[], Made]] = {
    "demo decoder": decoder,
    "transformer, 4 layers": transformer,
    "conv net with batch norm": convnet,
    "HF Llama, 2 layers": llama,
    "HF GPT-2, 2 layers": gpt2,
}


@dataclass(frozen=True)
class Case:
    """One model, in one precision, run in one way."""

    model: str
    dtype: torch.dtype
    training: bool
    way: str
    device: str = "cpu"

    @property
    def words(self) -> str:
        kind = "training" if self.training else "inference"
        return f"{kind}, {'bf16' if self.dtype is torch.bfloat16 else 'fp32'}"

    def subject(self) -> Subject:
        torch.manual_seed(0)
        model, inputs = MODELS[self.model]()
        kinds = {True: self.dtype, False: None}
        return Subject(
            model.to(self.device, self.dtype).train(self.training),
            tuple(x.to(self.device, kinds[x.is_floating_point()]) for x in inputs),
            self.training,
        )


class Subject:
    """A model, and a step of it that can be repeated."""

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...], training: bool) -> None:
        self.model, self.inputs, self.training = model, inputs, training
        self._state = {name: value.clone() for name, value in model.state_dict().items()}

    def step(self) -> None:
        self.model.load_state_dict(self._state)  # a run changes the statistics of batch norm
        self.model.zero_grad(set_to_none=True)
        with nullcontext() if self.training else torch.no_grad():
            out = first_tensor(self.model(*self.inputs))
            if self.training:
                (out.float() * _cotangent(out)).sum().backward()  # type: ignore[no-untyped-call]


def _cotangent(out: Tensor) -> Tensor:
    """The same random gradient in every run; a mean of squares near zero would only amplify."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(out.shape, generator=generator).to(out.device)


def first_tensor(value: Any) -> Tensor:
    """The first tensor of what a model returns."""
    if isinstance(value, Tensor):
        return value
    return first_tensor(next(iter(value.values() if isinstance(value, dict) else value)))


def cases() -> Iterator[Case]:
    for way in WAYS:
        for dtype in (torch.float32, torch.bfloat16):
            for training in (False, True):
                yield from (Case(model, dtype, training, way) for model in MODELS)


def measured(case: Case) -> list[str]:
    """Dump `case` eagerly, as FX graph and compiled, and count what pairs."""
    program = case.subject().step
    with tempfile.TemporaryDirectory() as room:
        eager, graph, target = (Path(room, name) for name in ("eager", "fx", "target"))
        dump(program, eager, backward=case.training)
        dump(program, graph, mode="fx", backward=case.training)
        taken: list[Any] = []
        dumped = dump(
            program, target, mode=dumpcmp.Compiled(**WAYS[case.way]), backward=case.training,
            certify=True, watch=taken.append,
        )  # fmt: skip
        if dumped.error is not None:
            raise dumped.error
        by_op, by_module = dumpcmp.compare(graph, target), dumpcmp.compare(eager, target)
    tap, twins = taken[0].mode.tapping, taken[0].mode.tapping.twins
    certificate = dumped.certificate.partition(" as in")[0]
    modules = [row for row in outputs(by_module) if row.key.op.is_module]
    gradients = [r for r in by_op.rows if r.golden_key and r.key.slot.is_gradient]
    return [
        case.model, case.words, case.way, certificate.replace("not certified: ", ""),
        part(outputs(by_op)), part(modules), part(gradients),
        share(tap.num_captured, tap.num_computed), share(twins.same, twins.same + twins.other),
        str(sum(row.verdict.fails for row in by_op.rows)),
    ]  # fmt: skip


def outputs(outcome: Outcome) -> list[Row]:
    """The rows of what golden's ops and modules gave."""
    return [row for row in outcome.rows if row.golden_key and row.key.slot.is_output]


def part(rows: list[Row]) -> str:
    return share(sum(row.verdict in (Verdict.PASS, Verdict.DTYPE) for row in rows), len(rows))


def share(some: int, all_of_them: int) -> str:
    return f"{some} of {all_of_them} ({some / all_of_them:.0%})" if all_of_them else ""


HEADINGS = (
    "model", "run", "way", "against an untapped run", "ops", "module outputs", "gradients",
    "compute nodes", "kernels seen inside", "wrong",
)  # fmt: skip


def table() -> Table:
    rows = []
    for case in cases():
        rows.append(measured(case))
        print("| " + " | ".join(rows[-1]) + " |", file=sys.stderr, flush=True)
    how = (
        f"torch {torch.__version__}, CPU. Golden is an FX dump, for module outputs an eager one. "
        "Counted are golden's values that the compiled run has, too, and agrees with; wrong are "
        "those that fail. Certificates compare with a run that was compiled but not tapped."
    )
    return Table("compiled", HEADINGS, rows, how)


# Cost


def seconds_of(step: Callable[[], None], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


COSTS: dict[str, dict[str, Any]] = {
    "all values": {},
    "outputs only": {"io": "output"},
    "without twins": {"twin": False},
}


def costs(case: Case, rounds: int = 15) -> list[str]:
    """How much longer a step, and its compilation, takes under a capture."""
    torch._inductor.config.force_disable_caches = True
    first, plain = compiled_step(case, rounds)
    row = [case.model, case.words]
    compiling = []
    with tempfile.TemporaryDirectory() as room:
        for name, options in COSTS.items():
            step = case.subject().step
            with dumpcmp.capture(
                None, Path(room, name), mode="compiled", backward=case.training, **options
            ):  # fmt: skip
                began = time.perf_counter()
                step()
                compiling.append(time.perf_counter() - began)
                row.append(f"{seconds_of(step, rounds) / plain:.2f}x")
    return [*row, *(f"{seconds / first:.2f}x" for seconds in (compiling[0], compiling[-1]))]


def compiled_step(case: Case, rounds: int) -> tuple[float, float]:
    """Seconds of the first step, which compiles, and of the others."""
    torch._dynamo.reset()
    subject = case.subject()
    subject.model.compile()
    began = time.perf_counter()
    subject.step()
    return time.perf_counter() - began, seconds_of(subject.step, rounds)
