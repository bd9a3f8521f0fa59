"""A Llama of the shape of 8 B on a GPU: what a dump of prefill and decoding costs and sees."""

from __future__ import annotations

import itertools
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tables import Table
from dumpcmp.comparing.comparison import compare
from dumpcmp.dumping.capturing import capture
from dumpcmp.dumping.modes import Compiled
from dumpcmp.dumping.programs import dump
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.row import Verdict

SECONDS = 150.0  # after which no further row is begun
SAMPLED = Retention(sample_rows=64)
CHECKSUM = Retention("summary", checksum=True)
HEADINGS = [
    "model", "run", "captured", "prefill", "ratio", "a decode step", "ratio", "written", "seen",
]  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """The sizes of a Llama, and how much it generates."""

    layers: int = 32
    width: int = 4096
    inner: int = 14336
    heads: int = 32
    groups: int = 8
    vocabulary: int = 128256
    batch: int = 4
    prompt: int = 2048
    decoded: int = 32
    device: str = "cuda"

    @property
    def head(self) -> int:
        return self.width // self.heads


Cache = list[tuple[Tensor, Tensor]]  # of each layer: keys and values, as long as they may get


class Attention(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale
        width, short = scale.width, scale.groups * scale.head
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, short, bias=False), nn.Linear(width, short, bias=False)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], at: Tensor, cache: tuple[Tensor, Tensor]
    ) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, self.scale.head).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        keys, values = cache
        keys.index_copy_(2, at, turned(k, turn))
        values.index_copy_(2, at, v)
        if length > 1:  # the prompt, which is all that there is
            mixed = F.scaled_dot_product_attention(
                turned(q, turn), turned(k, turn), v, is_causal=True, enable_gqa=True
            )
        else:
            mask = torch.arange(keys.shape[2], device=x.device) <= at[:, None]
            mixed = F.scaled_dot_product_attention(
                turned(q, turn), keys, values, attn_mask=mask, enable_gqa=True
            )
        result: Tensor = self.o(mixed.transpose(1, 2).reshape(x.shape))
        return result


def turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """`x` with rotary positions."""
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat((-second, first), -1) * turn[1]


class Layer(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(scale.width), nn.RMSNorm(scale.width)
        self.attention = Attention(scale)
        self.gate = nn.Linear(scale.width, scale.inner, bias=False)
        self.up = nn.Linear(scale.width, scale.inner, bias=False)
        self.down = nn.Linear(scale.inner, scale.width, bias=False)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], at: Tensor, cache: tuple[Tensor, Tensor]
    ) -> Tensor:
        x = x + self.attention(self.norm1(x), turn, at, cache)
        y = self.norm2(x)
        down: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + down


