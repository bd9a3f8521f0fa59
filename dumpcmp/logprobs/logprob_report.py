"""The outcome of a comparison of log probabilities: numbers, a diagnosis, and a row a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dumpcmp.logprobs.aligned_logprobs import AlignedSequence
from dumpcmp.logprobs.logprob_causes import Diagnosis, diagnose
from dumpcmp.logprobs.logprob_causes import LogprobCause as LogprobCause
from dumpcmp.logprobs.sequences import Logprobs
from dumpcmp.nouns.outcome import Answer
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.spoken import counted

if TYPE_CHECKING:
    import pandas as pd

MULTIPLIER = 1.05  # of probabilities on average, at most: NeMo-RL's limit (token_mult_prob_error)
LN_2 = math.log(2)
MOST_ABOVE = 0.01  # of the tokens may be twice or half as likely
_BINS = 8  # of positions that are shown


@dataclass(frozen=True, slots=True)
class LogprobNumbers:
    """How far log probabilities are apart. Delta is mine minus golden."""

    count: int
    mean: float  # of |delta|
    max: float
    k3: float  # mean of exp(delta) - 1 - delta: an estimate of the KL divergence
    multiplier: float  # mean of exp(|delta|)
    above_ln_2: float  # the share of tokens that are twice or half as likely
    bias: float  # mean of delta

    @classmethod
    def of(cls, delta: Logprobs) -> LogprobNumbers:
        """The numbers of some tokens."""
        if not delta.size:
            return cls(0, *[math.nan] * 6)
        size, capped = np.abs(delta), np.clip(delta, -700, 700)
        return cls(
            delta.size, float(size.mean()), float(size.max()),
            float((np.exp(capped) - 1 - capped).mean()), float(np.exp(np.abs(capped)).mean()),
            float((size > LN_2).mean()), float(delta.mean()),
        )  # fmt: skip

    @property
    def is_small(self) -> bool:
        """Whether engines of different kernels may differ so much."""
        return self.multiplier <= MULTIPLIER and self.above_ln_2 <= MOST_ABOVE


@dataclass(frozen=True, slots=True)
class LogprobSample:
    """One sample on both sides."""

    step: int
    sample: str
    verdict: Verdict
    numbers: LogprobNumbers
    worst_position: int = -1
    worst_token: int = -1

    @classmethod
    def of(cls, each: AlignedSequence) -> LogprobSample:
        """The numbers of a sample, and where it differs most."""
        delta, at = each.delta, each.positions
        numbers = LogprobNumbers.of(delta)
        worst = int(at[np.abs(delta).argmax()]) if delta.size else -1
        verdict = Verdict.PASS if numbers.is_small else Verdict.FAIL
        return cls(each.step, each.sample, verdict, numbers, worst, int(each.tokens[worst]))


@dataclass(frozen=True, repr=False)
class LogprobReport(Answer):
    """Whether two sides give the same tokens the same log probabilities, and if not, why.

    Exit codes are those of all answers: 0 same, 1 different, 2 nothing could be compared.
    """

    sequences: Sequence[AlignedSequence]
    remarks: tuple[str, ...] = ()
    num_infinite: int = 0
    COLUMNS: tuple[str, ...] = field(
        default=("step", "sample", "tokens", "mean |delta|", "max |delta|", "at"), init=False
    )

    @cached_property
    def rows(self) -> Sequence[LogprobSample]:  # type: ignore[override]
        """A row a sample, those that differ most first."""
        rows = map(LogprobSample.of, self.sequences)
        return sorted(rows, key=lambda row: -row.numbers.mean)

    @cached_property
    def numbers(self) -> LogprobNumbers:
        """Of all tokens."""
        return LogprobNumbers.of(np.concatenate([each.delta for each in self.sequences]))

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Why both sides differ, with evidence; None where they do not."""
        return diagnose(self.sequences)

    @property
    def by_position(self) -> list[tuple[int, int, LogprobNumbers]]:
        """The numbers of ranges of positions: first, last, and the numbers of these tokens."""
        at = np.concatenate([each.positions for each in self.sequences])
        delta = np.concatenate([each.delta for each in self.sequences])
        edges = np.unique(np.linspace(at.min(), at.max() + 1, _BINS + 1).astype(np.int64))
        found = []
        for first, end in pairwise(edges):
            chosen = delta[(at >= first) & (at < end)]
            if chosen.size:
                found.append((int(first), int(end) - 1, LogprobNumbers.of(chosen)))
        return found

    @property
    def compared(self) -> bool:
        """Whether any token was compared."""
        return self.numbers.count > 0

    @property
    def exit_code(self) -> int:
        """0 same, 1 different."""
        if not self.compared:
            return 2
        is_same = self.numbers.is_small and self.diagnosis is None and not self.num_infinite
        return 0 if is_same else 1

    @property
    def headline(self) -> str:
        """The answer in one line."""
        told = f"{counted(len(self.sequences), 'sample')}, {counted(self.numbers.count, 'token')}"
        if self.exit_code == 0:
            exactly = " to the bit" if self.numbers.max == 0 else ""
            return f"SAME{exactly}: {told}, mean |delta| {self.numbers.mean:.3g}"
        if self.diagnosis is not None:
            return f"DIFFERENT: {self.diagnosis} ({told})"
        if self.num_infinite:
            where = counted(self.num_infinite, "token has", "tokens have")
            return f"DIFFERENT: {where} an infinite log probability on one side alone ({told})"
        return f"DIFFERENT: mean |delta| {self.numbers.mean:.3g}, no pattern ({told})"

    @property
    def notable(self) -> Sequence[LogprobSample]:
        """The samples that differ most."""
        return self.rows

    def text(self, most: int = 10) -> str:
        """The headline, the numbers, those of positions, the worst samples, and the remarks."""
        numbers = self.numbers
        lines = [
            self.headline,
            *([f"next: {self.diagnosis.advice}"] if self.diagnosis else []),
            f"mean |delta| {numbers.mean:.4g}, max {numbers.max:.4g}, mean delta "
            f"{numbers.bias:+.4g}, k3 {numbers.k3:.4g}, mean exp |delta| {numbers.multiplier:.4g}, "
            f"above ln 2: {100 * numbers.above_ln_2:.3g} %",
            "by position: "
            + "; ".join(f"{a}-{b}: {each.mean:.3g}" for a, b, each in self.by_position),
            *self._lines(most),
        ]
        return "\n  ".join(lines)

    def cells(self, row: LogprobSample) -> tuple[str, ...]:
        """One sample under `COLUMNS`."""
        numbers = row.numbers
        at = f"{row.worst_position} (token {row.worst_token})"
        return (
            str(row.step), row.sample, str(numbers.count), f"{numbers.mean:.4g}",
            f"{numbers.max:.4g}", at,
        )  # fmt: skip

    def sentence(self, row: LogprobSample) -> str:
        """One sample as a line of an error."""
        return f"sample {row.sample}, step {row.step}: mean |delta| {row.numbers.mean:.4g}"

    def to_pandas(self) -> pd.DataFrame:
        """A line for each token: step, sample, position, token and both log probabilities."""
        import pandas as pd

        tables = [
            pd.DataFrame({
                "step": each.step, "sample": each.sample, "position": each.positions,
                "token": each.tokens[each.positions], "golden": each.golden[each.positions],
                "mine": each.mine[each.positions], "delta": each.delta,
            })
            for each in self.sequences
        ]  # fmt: skip
        return pd.concat(tables, ignore_index=True)
