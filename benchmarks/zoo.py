"""Real models in small, and how they are run, for benchmarks of pairing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.awkward import (
    HEADS,
    WIDTH,
    EarlyReturn,
    InPlace,
    OwnNorm,
    Rearranged,
    Recurrent,
    Unpacking,
)

VOCABULARY = 96


@dataclass(frozen=True)
class Specimen:
    """A model, and what it is called with."""

    model: nn.Module
    given: dict[str, Tensor]
    is_autocast: bool = False  # to bfloat16
    num_rounds: int = 1  # of forward and backward before the gradients are used


def ids(length: int = 8, batch: int = 2) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length))}


def decoder(name: str, **options: Any) -> Specimen:
    """A causal model of transformers by the stem of its classes."""
    import transformers

    usual = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**(usual | options))
    return Specimen(getattr(transformers, f"{name}ForCausalLM")(config), ids())


def llama() -> Specimen:
    return decoder("Llama")


def llama_checkpointed() -> Specimen:
    specimen = decoder("Llama", use_cache=False)
    specimen.model.gradient_checkpointing_enable()  # type: ignore[operator]
    return specimen


def llama_accumulated() -> Specimen:
    return replace(llama(), num_rounds=2)


def qwen3_moe() -> Specimen:
    return decoder("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                    head_dim=8)  # fmt: skip


def mixtral() -> Specimen:
    return decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2)


def gemma3() -> Specimen:
    import transformers

    config = transformers.Gemma3TextConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=2, head_dim=8, sliding_window=4,
        max_position_embeddings=64, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    return Specimen(transformers.Gemma3ForCausalLM(config), ids())


def gpt2() -> Specimen:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Specimen(transformers.GPT2LMHeadModel(config), ids())


def gpt2_autocast() -> Specimen:
    return replace(gpt2(), is_autocast=True)


def bert() -> Specimen:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=HEADS, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 6:] = 0
    return Specimen(transformers.BertForMaskedLM(config), {**ids(), "attention_mask": mask})


def t5() -> Specimen:
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=HEADS,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    given = {**ids(), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5))}
    return Specimen(transformers.T5ForConditionalGeneration(config), given)


def vit() -> Specimen:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS,
        image_size=16, patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return Specimen(model, {"pixel_values": torch.randn(2, 3, 16, 16)})


def whisper() -> Specimen:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=48,
        decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=16, max_target_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0.0,
    )  # fmt: skip
    given = {
        "input_features": torch.randn(2, 8, 32),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5)),
    }
    return Specimen(transformers.WhisperForConditionalGeneration(config), given)


def mamba() -> Specimen:
    import transformers

    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, state_size=4,
        time_step_rank=4, use_cache=False,
    )  # fmt: skip
    return Specimen(transformers.MambaForCausalLM(config), ids())


def clip() -> Specimen:
    import transformers

    tower = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": HEADS}  # fmt: skip
    config = transformers.CLIPConfig(
        text_config={**tower, "vocab_size": VOCABULARY, "max_position_embeddings": 16,
                     "eos_token_id": 2},
        vision_config={**tower, "image_size": 16, "patch_size": 8}, projection_dim=16,
    )  # fmt: skip
    given = {**ids(), "pixel_values": torch.randn(2, 3, 16, 16)}
    return Specimen(transformers.CLIPModel(config), given)


class ConvNet(nn.Module):
    """Convolutions, batch norm, pooling and a shortcut."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width))
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(width * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.stem(x))
        x = torch.relu(self.body(x) + x)
        out: Tensor = self.head(self.pool(x).flatten(1))
        return out


def convnet() -> Specimen:
    return Specimen(ConvNet(), {"x": torch.randn(2, 3, 8, 8)})


