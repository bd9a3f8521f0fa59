"""Lays the sequences of both sides beside each other, token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dumpcmp.logprobs.sequences import Logprobs, ScoredSequence, Tokens, is_same
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.spoken import counted


@dataclass(frozen=True, slots=True, eq=False)
class AlignedSequence:
    """One sample on both sides: the tokens that they have in common, and both log probabilities."""

    step: int
    sample: str
    tokens: Tokens
    golden: Logprobs
    mine: Logprobs

    @property
    def positions(self) -> Tokens:
        """The positions at which both sides have a finite log probability."""
        return np.flatnonzero(np.isfinite(self.golden) & np.isfinite(self.mine))

    @property
    def delta(self) -> Logprobs:
        """Mine minus golden, at `positions`."""
        at = self.positions
        return self.mine[at] - self.golden[at]


@dataclass(frozen=True, slots=True)
class Alignment:
    """All samples that both sides have, and what the reader must know of the others."""

    sequences: tuple[AlignedSequence, ...]
    remarks: tuple[str, ...]

    @property
    def num_infinite(self) -> int:
        """Positions at which one side alone has an infinite log probability."""
        return sum(
            int((np.isinf(one) & np.isfinite(other)).sum())
            for each in self.sequences
            for one, other in ((each.golden, each.mine), (each.mine, each.golden))
        )


def align(golden: Sequence[ScoredSequence], mine: Sequence[ScoredSequence]) -> Alignment:
    """Pair samples by step and name, or else by their tokens; of unequal tokens the common prefix.

    AlignError where no sample of one side is one of the other.
    """
    remarks: list[str] = []
    pairs = _by_name(golden, mine)
    if not any(_have_common(one, other) for one, other in pairs):
        by_tokens = _by_tokens(golden, mine)
        if by_tokens:
            pairs = by_tokens
            remarks.append("samples were paired by their tokens: their names or steps are others")
    found = [_aligned(one, other) for one, other in pairs]
    kept = [each for each in found if each.positions.size]
    if not kept:
        raise AlignError(
            f"no token of {counted(len(golden), 'sample')} of golden is one of "
            f"{counted(len(mine), 'sample')} of mine",
            hint="score the same tokens on both sides, and give samples the same index; of an "
            "OpenAI server ask for token ids: return_tokens_as_token_ids",
        )
    cut = sum(
        one.tokens.size != other.tokens.size or not is_same(one.tokens, other.tokens).all()
        for one, other in pairs
    )
    if cut:
        verb = "has" if cut == 1 else "have"
        remarks.append(
            f"{counted(cut, 'sample')} {verb} other tokens or another length on one side; what was "
            "compared is the common beginning"
        )
    for side, have in (("golden", golden), ("mine", mine)):
        if len(have) > len(kept):
            remarks.append(f"{counted(len(have) - len(kept), 'sample')} of {side} not compared")
    return Alignment(tuple(kept), tuple(remarks))


Pairs = list[tuple[ScoredSequence, ScoredSequence]]


def _have_common(one: ScoredSequence, other: ScoredSequence) -> bool:
    if not one.tokens.size or not other.tokens.size:
        return False
    return bool(is_same(one.tokens[:1], other.tokens[:1])[0]) or _is_end(one.tokens, other.tokens)


def _is_end(one: Tokens, other: Tokens) -> bool:
    """Whether the shorter is the end of the longer, and not its beginning."""
    short, long = sorted((one, other), key=lambda each: each.size)
    is_end = np.array_equal(short, long[long.size - short.size :])
    return is_end and short.size < long.size and not np.array_equal(short, long[: short.size])


def _by_name(golden: Sequence[ScoredSequence], mine: Sequence[ScoredSequence]) -> Pairs:
    known = {each.name: each for each in mine}
    return [(each, known[each.name]) for each in golden if each.name in known]


def _by_tokens(golden: Sequence[ScoredSequence], mine: Sequence[ScoredSequence]) -> Pairs:
    """Those whose tokens stand once on each side."""
    counts = [Counter(each.tokens.tobytes() for each in side) for side in (golden, mine)]
    known = {each.tokens.tobytes(): each for each in mine}
    return [
        (each, known[key])
        for each in golden
        if (key := each.tokens.tobytes()) in known and counts[0][key] == counts[1][key] == 1
    ]


def _aligned(one: ScoredSequence, other: ScoredSequence) -> AlignedSequence:
    length = min(one.tokens.size, other.tokens.size)
    if length and _is_end(one.tokens, other.tokens):  # one side has no prompt
        return AlignedSequence(
            one.step, one.sample, one.tokens[-length:], one.logprobs[-length:],
            other.logprobs[-length:],
        )  # fmt: skip
    differing = np.flatnonzero(~is_same(one.tokens[:length], other.tokens[:length]))
    end = int(differing[0]) if differing.size else length
    return AlignedSequence(
        one.step, one.sample, one.tokens[:end], one.logprobs[:end], other.logprobs[:end]
    )
