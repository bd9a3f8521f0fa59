"""What a capture costs: slow-down of a training step, beside the same step uncaptured."""

from __future__ import annotations

import gc
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.bytes_alone import hand_over, handing_over
from benchmarks.tables import Table
from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.capturing import capture

NUM_ROUNDS = 9
NUM_WARM = 3  # steps before: names, lines, and the heap, which grows in the second one still


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.ln2(x))))
        return out


class Transformer(nn.Module):
    """The 4-layer transformer that other tools were measured on: d 256, sequence 128, batch 4."""

    def __init__(self, width: int = 256, num_layers: int = 4, vocabulary: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x)).mean()
        return out


class Unit(nn.Module):
    """Two convolutions and what they were given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(x + self.last(self.second(y)))


class Tagger(nn.Module):
    """Convolutions over an image, a recurrent layer over its columns."""

    def __init__(self, width: int = 32, num_units: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.units = nn.ModuleList(Unit(width) for _ in range(num_units))
        self.read = nn.GRU(16 * width, 256, batch_first=True)
        self.head = nn.Linear(256, 64)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        for unit in self.units:
            x = unit(x)
        columns, _ = self.read(F.avg_pool2d(x, 2).permute(0, 3, 1, 2).flatten(2))
        out: Tensor = self.head(columns).log_softmax(-1).square().mean()
        return out


See = Callable[[Tensor], None]


class Onlooker(TorchFunctionMode):
    """Is told of every function, of what it gives, and of the gradient of that."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        for tensor in given if isinstance(given, (tuple, list)) else (given,):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                self._see(tensor)
                tensor.register_hook(self._see)  # type: ignore[no-untyped-call]
        return given


def nothing(*_: object) -> None:
    """What who only looks on does."""


@contextmanager
def looked_on(model: nn.Module, see: See = nothing) -> Iterator[None]:
    """Have `see` see what functions of `model` give, and gradients; hooks of modules do nothing."""
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(nothing).remove)
            hooks.callback(module.register_forward_hook(nothing).remove)
        for parameter in model.parameters():
            take: Any = parameter.register_post_accumulate_grad_hook
            hooks.callback(take(lambda each: see(each.grad)).remove)
        hooks.enter_context(Onlooker(see))
        yield


@contextmanager
def handed_on(model: nn.Module, sizes: list[int]) -> Iterator[None]:
    """Have the bytes of all that copied, digested and written by another thread, and nothing else.

    `sizes` gets those of each.
    """
    with tempfile.TemporaryFile(buffering=0) as file, handing_over(file.fileno()) as give:

        def see(tensor: Tensor) -> None:
            array = tensor.detach().contiguous().numpy()
            sizes.append(array.nbytes)
            give(array)

        with looked_on(model, see):
            yield


LOOKED_ON = "functions, modules and gradients, seen by who does nothing"
HANDED_ON = "functions and gradients, copied, digested and written as they are seen"
Variant = tuple[str, dict[str, Any] | None, str]  # its name, what is captured, the goal
VARIANTS: list[Variant] = [
    ("no capture", None, ""),
    (LOOKED_ON, None, ""),
    (HANDED_ON, None, ""),
    ("eager, functions, all values and gradients", {"backward": True}, "1.6, 1.35"),
    ("eager, functions, all values, no gradients", {}, ""),
    ("eager, modules, all values and gradients", {"backward": True, "level": "modules"}, ""),
    ("eager, modules, outputs only", {"level": "modules", "io": "output"}, "1.08"),
    ("aten, all values", {"mode": "aten"}, ""),
    ("fx, all values and gradients", {"mode": "fx", "backward": True}, ""),
]
ALONE = "as many bytes as {}: copied, digested, and written by another thread"
SHORT = {VARIANTS[3][0]: "all values and gradients", VARIANTS[6][0]: "outputs of modules"}


