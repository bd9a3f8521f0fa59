"""The models that are exported: small, with random weights, of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Subject:
    """One model, and how it is exported."""

    name: str
    kind: str  # "vision"
    build: Callable[[], Built]
    exporter: str = "dynamo"
    form: str = "float32"  # or float16, or int8: quantised dynamically
    opset: int = 20
    is_held_out: bool = False  # looked at once, when all else was done

    def __str__(self) -> str:
        return f"{self.name} {self.form} {self.exporter}"


class FirstOutput(nn.Module):
    """A model of transformers that gives tensors alone."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Any:
        found = self.model(*inputs)
        given = tuple(found[name] for name in self.names)
        return given if len(given) > 1 else given[0]


def _of_transformers(kind: str, config: Any, *names: str) -> nn.Module:
    import transformers

    config._attn_implementation = "sdpa"
    try:
        made = getattr(transformers, kind)(config)
    except ValueError:  # some know no sdpa
        config._attn_implementation = "eager"
        made = getattr(transformers, kind)(config)
    return FirstOutput(made.eval(), *names).eval()


def _ids(length: int = 12, most: int = 90) -> tuple[Tensor]:
    return (torch.randint(1, most, (2, length)),)


_SMALL: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip
_IMAGE: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64, "num_channels": 3,
}  # fmt: skip


def bert() -> Built:
    from transformers import BertConfig

    return _of_transformers("BertModel", BertConfig(**_SMALL), "last_hidden_state"), _ids()


def gpt2() -> Built:
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return _of_transformers("GPT2LMHeadModel", config, "logits"), _ids()


def llama() -> Built:
    from transformers import LlamaConfig

    config = LlamaConfig(**_SMALL, num_key_value_heads=2, use_cache=False)
    return _of_transformers("LlamaForCausalLM", config, "logits"), _ids()


def qwen() -> Built:
    from transformers import Qwen2Config

    config = Qwen2Config(**_SMALL, num_key_value_heads=2, use_cache=False)
    return _of_transformers("Qwen2ForCausalLM", config, "logits"), _ids()


def gemma() -> Built:
    from transformers import GemmaConfig

    config = GemmaConfig(**_SMALL, num_key_value_heads=1, head_dim=8, use_cache=False)
    return _of_transformers("GemmaForCausalLM", config, "logits"), _ids()


def distilbert() -> Built:
    from transformers import DistilBertConfig

    config = DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    return _of_transformers("DistilBertModel", config, "last_hidden_state"), _ids()


def electra() -> Built:
    from transformers import ElectraConfig

    config = ElectraConfig(**_SMALL, embedding_size=16)
    return _of_transformers("ElectraModel", config, "last_hidden_state"), _ids()


def vit() -> Built:
    from transformers import ViTConfig

    config = ViTConfig(**_IMAGE)
    return _of_transformers("ViTForImageClassification", config, "logits"), (
        torch.randn(2, 3, 32, 32),
    )


def resnet() -> Built:
    from transformers import ResNetConfig

    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=5
    )
    made = _moved_statistics(_of_transformers("ResNetForImageClassification", config, "logits"))
    return made, (torch.randn(2, 3, 32, 32),)


def convnext() -> Built:
    from transformers import ConvNextConfig

    config = ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, num_labels=5)
    return _of_transformers("ConvNextForImageClassification", config, "logits"), (
        torch.randn(2, 3, 32, 32),
    )


def mobilenet() -> Built:
    from transformers import MobileNetV2Config

    config = MobileNetV2Config(depth_multiplier=0.25, image_size=32, num_labels=5)
    made = _moved_statistics(
        _of_transformers("MobileNetV2ForImageClassification", config, "logits")
    )
    return made, (torch.randn(2, 3, 32, 32),)


def segformer() -> Built:
    from transformers import SegformerConfig

    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
        decoder_hidden_size=16, num_labels=4,
    )  # fmt: skip
    made = _of_transformers("SegformerForSemanticSegmentation", config, "logits")
    return _moved_statistics(made), (torch.randn(1, 3, 32, 32),)


def swin() -> Built:
    from transformers import SwinConfig

    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2], num_heads=[2], window_size=4,
        num_labels=5,
    )  # fmt: skip
    return _of_transformers("SwinForImageClassification", config, "logits"), (
        torch.randn(1, 3, 32, 32),
    )


def yolos() -> Built:
    from transformers import YolosConfig

    config = YolosConfig(**{**_IMAGE, "image_size": [32, 32]}, num_detection_tokens=5, num_labels=4)
    made = _of_transformers("YolosForObjectDetection", config, "logits", "pred_boxes")
    return made, (torch.randn(1, 3, 32, 32),)


def clip() -> Built:
    from transformers import CLIPVisionConfig

    config = CLIPVisionConfig(**_IMAGE)
    made = _of_transformers("CLIPVisionModel", config, "last_hidden_state", "pooler_output")
    return made, (torch.randn(2, 3, 32, 32),)


def whisper_encoder() -> Built:
    from transformers import WhisperConfig

    config = WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64,
        num_mel_bins=16, max_source_positions=20,
    )  # fmt: skip
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config._attn_implementation = "sdpa"
    return FirstOutput(WhisperEncoder(config).eval(), "last_hidden_state").eval(), (
        torch.randn(1, 16, 40),
    )


