"""Generate five tokens with a cache of keys and values. --wrong: the cache forgets one, once."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

parser = argparse.ArgumentParser()
parser.add_argument("--wrong", action="store_true", help="an off-by-one in the cache, from token 3")
options = parser.parse_args()


class Attention(nn.Module):
    """Attention of one new position to all that are in the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        cache[:] = [k, v]
        if options.wrong and k.shape[1] > 5:
            k, v = k[:, 1:], v[:, 1:]
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1))


class Decoder(nn.Module):
    """Two layers of attention between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, tokens: Tensor, caches: list[list[Tensor]]) -> Tensor:
        x = self.embed(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = x + layer(x, cache)
        return self.head(x[:, -1:])


torch.manual_seed(0)
model = Decoder()
tokens, caches = torch.tensor([[7, 21, 42]]), [[], []]
with torch.no_grad():
    for _ in range(5):
        tokens = model(tokens, caches).argmax(-1)
        print(tokens.item())
