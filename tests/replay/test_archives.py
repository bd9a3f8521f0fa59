"""Whole dumps: every call of a model can be run again from its archive, and is right."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import demo
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import slots_in
from dumpcmp.replay.choosing import chooses
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4,
}  # fmt: skip
Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def decoder() -> Built:
    return demo.build(demo.Size(num_layers=1))


def huggingface(name: str, **settings: Any) -> Callable[[], Built]:
    def build() -> Built:
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{name}Config")(**SMALL | settings)
        torch.manual_seed(0)
        kind = "ForMaskedLM" if name == "Bert" else "ForCausalLM"
        return getattr(transformers, name + kind)(config).eval(), (torch.arange(1, 13)[None],)

    return build


MODELS: dict[str, Callable[[], Built]] = {
    "decoder": decoder,
    "llama": huggingface("Llama", num_key_value_heads=2),
    "mixtral": huggingface("Mixtral", num_key_value_heads=2, num_local_experts=4),
    "bert": huggingface("Bert"),
    "mamba": huggingface("Mamba", state_size=4),
}
CASES = [
    *((model, "eager", torch.bfloat16) for model in ("decoder", "mamba")),
    *((model, "aten", torch.bfloat16) for model in ("decoder", "mamba")),
    ("decoder", "fx", torch.bfloat16),
    ("mixtral", "eager", torch.float32),
]
LONG = [
    *((model, "eager", torch.bfloat16) for model in ("bert", "llama", "mixtral")),
    *((model, "aten", torch.bfloat16) for model in ("llama", "mixtral", "bert")),
    ("bert", "fx", torch.float32),
]
AT_LENGTH = [pytest.param(*case, marks=pytest.mark.long) for case in LONG]


def replayed(archive: dumpcmp.Archive, call: Call) -> list[str]:
    """What is wrong with what `call` gave out, in the light of its replay."""

    def tensor(slot: str) -> torch.Tensor:
        return archive.tensor(call.op, step=call.step, call=call.call, slot=slot, model=call.model)

    given = {slot: tensor(slot) for slot in slots_in(call.arguments)}
    again = rerun(call, given)
    if chooses(call, given, again.outputs):
        return []
    held = {slot: hold(again, slot, tensor(slot)) for slot in again.outputs}
    return [f"{call.op} {slot}: {said}" for slot, one in held.items()
            if (said := one.unknown or wrong(one))]  # fmt: skip


@pytest.mark.parametrize(
    "name, mode, dtype", [*CASES, *AT_LENGTH], ids=lambda part: str(part).split(".")[-1]
)
def test_every_call_of_a_dump_is_run_again_and_is_right(
    tmp_path: Path, name: str, mode: str, dtype: torch.dtype
) -> None:
    model, args = MODELS[name]()
    with torch.no_grad(), dumpcmp.capture(model.to(dtype), tmp_path / "dump", mode=mode):
        model(*args)
    torch.compiler.reset()
    archive = dumpcmp.Archive(tmp_path / "dump")
    calls = [call for call in archive.calls.values() if call.op.function]
    refused, wrongs = Counter[str](), []
    for call in calls:
        try:
            wrongs += replayed(archive, call)
        except (Unreplayable, dumpcmp.ArchiveError) as error:
            refused[error.message.rpartition(": ")[2]] += 1
    assert wrongs == []
    assert len(calls) > 20
    assert set(refused) <= {
        "it gives out memory as it was found",
        "memory that nobody has written to has no value",
    }
    assert sum(refused.values()) <= 2
