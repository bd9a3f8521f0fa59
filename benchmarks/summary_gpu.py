"""What summaries of every module's output cost a GPU that is busy: slow-down of one step."""

import random
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.tables import Table
from dumpcmp.measure.device import Summariser
from dumpcmp.measure.packing import unpack
from dumpcmp.measure.summary import Recipe, summarise
from dumpcmp.tensors import value_of

LAYERS, WIDTH, HEADS, TOKENS = 16, 2048, 16, 8192
REPEATS = 25


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


def taps(staging: Tensor) -> dict[str, Callable[[Tensor], object] | None]:
    """What each row does with an output; summaries leave for pinned memory at once."""
    summariser, place = Summariser(Recipe()), [0]

    def summary(output: Tensor) -> None:
        row = summariser(output)
        if row is not None:
            size = row.numbers.numel()
            at = place[0] % (staging.numel() - size)
            staging[at : at + size].copy_(row.numbers, non_blocking=True)
            place[0] = at + size

    def five(output: Tensor) -> None:
        output.amin(), output.amax(), output.mean(), output.std(), output.norm()

    return {
        "no capture": None,
        "hooks that do nothing": lambda _: None,
        "aminmax": lambda output: output.aminmax(),
        "five statistics, eager": five,
        "summary (ours)": summary,
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
    title = "A GPU step with summaries of every module's output"
    if not torch.cuda.is_available():
        return Table(title, ["needs"], [["a CUDA device, which this machine does not have"]])
    agreed = check()
    model = nn.Sequential(*(Block() for _ in range(LAYERS))).cuda().bfloat16().eval()
    x = torch.randn(4, TOKENS // 4, WIDTH, device="cuda", dtype=torch.bfloat16)
    staging = torch.empty(1 << 22, dtype=torch.float64, pin_memory=True)
    chosen = taps(staging)
    times: dict[str, list[float]] = {name: [] for name in chosen}
    order = random.Random(0)  # what ran before sets the clocks that a step finds
    with torch.no_grad():
        for repeat in range(REPEATS + 3):
            for name in order.sample(list(chosen), len(chosen)):
                see = chosen[name]
                with hooked(model, see) if see else ExitStack():
                    spent = seconds(lambda: model(x))
                if repeat >= 3:
                    times[name].append(spent)
    base = statistics.median(times["no capture"])
    rows = [
        [name, f"{1000 * statistics.median(ts):.2f} ms", f"{statistics.median(ts) / base:.2f} ×"]
        for name, ts in times.items()
    ]
    how = (
        f"{LAYERS} decoder layers, d {WIDTH}, {TOKENS} tokens, bf16, forward, "
        f"{torch.cuda.get_device_name()}; median of {REPEATS} repeats in shuffled order. "
        f"Goal: at most 1.3 ×. {agreed}."
    )
    return Table(title, ["captured", "step", "ratio"], rows, how)
