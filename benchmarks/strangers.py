"""Models of the pairing benchmark that nothing was tuned on: looked at when all else is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.awkward import HEADS, WIDTH
from benchmarks.zoo import VOCABULARY, Specimen, awkward, causal, ids


def _of(model: str, config: str, given: Callable[[], dict[str, Tensor]], **options: Any) -> Any:
    """A model of transformers by its class and that of its config."""

    def build() -> Specimen:
        import transformers

        made = getattr(transformers, config)(**options)
        return Specimen(getattr(transformers, model)(made), given())

    return build


def _pixels() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def _both_ids() -> dict[str, Tensor]:
    return {**ids(), "decoder_input_ids": torch.randint(3, VOCABULARY, (2, 5))}


class Adversaries(nn.Module):
    """A generator and the discriminator that it has to deceive."""

    def __init__(self) -> None:
        super().__init__()
        self.made = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 4), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.told = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 4)
        )

    def forward(self, z: Tensor, real: Tensor) -> Tensor:
        fake = self.made(z[..., None, None])
        right, wrong = self.told(real).flatten(), self.told(fake.detach()).flatten()
        deceived = F.softplus(-self.told(fake).flatten())
        return F.softplus(-right) + F.softplus(wrong) + deceived


class Tagger(nn.Module):
    """An LSTM of torch over embedded words, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(WIDTH, 7)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.words(input_ids))
        return F.log_softmax(self.tags(hidden), -1)


class Mixed(nn.Module):
    """A mixture of experts by loop and ``index_add_``, and a gate by ``where`` and ``scatter``."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.gate(flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, expert(flat[rows]) * weights[rows, place, None])
        return out.view_as(x) + x


HELD_OUT: dict[str, Callable[[], Specimen]] = {
    "OPT": causal("OPT", ffn_dim=48, word_embed_proj_dim=WIDTH, dropout=0.0),
    "Falcon": causal("Falcon"),
    "Phi": causal("Phi"),
    "Gemma-2": causal("Gemma2", head_dim=8, sliding_window=4),
    "StableLM": causal("StableLm"),
    "DistilBERT": _of(
        "DistilBertForMaskedLM", "DistilBertConfig", ids, vocab_size=VOCABULARY, dim=WIDTH,
        hidden_dim=48, n_layers=2, n_heads=HEADS, max_position_embeddings=64, dropout=0.0,
        attention_dropout=0.0,
    ),
    "BART": _of(
        "BartForConditionalGeneration", "BartConfig", _both_ids, vocab_size=VOCABULARY,
        d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=48, decoder_ffn_dim=48, dropout=0.0,
        max_position_embeddings=64,
    ),
    "DeiT": _of(
        "DeiTForImageClassification", "DeiTConfig", _pixels, hidden_size=WIDTH,
        intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS, image_size=16,
        patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ),
    "Swin": _of(
        "SwinForImageClassification", "SwinConfig", _pixels, image_size=16, patch_size=2,
        embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0,
    ),
    "RWKV": _of(
        "RwkvForCausalLM", "RwkvConfig", ids, vocab_size=VOCABULARY, hidden_size=WIDTH,
        attention_hidden_size=WIDTH, num_hidden_layers=2, context_length=32, use_cache=False,
    ),
    "GPT-J": _of(
        "GPTJForCausalLM", "GPTJConfig", ids, vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2,
        n_head=HEADS, n_positions=64, rotary_dim=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "ALBERT": _of(
        "AlbertForMaskedLM", "AlbertConfig", ids, vocab_size=VOCABULARY, embedding_size=16,
        hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ),
    "BEiT": _of(
        "BeitForImageClassification", "BeitConfig", _pixels, hidden_size=WIDTH,
        intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS, image_size=16,
        patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        drop_path_rate=0.0,
    ),
    "GAN": lambda: Specimen(
        Adversaries(), {"z": torch.randn(2, 8), "real": torch.randn(2, 3, 8, 8)}
    ),
    "LSTM tagger": lambda: Specimen(Tagger(), ids()),
    "experts in a loop": awkward(Mixed),
}  # fmt: skip
GENERATING = frozenset(("OPT", "Falcon", "Phi", "Gemma-2", "StableLM", "BART"))
