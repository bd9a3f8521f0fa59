"""Functions of a user, for annotations of their own."""

import os
import time

import torch


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(1, keepdim=True)


def raises(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] < 4:
        raise ZeroDivisionError("a part is too small")
    return x.clone()


def dies(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] < 4:
        os._exit(7)
    return x.clone()


def hangs(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] < 4:
        time.sleep(60)
    return x.clone()