def table() -> Table:
    """Measure every variant, interleaved, and set it beside the uncaptured step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformer, tokens = Transformer(), torch.randint(0, 512, (4, 128))
    tagger, images = Tagger(), torch.randn(4, 3, 32, 32)
    first, step = rows_of("transformer", transformer, tokens, VARIANTS)
    second, other = rows_of("tagger", tagger, images, [VARIANTS[n] for n in (0, 1, 2, 3, 6)])
    return Table(
        "capture",
        ["model", "capture", "CPU time", "wall time", "MiB a step", "goal"],
        first + second,
        f"Slow-down of one training step (forward and backward) of a 4-layer transformer, d 256, "
        f"sequence 128, batch 4 ({step * 1e3:.0f} ms uncaptured), and of convolutions with batch "
        f"norms and a GRU behind them ({other * 1e3:.0f} ms), one thread: medians of {NUM_ROUNDS} "
        f"rounds in changing order, each the step after {NUM_WARM} others. CPU time is that of the "
        "whole process, with the thread that writes; the archive lies on the local disk. The last "
        "rows capture nothing: to the step they add what its bytes cost, in values of the same "
        "sizes that lie in the cache.",
    )


def rows_of(
    subject: str, model: nn.Module, given: Tensor, variants: list[Variant]
) -> tuple[list[list[str]], float]:
    """The rows of one model, and the seconds of its uncaptured step."""
    cpu: dict[str, list[float]] = {name: [] for name, _, _ in variants}
    wall: dict[str, list[float]] = {name: [] for name, _, _ in variants}
    sizes: dict[str, list[int]] = {}
    order = random.Random(0)  # what ran before decides what the caches hold
    for _ in range(NUM_ROUNDS):
        for name, selection, _ in order.sample(variants, len(variants)):
            seen: list[int] = []
            with around(name, model, seen):
                seconds, sizes[name] = measured(model, given, selection)
            sizes[name] = sizes[name] or seen[: len(seen) // (NUM_WARM + 1)]
            cpu[name].append(seconds[0])
            wall[name].append(seconds[1])
    base = variants[0][0]
    rows = [
        [subject, name, _ratio(cpu[name], cpu[base]), _ratio(wall[name], wall[base]),
         f"{sum(sizes[name]) / 2**20:.0f}", goal and f"≤ {goal}"]
        for name, _, goal in variants
    ]  # fmt: skip
    for name in SHORT:  # by themselves, since the files that they remove slow down others
        used, took = map(list, zip(*(handled(sizes[name]) for _ in range(NUM_ROUNDS)), strict=True))
        with_step = _beside(used, cpu[base]), _beside(took, wall[base])
        size = f"{sum(sizes[name]) / 2**20:.0f}"
        rows.append([subject, ALONE.format(SHORT[name]), *with_step, size, ""])
    return rows, statistics.median(wall[base])


def around(name: str, model: nn.Module, seen: list[int]) -> AbstractContextManager[None]:
    """Who is around a step that is not captured."""
    if name == HANDED_ON:
        return handed_on(model, seen)
    return looked_on(model) if name == LOOKED_ON else nullcontext()


def measured(
    model: nn.Module, given: Tensor, selection: dict[str, Any] | None
) -> tuple[tuple[float, float], list[int]]:
    """CPU and wall seconds of one step, and the bytes of each value that it wrote."""
    with tempfile.TemporaryDirectory() as room:
        path = Path(room, "d1")
        context: AbstractContextManager[Any] = (
            nullcontext() if selection is None else capture(model, path, **selection)
        )
        with context:
            for turn in range(NUM_WARM):  # not the same values, which steps would share
                one_step(model, given.roll(turn + 1, -1))
            seconds = timed(lambda: one_step(model, given))
        return seconds, [] if selection is None else written_by(path, NUM_WARM)


def written_by(path: Path, step: int) -> list[int]:
    """The bytes of each value that `step` holds itself."""
    places = {record.location for record in Archive(path).values()}
    return [each.nbytes for each in places if each and Path(each.part).parent.name == str(step)]


def handled(sizes: Sequence[int]) -> tuple[float, float]:
    """CPU and wall seconds to copy so many bytes, digest them, and have a thread write them."""
    sources = {size: np.ones(size, np.uint8) for size in {*sizes}}
    with tempfile.TemporaryFile(buffering=0) as file:
        return timed(lambda: hand_over([sources[size] for size in sizes], file.fileno()))


def one_step(model: nn.Module, given: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(given).backward()


def timed(run: Callable[[], None]) -> tuple[float, float]:
    gc.collect()
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    run()
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return cpu, time.perf_counter() - began


def _ratio(times: list[float], base: list[float]) -> str:
    return f"{statistics.median(times) / statistics.median(base):.2f} ×"


def _beside(times: list[float], base: list[float]) -> str:
    """The ratio of a step that does this besides."""
    return f"{1 + statistics.median(times) / statistics.median(base):.2f} ×"
