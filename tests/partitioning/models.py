"""Models whose exported programs are verified: small, with random weights."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.down = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inside)) + self.down(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 12, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))
        return out


_SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "vocab_size": 101,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def hugging_face(name: str) -> nn.Module:
    """A model of transformers, made from its configuration: nothing is downloaded."""
    import transformers as hf

    sizes = {**_SIZES, "use_cache": False}
    shallow = {"num_layers": 2, "num_heads": 4, "d_model": 32, "d_ff": 48, "d_kv": 8}
    wide = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64}
    few = {k: sizes[k] for k in ("vocab_size", "bos_token_id", "eos_token_id", "use_cache")}
    model: nn.Module
    match name:
        case "llama":
            model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes))
        case "qwen2":
            model = hf.Qwen2ForCausalLM(hf.Qwen2Config(**sizes))
        case "bert":
            model = hf.BertModel(hf.BertConfig(**_SIZES))
        case "gpt2":
            model = hf.GPT2LMHeadModel(hf.GPT2Config(**few, **wide))
        case "t5":
            model = hf.T5EncoderModel(hf.T5Config(**few, **shallow))
        case _:
            raise ValueError(name)
    return model.eval()


def exported(name: str) -> torch.export.ExportedProgram:
    """The exported program of a model by its name."""
    torch.manual_seed(0)
    if name == "resnet":
        return torch.export.export(ResNet(), (torch.randn(4, 3, 32, 32),))
    ids = torch.randint(3, 100, (2, 12))
    if name == "demo":
        from dumpcmp import demo

        model, inputs = demo.build()
        return torch.export.export(model, tuple(inputs))
    return torch.export.export(hugging_face(name), (ids,))
