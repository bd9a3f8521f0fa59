"""Two optimiser steps of a small network with a loss module, as ``-m trainer.train --lr 0.1``."""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    options = parser.parse_args()
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), options.lr)
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(net(torch.randn(6, 4)), torch.tensor([0, 1, 0, 1, 0, 1]))
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
