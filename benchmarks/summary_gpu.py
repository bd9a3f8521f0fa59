"""What ``--keep summary`` costs a GPU that is busy: slow-down of one step, at module level."""

import random
import statistics
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.tables import Table
from dumpcmp.dumping.capturing import capture
from dumpcmp.nouns.value import value_of
from dumpcmp.summary.gpu.device import Summariser
from dumpcmp.summary.packing import unpack
from dumpcmp.summary.summary import Recipe, summarise

LAYERS, WIDTH, HEADS, TOKENS = 16, 2048, 16, 8192
REPEATS, STEPS = 12, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down, self.act = nn.Linear(4 * WIDTH, WIDTH), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, -1).unbind(2)
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


def seconds(run: Callable[[], None]) -> float:
    new: Any = torch.cuda.Event
    begin, end = new(enable_timing=True), new(enable_timing=True)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def five(output: Tensor) -> None:
    output.amin(), output.amax(), output.mean(), output.std(), output.norm()


def ways() -> dict[str, Callable[[nn.Module, str], AbstractContextManager[object]]]:
    """What stands around the model in each row; captures write to a path."""
    summariser = Summariser(Recipe())

    def kept(**options: Any) -> Callable[[nn.Module, str], AbstractContextManager[object]]:
        return lambda model, path: capture(model, path, level="modules", **options)

    def seen(see: Callable[[Tensor], object]) -> Callable[[nn.Module, str], ExitStack]:
        return lambda model, _: hooked(model, see)

    return {
        "no capture": lambda _model, _path: nullcontext(),
        "hooks that do nothing": seen(lambda _: None),
        "aminmax of every output, by hooks": seen(lambda output: output.aminmax()),
        "five statistics, eager, by hooks": seen(five),
        "our summaries of every output, by hooks": seen(summariser),
        "dump --keep summary --io output": kept(keep="summary", io="output"),
        "dump --keep summary": kept(keep="summary"),
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
    title = "A GPU step with summaries of every module"
    if not torch.cuda.is_available():
        return Table(title, ["needs"], [["a CUDA device, which this machine does not have"]])
    agreed = check()
    model = nn.Sequential(*(Block() for _ in range(LAYERS))).cuda().bfloat16().eval()
    x = torch.randn(4, TOKENS // 4, WIDTH, device="cuda", dtype=torch.bfloat16)
    chosen = ways()
    times: dict[str, list[float]] = {name: [] for name in chosen}
    order = random.Random(0)  # what ran before sets the clocks that a step finds
    with torch.no_grad():
        for repeat in range(REPEATS + 2):
            for name in order.sample(list(chosen), len(chosen)):
                spent = steps(model, x, chosen[name])
                if repeat >= 2:
                    times[name] += spent
    base = statistics.median(times["no capture"])
    rows = [
        [name, f"{1000 * statistics.median(ts):.2f} ms", f"{statistics.median(ts) / base:.2f} ×"]
        for name, ts in times.items()
    ]
    how = (
        f"{LAYERS} decoder layers, d {WIDTH}, {TOKENS} tokens, bf16, forward, module level, "
        f"{torch.cuda.get_device_name()}; median of {REPEATS} times {STEPS - 1} steps in shuffled "
        f"order. Goal: at most 1.3 ×. {agreed}."
    )
    return Table(title, ["captured", "step", "ratio"], rows, how)


def steps(model: nn.Module, x: Tensor, way: Any) -> list[float]:
    """Seconds of steps one after another, without the first and without opening and closing."""
    with tempfile.TemporaryDirectory() as room, way(model, f"{room}/d"):
        return [seconds(lambda: model(x)) for _ in range(STEPS)][1:]