class Llama(nn.Module):
    """Llama with a cache of fixed size; it gives the logits of the last token."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.head = scale.head
        self.embedding = nn.Embedding(scale.vocabulary, scale.width)
        self.layers = nn.ModuleList(Layer(scale) for _ in range(scale.layers))
        self.norm = nn.RMSNorm(scale.width)
        self.logits = nn.Linear(scale.width, scale.vocabulary, bias=False)

    def forward(self, tokens: Tensor, at: Tensor, cache: Cache) -> Tensor:
        rates = 1 / 500000 ** (torch.arange(0, self.head, 2, device=at.device) / self.head)
        angles = at[:, None] * torch.cat((rates, rates))
        x = self.embedding(tokens)
        turn = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer, held in zip(self.layers, cache, strict=True):
            x = layer(x, turn, at, held)
        result: Tensor = self.logits(self.norm(x[:, -1:]))
        return result


def made(scale: Scale) -> Llama:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(scale.device):
            model = Llama(scale).eval()
            for weight in model.parameters():
                if weight.dim() > 1:
                    nn.init.normal_(weight, std=0.02)
            return model
    finally:
        torch.set_default_dtype(before)


class Generation:
    """A prompt and what follows it, as a program that can be run again: tokens are given."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        most = scale.prompt + scale.decoded
        shape = (scale.batch, scale.groups, most, scale.head)
        self.cache = [
            tuple(torch.zeros(shape, dtype=torch.bfloat16, device=scale.device) for _ in "kv")
            for _ in range(scale.layers)
        ]
        for cached in itertools.chain.from_iterable(self.cache):
            torch._dynamo.mark_static_address(cached)  # or CUDA graphs would copy it
        numbers = torch.Generator().manual_seed(1)
        tokens = torch.randint(scale.vocabulary, (scale.batch, most), generator=numbers)
        self.tokens = tokens.to(scale.device)
        self.places = torch.arange(most, device=scale.device)

    def steps(self, call: Callable[..., Tensor]) -> Iterator[float]:
        """Seconds of each step: the prompt's, then one for each token."""
        place, after = 0, self.scale.prompt
        for cached in itertools.chain.from_iterable(self.cache):
            cached.zero_()
        with torch.no_grad():
            for _ in range(1 + self.scale.decoded):
                settle()
                began = time.perf_counter()
                call(self.tokens[:, place:after], self.places[place:after], self.cache)
                settle()
                yield time.perf_counter() - began
                place, after = after, after + 1

    def run(self, call: Callable[..., Tensor]) -> tuple[float, float]:
        """Seconds of the prompt, and of the median token."""
        first, *rest = self.steps(call)
        return first, statistics.median_low(rest)


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


Around = Callable[[Path], AbstractContextManager[object]]


def dumped(**options: Any) -> Around:
    return lambda path: capture(None, path, overwrite=True, **options)


def ways() -> dict[str, Around]:
    return {
        "no capture": lambda _: nullcontext(),
        "dump --level modules --keep summary": dumped(level="modules", keep="summary"),
        "dump --level modules --keep summary --checksum": dumped(level="modules", keep=CHECKSUM),
        "dump --level modules --sample-rows 64": dumped(level="modules", keep=SAMPLED),
        "dump --keep summary": dumped(keep="summary"),
        "dump --sample-rows 64": dumped(keep=SAMPLED),
    }


class Rows:
    """The rows of the table, each printed as it is known; none is begun after the time."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.perf_counter() + seconds
        self.rows: list[list[str]] = []
        self._base: tuple[float, float] = (0.0, 0.0)

    def add(self, names: list[str], measured: Callable[[], list[str]]) -> None:
        late = time.perf_counter() > self.ends
        empty = [""] * (len(HEADINGS) - len(names) - 1)
        self.rows.append([*names, *([*empty, "no time was left"] if late else measured())])
        print(self.rows[-1], flush=True)

    def timed(self, names: list[str], spent: tuple[float, float], path: Path, seen: str) -> None:
        if names[2] == "no capture":
            self._base = spent
        nbytes = sum(part.stat().st_size for part in path.rglob("*.h5"))
        times = [
            word
            for seconds, base in zip(spent, self._base, strict=True)
            for word in (f"{1000 * seconds:.1f} ms", f"{seconds / base:.2f} ×")
        ]
        self.add(names, lambda: [*times, f"{nbytes / 1e9:.2f} GB" if nbytes else "", seen])


def eager(rows: Rows, scale: Scale, room: Path) -> None:
    model, program = made(scale), Generation(scale)
    program.run(model)
    with capture(None, room / "warm", level="modules", keep="summary"):
        model(program.tokens, program.places, program.cache)
    for name, around in ways().items():
        if time.perf_counter() > rows.ends:
            rows.add([_name(scale), "eager", name], list)
            continue
        with around(room / "d"):
            spent = program.run(model)
        rows.timed([_name(scale), "eager", name], spent, room / "d", "")
        shutil.rmtree(room / "d", ignore_errors=True)


def compiled(rows: Rows, scale: Scale, room: Path) -> None:
    """Both of torch's ways to compile, against an eager dump of the same run."""
    model, program = made(scale), Generation(scale)
    with dumped(keep=SAMPLED)(room / "golden"):
        program.run(model)
    for how in ("default", "reduce-overhead"):
        call = torch.compile(model, mode=how, dynamic=False)
        program.run(call)
        rows.timed([_name(scale), how, "no capture"], program.run(call), room / "none", "")
        torch._dynamo.reset()
        rows.add([_name(scale), how, "dump --mode compiled --sample-rows 64"], list_of_compiled(
            model, program, how, room
        ))  # fmt: skip