def wav2vec() -> Built:
    from transformers import Wav2Vec2Config

    config = Wav2Vec2Config(
        **_SMALL, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    made = _of_transformers("Wav2Vec2Model", config, "last_hidden_state")
    return made, (torch.randn(1, 400),)


def spectrogram() -> Built:
    from transformers import ASTConfig

    config = ASTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        patch_size=8, frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16,
        num_labels=5,
    )  # fmt: skip
    return _of_transformers("ASTForAudioClassification", config, "logits"), (
        torch.randn(1, 32, 16),
    )


class Experts(nn.Module):
    """A mixture of experts, of which each token takes two."""

    def __init__(self, width: int = 32, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) * 0.2)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        best, chosen = shares.topk(2, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("btd,edf->ebtf", x, self.up))
        made = torch.einsum("ebtf,efd->ebtd", hidden, self.down)
        return torch.einsum("ebtd,bte->btd", made, weights)


class ExpertDecoder(nn.Module):
    """A decoder whose layers are mixtures of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(99, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.experts = nn.ModuleList(Experts() for _ in range(2))
        self.head = nn.Linear(32, 99)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for norm, experts in zip(self.norms, self.experts, strict=True):
            x = x + experts(norm(x))
        made: Tensor = self.head(x)
        return made


def experts() -> Built:
    return ExpertDecoder().eval(), _ids()


class Recurrent(nn.Module):
    """A bidirectional LSTM, a GRU and convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 16, 5, padding=2)
        self.lstm = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(24, 10, batch_first=True)
        self.head = nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).transpose(1, 2)
        x, _ = self.lstm(x)
        x, _ = self.gru(x)
        made: Tensor = self.head(x)
        return made.log_softmax(-1)


def recurrent() -> Built:
    return Recurrent().eval(), (torch.randn(2, 8, 20),)


class Detector(nn.Module):
    """A pyramid of features with anchors, boxes and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.Hardswish())
        self.lateral, self.top = nn.Conv2d(16, 16, 1), nn.Conv2d(32, 16, 1)
        self.boxes, self.scores = nn.Conv2d(16, 4, 3, 1, 1), nn.Conv2d(16, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = self.stem(x)
        high = self.deep(low)
        up = F.interpolate(self.top(high), scale_factor=2.0, mode="nearest")
        seen = self.lateral(low) + up
        pooled = F.max_pool2d(seen, 3, 1, 1)
        boxes = self.boxes(seen).flatten(2).transpose(1, 2)
        scores = self.scores(pooled).flatten(2).transpose(1, 2).sigmoid()
        return torch.cat([boxes[..., :2], boxes[..., 2:].exp()], -1), scores


def detector() -> Built:
    return _moved_statistics(Detector().eval()), (torch.randn(1, 3, 32, 32),)


class UNet(nn.Module):
    """Down, up, and a skip between; group norms and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.down, self.up = nn.Conv2d(16, 32, 4, 2, 1), nn.ConvTranspose2d(32, 16, 4, 2, 1)
        self.last = nn.Conv2d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.silu(self.norm(self.first(x)))
        deep = F.avg_pool2d(F.gelu(self.down(first)), 3, 1, 1)
        made = torch.cat([first, self.up(deep)], 1)
        return F.interpolate(self.last(made), scale_factor=2.0, mode="bilinear").tanh()


def unet() -> Built:
    return UNet().eval(), (torch.randn(1, 3, 16, 16),)


class Perceptron(nn.Module):
    """Linears, norms and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 48), nn.ELU(),
            nn.Linear(48, 16), nn.Softmax(-1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x)
        return made


def perceptron() -> Built:
    return Perceptron().eval(), (torch.randn(5, 24),)


def _moved_statistics(model: nn.Module) -> nn.Module:
    """`model` with moments of batch norms that are not those that all begin with."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn_like(module.running_mean) * 0.1  # type: ignore[arg-type]
            module.running_var = torch.rand_like(module.running_var) + 0.5  # type: ignore[arg-type]
    return model


SUBJECTS = [
    Subject("perceptron", "dense", perceptron, opset=18),
    Subject("perceptron", "dense", perceptron, "script", "int8", opset=17),
    Subject("bert", "text", bert),
    Subject("bert", "text", bert, "script", opset=14),
    Subject("bert", "text", bert, form="int8"),
    Subject("gpt2", "text", gpt2),
    Subject("llama", "text", llama),
    Subject("llama", "text", llama, form="float16"),
    Subject("vit", "vision", vit),
    Subject("resnet", "vision", resnet),
    Subject("convnext", "vision", convnext, form="float16"),
    Subject("unet", "vision", unet, "script", opset=13),
    Subject("experts", "MoE", experts),
    Subject("whisper encoder", "audio", whisper_encoder),
    Subject("recurrent", "audio", recurrent, "script", opset=17),
    Subject("detector", "detection", detector),
    Subject("gemma", "text", gemma, is_held_out=True),
    Subject("distilbert", "text", distilbert, "script", "int8", opset=17, is_held_out=True),
    Subject("electra", "text", electra, form="float16", is_held_out=True),
    Subject("swin", "vision", swin, "script", opset=17, is_held_out=True),
    Subject("segformer", "vision", segformer, is_held_out=True),
    Subject("wav2vec", "audio", wav2vec, is_held_out=True),
    Subject("spectrogram", "audio", spectrogram, "script", opset=17, is_held_out=True),
    Subject("yolos", "detection", yolos, is_held_out=True),
]
