"""How programs at random end: what they return of the last value, and ways to get that wrong."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.laws.pieces import LONGEST, WIDTH

WORDS = 10
ENDS: dict[str, type[End]] = {}


class End(nn.Module):
    """Makes of the last value what the model returns."""

    ways: ClassVar[tuple[str, ...]] = ()
    faults: ClassVar[tuple[str, ...]] = ()
    left_behind: ClassVar[tuple[str, ...]] = ("nothing", "a_number", "raises")  # wrong effects
    is_by_row: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.way = self.ways[0]
        self.head = nn.Linear(WIDTH, WORDS)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        ENDS[cls.__name__] = cls

    def forward(self, x: Tensor) -> object:
        return getattr(self, self.way)(x)

    def plain(self, x: Tensor) -> object:
        raise NotImplementedError

    def nothing(self, x: Tensor) -> None:
        self.plain(x)

    def a_number(self, x: Tensor) -> object:
        result = self.plain(x)
        first = result[0] if isinstance(result, tuple) else result
        assert isinstance(first, Tensor)
        number = round(float(first.detach().double().mean()), 3)
        return (number, *result[1:]) if isinstance(result, tuple) else number

    def raises(self, x: Tensor) -> object:
        self.plain(x)
        raise ValueError("it is no good")


class Scores(End):
    """A number for each word."""

    ways = ("plain", "in_parts", "added", "by_row")
    faults = ("rolled", "no_bias", "squashed")
    is_by_row = True

    def plain(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]

    def in_parts(self, x: Tensor) -> Tensor:
        weights, biases = self.head.weight.chunk(2), self.head.bias.chunk(2)
        return torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], -1)

    def added(self, x: Tensor) -> Tensor:
        return x @ self.head.weight.t() + self.head.bias

    def by_row(self, x: Tensor) -> Tensor:
        return torch.stack([self.head(x[:, at]) for at in range(x.shape[1])], 1)

    def rolled(self, x: Tensor) -> Tensor:
        return self.plain(x).roll(1, -1)

    def no_bias(self, x: Tensor) -> Tensor:
        return F.linear(x, self.head.weight)

    def squashed(self, x: Tensor) -> Tensor:
        return torch.tanh(self.plain(x) / 30) * 30


class Both(End):
    """Scores and a pooled value."""

    ways = ("plain", "other_order", "by_sum")
    faults = ("swapped", "one_less", "same_twice", "last_token")

    def _pooled(self, x: Tensor) -> Tensor:
        return x.mean(1)

    def plain(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.head(x), self._pooled(x)

    def other_order(self, x: Tensor) -> tuple[Tensor, ...]:
        pooled = self._pooled(x)
        return self.head(x), pooled

    def by_sum(self, x: Tensor) -> tuple[Tensor, ...]:
        return F.linear(x, self.head.weight, self.head.bias), x.sum(1) / x.shape[1]

    def swapped(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.plain(x)[::-1]

    def one_less(self, x: Tensor) -> tuple[Tensor | None, ...]:
        return self.plain(x)[0], None

    def same_twice(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.plain(x)[0], x[:, -1]

    def last_token(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.head(x), x[:, -1] * 1.0


class Loss(End):
    """A loss, and the scores."""

    ways = ("plain", "by_hand", "by_logsumexp", "by_likelihood", "by_row")
    faults = ("one_late", "summed", "one_less", "of_probabilities")

    def __init__(self) -> None:
        super().__init__()
        self.labels: Tensor
        self.register_buffer("labels", torch.randint(WORDS, (LONGEST,)))

    def _taught(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(x), self.labels[: x.shape[1]].expand(x.shape[0], -1)

    def plain(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        return F.cross_entropy(scores.reshape(-1, WORDS), labels.reshape(-1)), scores

    def by_hand(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        return -scores.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).mean(), scores

    def by_logsumexp(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        own = scores.gather(-1, labels[..., None])[..., 0]
        return (scores.logsumexp(-1) - own).mean(), scores

    def by_likelihood(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        return F.nll_loss(F.log_softmax(scores.transpose(1, 2), 1), labels), scores

    def by_row(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        losses = [F.cross_entropy(s, t) for s, t in zip(scores, labels, strict=True)]
        return torch.stack(losses).mean(), scores

    def one_late(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        wrong = F.cross_entropy(scores[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))
        return wrong, scores

    def summed(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        flat = scores.reshape(-1, WORDS), labels.reshape(-1)
        return F.cross_entropy(*flat, reduction="sum"), scores

    def one_less(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        some = scores[:, :-1].reshape(-1, WORDS), labels[:, :-1].reshape(-1)
        return F.cross_entropy(*some), scores

    def of_probabilities(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, labels = self._taught(x)
        flat = scores.softmax(-1).reshape(-1, WORDS)
        return F.cross_entropy(flat, labels.reshape(-1)), scores