def list_of_compiled(
    model: Llama, program: Generation, how: str, room: Path
) -> Callable[[], list[str]]:
    def measured() -> list[str]:
        spent: list[tuple[float, float]] = []

        def run() -> None:
            spent.append(program.run(torch.compile(model, mode=how, dynamic=False)))

        done = dump(run, room / how, mode=Compiled(), keep=SAMPLED, certify=True)
        nbytes = sum(part.stat().st_size for part in (room / how).rglob("*.h5"))
        first, token = spent[-1]
        seen = f"{done.error or done.certificate}; {told(room / 'golden', room / how)}"
        compiling = f"{1000 * first:.0f} ms with compilation"
        return [compiling, "", f"{1000 * token:.1f} ms", "", f"{nbytes / 1e9:.2f} GB", seen]

    return measured


def told(golden: Path, target: Path) -> str:
    """What a comparison came to."""
    outcome = compare(golden, target)
    wrong = [row for row in outcome.rows if row.verdict in (Verdict.FAIL, Verdict.NONFINITE)]
    first = f", first {wrong[0].key}" if wrong else ""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in outcome.tally.counts.items())
    return f"{outcome.word} ({counts}{first})"


def across(rows: Rows, scale: Scale, room: Path) -> None:
    """The same weights and tokens on the CPU and on the GPU."""

    def measured() -> list[str]:
        model = made(scale)
        seconds = []
        for device in ("cpu", scale.device):
            place = replace(scale, device=device)
            program = Generation(place)
            with dumped()(room / f"on-{device}"):
                began = time.perf_counter()
                program.run(model.to(device))
                seconds.append(time.perf_counter() - began)
        nbytes = sum(part.stat().st_size for part in room.rglob("on-*/**/*.h5"))
        seen = told(room / "on-cpu", room / f"on-{scale.device}")
        spent = f"{seconds[0]:.1f} s on the CPU, {seconds[1]:.1f} s on the GPU"
        return [spent, "", "", "", f"{nbytes / 1e9:.2f} GB", seen]

    rows.add([_name(scale), "eager", "dump, CPU against GPU"], measured)


def _name(scale: Scale) -> str:
    return f"{scale.layers} layers, {scale.batch} x {scale.prompt} + {scale.decoded}"


def measured(large: Scale, short: Scale, few: Scale, seconds: float = SECONDS) -> list[list[str]]:
    """All rows: costs of the `large` one, compilation of the `short` one, `few` tokens on both."""
    rows = Rows(seconds)
    for part, scale in ((across, few), (eager, large), (compiled, short)):
        room = Path(tempfile.mkdtemp())
        part(rows, scale, room)
        shutil.rmtree(room)
    return rows.rows


def table() -> Table:
    title = "A Llama of the shape of 8 B"
    if not torch.cuda.is_available():
        return Table(title, ["needs"], [["a CUDA device, which this machine does not have"]])
    few = Scale(layers=2, batch=1, prompt=64, decoded=2)
    rows = measured(Scale(), Scale(layers=2, decoded=4), few)
    how = (
        f"Random weights, bf16, d {Scale.width}, {Scale.heads} heads in {Scale.groups} groups, "
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python "
        f"{platform.python_version()}. Each step until the device is idle; of tokens the median."
    )
    return Table(title, HEADINGS, rows, how)
