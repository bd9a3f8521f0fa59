"""Two implementations of one model: the mapping that is proposed, and faults behind it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dumpcmp
from benchmarks import hand_held_out, hand_llama, zoo
from benchmarks.tables import Table

HEADINGS = ("golden", "port", "planted", "lines proposed", "modules left", "exit", "named")
TOKENS = torch.arange(3, 19).reshape(2, 8)
Plant = Callable[[Any], None]


def interleaved(x: Tensor) -> Tensor:
    """The other rotary convention: pairs lie side by side, not half a head apart."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def turned_in_pairs(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    one, other = x[..., ::2], x[..., 1::2]
    return torch.stack((one * cos - other * sin, other * cos + one * sin), -1).flatten(-2)


def other_rotary(model: hand_llama.OwnLlama) -> None:
    for block in model.blocks:
        block.mix.rotated = interleaved  # type: ignore[union-attr]


def other_split(model: hand_llama.OwnLlama) -> None:
    for block in model.blocks:
        weight: Any = block.mix.wqkv.weight.data  # type: ignore[union-attr]
        q, k, v = weight.split(hand_llama.Mixer.sizes)
        block.mix.wqkv.weight.data = torch.cat((q, v, k))  # type: ignore[union-attr]


def other_order(model: hand_llama.OwnLlama) -> None:
    for block in model.blocks:
        block.norm1, block.norm2 = block.norm2, block.norm1


def megatron_rotary(model: hand_held_out.MegatronLlama) -> None:
    for layer in model.layers:
        layer.turned = turned_in_pairs  # type: ignore[assignment]


def megatron_split(model: hand_held_out.MegatronLlama) -> None:
    for layer in model.layers:
        weight: Any = layer.linear_qkv.weight.data  # type: ignore[union-attr]
        groups = weight.view(hand_llama.GROUPS, -1, hand_llama.HEAD, hand_llama.WIDTH)
        layer.linear_qkv.weight.data = groups.roll(1, 1).reshape(weight.shape)  # type: ignore[union-attr]


def gpt2_order(model: hand_held_out.HandGpt2) -> None:
    for block in model.blocks:
        block.norm_a, block.norm_b = block.norm_b, block.norm_a


def nothing(_: Any) -> None:
    pass


CASES: list[tuple[str, Callable[[], Any], Plant]] = [
    ("llama", hand_llama.OwnLlama, plant)
    for plant in (nothing, other_rotary, other_split, other_order)
]
HELD_OUT: list[tuple[str, Callable[[], Any], Plant]] = [
    *(
        ("llama", hand_held_out.MegatronLlama, p)
        for p in (nothing, megatron_rotary, megatron_split)
    ),
    *(("gpt2", hand_held_out.HandGpt2, plant) for plant in (nothing, gpt2_order)),
]


def theirs(name: str) -> nn.Module:
    """A model of transformers, whose norms and biases are no constants."""
    torch.manual_seed(0)
    model = {"llama": zoo.llama, "gpt2": zoo.gpt2}[name]().model.eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def dumped(model: nn.Module, path: Path) -> Path:
    with torch.no_grad(), dumpcmp.capture(model.eval(), path):
        model(TOKENS)
    return path


def rows(cases: list[tuple[str, Callable[[], Any], Plant]]) -> Iterator[list[str]]:
    for name, build, plant in cases:
        with tempfile.TemporaryDirectory() as place:
            room, golden = Path(place), theirs(name)
            port = build()
            port.take(golden)
            plant(port)
            paths = dumped(golden, room / "d1"), dumped(port, room / "d2")
            proposal = dumpcmp.propose_mapping(*paths)
            outcome = dumpcmp.compare(*paths, mapping=proposal.write(room / "map.yaml"))
            first = outcome.first_divergence
            left = ", ".join(proposal.golden_left) or "none"
            named = f"{first.key.op} {first.key.slot}" if first else ""
            yield [name, build.__name__, plant.__name__.replace("_", " "),
                   str(len(proposal.lines)), left, str(outcome.exit_code), named]  # fmt: skip


def table(held_out: bool = False) -> Table:
    how = "Hugging Face's model is golden; the mapping is what `dumpcmp map` proposes, unread."
    return Table("ports", HEADINGS, list(rows(HELD_OUT if held_out else CASES)), how)


if __name__ == "__main__":
    print(table(held_out="--held-out" in sys.argv).to_markdown())
