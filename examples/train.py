"""Train a small classifier. Each option changes one thing of the recipe."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--beta2", type=float, default=0.999)
parser.add_argument("--clip-from", type=int, help="clip gradients from this step on")
options = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, options.beta2))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The inputs and classes of a step, the same in each run."""
    numbers = torch.Generator().manual_seed(step)
    x = torch.randn(8, 16, generator=numbers)
    return x, x[:, :4].argmax(-1)


for step in range(options.steps):
    x, classes = batch(step)
    optimizer.zero_grad()
    loss = cross_entropy(model(x), classes)
    loss.backward()
    if options.clip_from is not None and step >= options.clip_from:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(f"step {step}: loss {loss.item():.6f}")
