"""A scored sequence: its tokens, and the log probability that an engine gave each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1  # in place of a token that a side does not tell

Logprobs = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredSequence:
    """One sample as one side has it; NaN stands where a token has no log probability."""

    step: int  # of training, or the number of the file
    sample: str
    tokens: Tokens
    logprobs: Logprobs  # of the token at the same place, given those before it

    @property
    def name(self) -> tuple[int, str]:
        """What aligns both sides."""
        return self.step, self.sample


def is_same(one: Tokens, other: Tokens) -> NDArray[np.bool_]:
    """Which tokens are the same, or not told by one side."""
    found: NDArray[np.bool_] = (one == other) | (one == UNKNOWN) | (other == UNKNOWN)
    return found


def placed(
    tokens: Tokens, logprobs: Logprobs, response: int | None, mask: Tokens | None
) -> Logprobs:
    """Log probabilities beside their tokens; ValueError where they fit none.

    As many as there are tokens stand at their tokens; fewer are those of the last tokens: of the
    response, or of all but the first. A `mask` says which count, of all tokens or of the last.
    """
    if logprobs.size > tokens.size:
        raise ValueError(f"{logprobs.size} log probabilities stand beside {tokens.size} tokens")
    if response is not None and logprobs.size not in (response, tokens.size, tokens.size - 1):
        raise ValueError(f"{logprobs.size} log probabilities are told of a response of {response}")
    found = np.full(tokens.size, np.nan)
    found[tokens.size - logprobs.size :] = logprobs
    if mask is not None and mask.size <= tokens.size:
        found[tokens.size - mask.size :][mask == 0] = np.nan
        found[: tokens.size - mask.size] = np.nan
    if logprobs.size == tokens.size and tokens.size:
        found[0] = np.nan  # nothing stands before the first token
    return found