class UNet(nn.Module):
    """Down, middle and up with skips, group norm and a time embedding."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.first, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, 2, 1)
        self.norm, self.middle = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(width, width, 2, 2), nn.Conv2d(2 * width, 3, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(4, device=t.device) * 0.5)[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))[:, :, None, None]
        first = self.first(x)
        low = self.down(first)
        low = low + self.middle(F.silu(self.norm(low + time)))
        batch, width = low.shape[:2]
        flat = low.reshape(batch, width, -1).transpose(1, 2)
        low = low + F.scaled_dot_product_attention(flat, flat, flat).transpose(1, 2).view_as(low)
        up = F.interpolate(self.up(low), size=x.shape[-2:], mode="nearest")
        out: Tensor = self.last(torch.cat([up, first], 1))
        return out


def unet() -> Specimen:
    return Specimen(UNet(), {"x": torch.randn(2, 3, 8, 8), "t": torch.tensor([1.0, 7.0])})


def awkward(build: Callable[[], nn.Module]) -> Callable[[], Specimen]:
    return lambda: Specimen(build(), {"x": torch.randn(2, 6, WIDTH)})


def causal(name: str, **options: Any) -> Callable[[], Specimen]:
    return lambda: decoder(name, **options)


def roberta() -> Specimen:
    import transformers

    config = transformers.RobertaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=HEADS, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=1,
    )  # fmt: skip
    return Specimen(transformers.RobertaForSequenceClassification(config), ids())


def convnext() -> Specimen:
    import transformers

    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=16, patch_size=2
    )
    model = transformers.ConvNextForImageClassification(config)
    return Specimen(model, {"pixel_values": torch.randn(2, 3, 16, 16)})


MODELS: dict[str, Callable[[], Specimen]] = {
    "Llama": llama,
    "Llama, checkpointed": llama_checkpointed,
    "Llama, accumulated": llama_accumulated,
    "Qwen3-MoE": qwen3_moe,
    "Mixtral": mixtral,
    "Gemma-3": gemma3,
    "GPT-2": gpt2,
    "GPT-2, autocast": gpt2_autocast,
    "BERT": bert,
    "RoBERTa": roberta,
    "T5": t5,
    "ViT": vit,
    "ConvNeXt": convnext,
    "Whisper": whisper,
    "Mamba": mamba,
    "CLIP": clip,
    "conv net": convnet,
    "U-Net": unet,
    "unpacking": awkward(Unpacking),
    "in place": awkward(InPlace),
    "early return": awkward(EarlyReturn),
    "formulas": awkward(OwnNorm),
    "patterns": awkward(Rearranged),
    "recurrent": awkward(Recurrent),
    "Qwen2": causal("Qwen2"),
    "Phi-3": causal("Phi3"),
    "Granite": causal("Granite"),
    "OLMo-2": causal("Olmo2"),
}
GENERATING = frozenset(
    (
        "Llama",
        "Qwen3-MoE",
        "Mixtral",
        "Gemma-3",
        "GPT-2",
        "GPT-2, autocast",
        "T5",
        "Whisper",
        "Mamba",
    )
)
TRAINING = frozenset(("Llama, accumulated",))  # for nothing else


def run_of(specimen: Specimen, kind: str) -> Callable[[], None]:
    """A run of the specimen: ``inference``, ``generation`` of three tokens, or ``training``."""
    model, given = specimen.model, specimen.given
    model.train(kind == "training")
    state = {name: value.clone() for name, value in model.state_dict().items()}

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=specimen.is_autocast)

    def step() -> None:
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        if kind == "training":
            for _ in range(specimen.num_rounds):
                with autocast:
                    out = first_tensor(model(**given))
                (out.float() * cotangent(out)).sum().backward()  # type: ignore[no-untyped-call]
            return
        with torch.no_grad(), autocast:
            if kind == "generation":
                asked = {k: v for k, v in given.items() if not k.startswith("decoder")}
                model.generate(**asked, max_new_tokens=3, do_sample=False)  # type: ignore[operator]
            else:
                model(**given)

    return step


def cotangent(out: Tensor) -> Tensor:
    """The same random gradient in every run; a mean of squares near zero would only amplify."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1))


def first_tensor(value: Any) -> Tensor:
    """The first tensor of what a model returns."""
    if isinstance(value, Tensor):
        return value
    return first_tensor(next(iter(value.values() if isinstance(value, dict) else value)))
