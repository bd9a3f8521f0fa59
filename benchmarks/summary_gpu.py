"""What ``--keep summary`` costs a GPU that is busy: slow-down of one step, by modules and ops."""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.tables import Table
from dumpcmp.dumping.capturing import capture
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.value import value_of
from dumpcmp.summary.gpu.device import Summariser
from dumpcmp.summary.packing import unpack
from dumpcmp.summary.summary import Recipe, summarise

LAYERS, WIDTH, HEADS, TOKENS = 16, 2048, 16, 8192
STEPS, FIRST = 9, 5  # of a capture, and those that are measured: calls are learnt before
SUMMARY, CHECKSUM = Retention("summary"), Retention("summary", checksum=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder, and how often its steps are measured."""

    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    tokens: int
    repeats: int
    brief: bool = False  # without the rows that only explain others


SMALL = Shape("16 layers, d 2048, 8192 tokens", LAYERS, WIDTH, 4 * WIDTH, HEADS, TOKENS, 5)
LARGE = Shape("8 B: 32 layers, d 4096, 4096 tokens", 32, 4096, 14336, 32, 4096, 2, True)


class Block(nn.Module):
    def __init__(self, width: int = WIDTH, hidden: int = 4 * WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down, self.act = nn.Linear(hidden, width), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).unbind(2)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        down: Tensor = self.down(self.act(self.gate(y)) * self.up(y))
        return x + down


def hooked(model: nn.Module, see: Callable[[Tensor], object]) -> ExitStack:
    def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        see(output)

    hooks = ExitStack()
    for module in model.modules():
        hooks.callback(module.register_forward_hook(hook).remove)
    return hooks


def seconds(run: Callable[[], None]) -> tuple[float, float]:
    """What the device took, and after how long the program went on."""
    new: Any = torch.cuda.Event
    begin, end = new(enable_timing=True), new(enable_timing=True)
    began = time.perf_counter()
    begin.record()
    run()
    end.record()
    issued = time.perf_counter() - began
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000, issued


def five(output: Tensor) -> None:
    output.amin(), output.amax(), output.mean(), output.std(), output.norm()


@contextmanager
def debug_mode(_model: nn.Module, _path: str) -> Any:
    """PyTorch's own DebugMode, with a hash of every tensor that an op gives."""
    kind: Any = import_module("torch.utils._debug_mode").DebugMode
    with kind(), kind.log_tensor_hashes():
        yield


def ways() -> dict[str, Callable[[nn.Module, str], AbstractContextManager[object]]]:
    """What stands around the model in each row; captures write to a path."""
    summariser = Summariser(Recipe())

    def kept(
        level: str, keep: Retention = SUMMARY, **options: Any
    ) -> Callable[..., AbstractContextManager[object]]:
        return lambda model, path: capture(model, path, level=level, keep=keep, **options)

    def seen(see: Callable[[Tensor], object]) -> Callable[[nn.Module, str], ExitStack]:
        return lambda model, _: hooked(model, see)

    return {
        "no capture": lambda _model, _path: nullcontext(),
        "hooks that do nothing": seen(lambda _: None),
        "aminmax of every output, by hooks": seen(lambda output: output.aminmax()),
        "five statistics, eager, by hooks": seen(five),
        "our summaries of every output, by hooks": seen(summariser),
        "dump --level modules --io output": kept("modules", io="output"),
        "dump --level modules --io output --checksum": kept("modules", CHECKSUM, io="output"),
        "dump --level modules": kept("modules"),
        "dump --io output": kept("functions", io="output"),
        "dump": kept("functions"),
        "DebugMode with hashes of outputs": debug_mode,
    }


def check() -> str:
    """That the kernel gives on this device what the host gives."""
    tensor = torch.randn(300, 5000, device="cuda", dtype=torch.bfloat16)
    row = Summariser(Recipe())(tensor)
    assert row is not None
    got = unpack(row.stored, row.numbers.cpu().numpy(), "bfloat16", tuple(tensor.shape))
    expected = summarise(value_of(tensor))
    assert got.sketch is not None and expected.sketch is not None
    worst = abs(got.sketch.sums - expected.sketch.sums).max()
    assert (got.min, got.max, got.num_zero) == (expected.min, expected.max, expected.num_zero)
    return f"sketch on the device and on the host differ by at most {worst:.1e}"


def table() -> Table:
    title = "A GPU step with summaries"
    if not torch.cuda.is_available():
        return Table(title, ["needs"], [["a CUDA device, which this machine does not have"]])
    agreed = check()
    rows = [row for shape in (SMALL, LARGE) for row in measured(shape)]
    how = (
        f"Decoder layers, bf16, forward, {torch.cuda.get_device_name()}, torch "
        f"{torch.__version__}; dumps with --keep summary. Medians of steps {FIRST} to {STEPS - 1} "
        f"of captures in {SMALL.repeats} and {LARGE.repeats} rounds, in shuffled order; issued "
        f"is until the program goes on. Goals: 1.15 × by modules, 1.5 × by functions. {agreed}."
    )
    return Table(title, ["model", "captured", "step", "ratio", "issued"], rows, how)


def measured(shape: Shape) -> list[list[str]]:
    """The rows of one model."""
    blocks = (Block(shape.width, shape.hidden, shape.heads) for _ in range(shape.layers))
    with torch.device("cuda"):
        model = nn.Sequential(*(block.bfloat16() for block in blocks)).eval()
    size = (4, shape.tokens // 4, shape.width)
    x = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    chosen = {name: way for name, way in ways().items() if not (shape.brief and "hook" in name)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    order = random.Random(0)  # what ran before sets the clocks that a step finds
    with torch.no_grad():
        for repeat in range(shape.repeats + 1):
            for name in order.sample(list(chosen), len(chosen)):
                spent = steps(model, x, chosen[name])
                times[name] += spent if repeat else []
    base = statistics.median(step for step, _ in times["no capture"])
    rows = []
    for name, spent in times.items():
        step, issued = (statistics.median(each) for each in zip(*spent, strict=True))
        told = [f"{1000 * step:.2f} ms", f"{step / base:.2f} ×", f"{1000 * issued:.1f} ms"]
        rows.append([shape.name, name, *told])
        print(rows[-1], flush=True)
    return rows


def steps(model: nn.Module, x: Tensor, way: Any) -> list[tuple[float, float]]:
    """Seconds of steps one after another, without the first ones, opening and closing."""
    with tempfile.TemporaryDirectory() as room, way(model, f"{room}/d"):
        return [seconds(lambda: model(x)) for _ in range(STEPS)][FIRST:]
