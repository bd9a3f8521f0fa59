"""The program that the pages dump: a small decoder that generates a token."""

import argparse

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.mlp(self.attn(x)))


class Decoder(nn.Module):
    """Two layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 512)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


parser = argparse.ArgumentParser()
parser.add_argument("--prompt", default="hi")
prompt = torch.tensor([[ord(letter) % 64 for letter in parser.parse_args().prompt]])
torch.manual_seed(0)
with torch.no_grad():
    token = Decoder()(prompt)[:, -1].argmax(-1)
