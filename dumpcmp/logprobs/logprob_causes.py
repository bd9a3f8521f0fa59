"""Why log probabilities differ: causes that leave a pattern, each with the numbers that show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dumpcmp.logprobs.aligned_logprobs import AlignedSequence
from dumpcmp.logprobs.sequences import Logprobs
from dumpcmp.nouns.spoken import counted

LARGE = 0.05  # a mean |delta|: what NeMo-RL's limit of 1.05 for mean exp |delta| allows
_CONTRAST = 5.0  # times larger: what a cause must make the difference where it acts
_FEWEST = 16  # tokens of a group whose mean is relied on
_MOSTLY = 0.5  # of the variance of the difference, which a change of temperature must explain
_FEW = 0.25  # of the samples, at most, that are called few
_NEARLY_ALL = 0.8  # of all the difference, which few samples must hold
_MOST_POSITIONS = 4096  # at which a change is looked for


class LogprobCause(StrEnum):
    """What made log probabilities differ."""

    SHIFT = "shifted"  # each stands beside its neighbour
    TEMPERATURE = "temperature"  # or raw beside processed: temperature, top-k, top-p
    SYNCHRONISATION = "synchronisation"  # grows from step to step: weights that are not updated
    STATE = "state"  # few sequences: a cache, a slot of a batch
    POSITION = "position"  # from one position on: a block of a cache, a table of positions
    WEIGHTS = "weights"  # everywhere alike: weights, precision, another kernel


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause, the numbers that speak for it, and what to look at next."""

    cause: LogprobCause
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}"


_ADVICE = {
    LogprobCause.SHIFT: "compare which token each log probability is of: logits at t are of t + 1",
    LogprobCause.TEMPERATURE: "have both sides apply temperature, top-k and top-p, or neither; "
    "vLLM: --logprobs-mode processed_logprobs",
    LogprobCause.SYNCHRONISATION: "compare the engine's weights after an update: dumpcmp weights "
    "--golden CHECKPOINT --my ENGINE --older CHECKPOINT_BEFORE",
    LogprobCause.STATE: "run those sequences alone and in a batch: dumpcmp invariance --vary batch",
    LogprobCause.POSITION: "look at the block size of the cache and at the positions: dumpcmp "
    "invariance --vary chunk,decode",
    LogprobCause.WEIGHTS: "compare the weights first: dumpcmp weights; then dump both and compare",
}


def diagnose(sequences: Sequence[AlignedSequence]) -> Diagnosis | None:
    """The cause with the most particular pattern; None where both sides are alike.

    The order is from patterns that leave little to chance to the one that any difference has.
    """
    found = next(_causes(sequences), None)
    return found and Diagnosis(found[0], found[1], _ADVICE[found[0]])


def _causes(sequences: Sequence[AlignedSequence]) -> Iterator[tuple[LogprobCause, str]]:
    if told := _shifted(sequences):
        yield LogprobCause.SHIFT, told
    if told := _growing(sequences):
        yield LogprobCause.SYNCHRONISATION, told
    if told := _few(sequences):
        yield LogprobCause.STATE, told
    if told := _from_position(sequences):
        yield LogprobCause.POSITION, told
    if told := _processed(sequences):
        yield LogprobCause.TEMPERATURE, told
    if told := _everywhere(sequences):
        yield LogprobCause.WEIGHTS, told


def _mean(values: Logprobs) -> float:
    return float(np.abs(values).mean()) if values.size else 0.0


def _shifted(sequences: Sequence[AlignedSequence]) -> str:
    """Whether mine is golden of the token before or after."""
    means = {}
    for by in (-2, -1, 0, 1, 2):
        pairs = [_moved(each, by) for each in sequences]
        found = np.concatenate(pairs)
        means[by] = _mean(found) if found.size >= _FEWEST else math.inf
    best = min(means, key=lambda by: means[by])
    if best == 0 or not LARGE <= means[0] < math.inf or means[best] * _CONTRAST > means[0]:
        return ""
    way = f"{counted(abs(best), 'token')} {'earlier' if best > 0 else 'later'}"
    return f"mean |delta| is {means[0]:.3g}, and {means[best]:.3g} with mine moved {way}"


def _moved(each: AlignedSequence, by: int) -> Logprobs:
    """Mine at t + `by` minus golden at t."""
    mine = np.roll(each.mine, -by)
    if by > 0:
        mine[-by:] = np.nan
    elif by < 0:
        mine[:-by] = np.nan
    delta = mine - each.golden
    return delta[np.isfinite(delta)]


def _growing(sequences: Sequence[AlignedSequence]) -> str:
    """Whether the difference grows from step to step, or is large from one step on."""
    steps = sorted({each.step for each in sequences})
    by_step = [np.concatenate([s.delta for s in sequences if s.step == step]) for step in steps]
    means = np.array([_mean(delta) for delta in by_step])
    if len(steps) < 3 or means[-1] < LARGE or min(d.size for d in by_step) < _FEWEST:
        return ""
    start = max(float(means[0]), 1e-9)
    rises = np.mean(np.diff(means) > 0)
    if means[-1] < _CONTRAST / 2 * start:
        return ""
    if rises >= 0.75 and np.corrcoef(np.argsort(np.argsort(means)), range(len(means)))[0, 1] > 0.85:
        return (
            f"mean |delta| grows from {means[0]:.3g} at step {steps[0]} to {means[-1]:.3g} at step "
            f"{steps[-1]}"
        )
    for first in range(1, len(steps)):
        before, after = means[:first].max(), means[first:].min()
        if after > max(LARGE, _CONTRAST * before):
            return (
                f"mean |delta| is {before:.3g} at most before step {steps[first]}, and {after:.3g} "
                "at least from there on"
            )
    return ""


def _few(sequences: Sequence[AlignedSequence]) -> str:
    """Whether few samples hold nearly all of what is beyond the usual difference."""
    means = np.array([_mean(each.delta) for each in sequences])
    order = np.argsort(means)[::-1]
    most = int(_FEW * means.size)
    if not most:
        return ""
    ranked = np.maximum(means[order], 1e-12)
    num = 1 + int(np.argmax(ranked[:most] / ranked[1 : most + 1]))  # the widest gap
    few, others = order[:num], order[num:]
    usual, least = float(np.median(means[others])), float(means[few].min())
    if least < max(LARGE, _CONTRAST * usual, 2 * float(means[others].max())):
        return ""
    excess = np.array([max(0.0, _mean(e.delta) - usual) * e.delta.size for e in sequences])
    share = float(excess[few].sum() / excess.sum())
    if share < _NEARLY_ALL:
        return ""
    names = ", ".join(f"{sequences[i].sample} (step {sequences[i].step})" for i in few[:4])
    return (
        f"{num} of {counted(len(sequences), 'sample')} hold {100 * share:.0f} % of what is beyond "
        f"the usual: {names}; mean |delta| {least:.3g} or more there, {usual:.3g} in the others"
    )


def _from_position(sequences: Sequence[AlignedSequence]) -> str:
    """Whether the difference begins at the same position of most samples."""
    length = min(_MOST_POSITIONS, max(each.golden.size for each in sequences))
    sums, counts = np.zeros(length), np.zeros(length)
    for each in sequences:
        at = each.positions
        inside = at < length
        np.add.at(sums, at[inside], np.abs(each.delta[inside]))
        np.add.at(counts, at[inside], 1)
    before_sum, before_count = np.cumsum(sums), np.cumsum(counts)
    best, ratio = 0, 0.0
    for first in range(1, length):
        num, later = before_count[first - 1], before_count[-1] - before_count[first - 1]
        if num < _FEWEST or later < _FEWEST:
            continue
        low = before_sum[first - 1] / num
        high = (before_sum[-1] - before_sum[first - 1]) / later
        if high >= LARGE and high / max(low, 1e-9) > ratio:
            best, ratio = first, high / max(low, 1e-9)
    if ratio < _CONTRAST or not _is_sharp(sequences, best):
        return ""
    low = before_sum[best - 1] / before_count[best - 1]
    high = (before_sum[-1] - before_sum[best - 1]) / (before_count[-1] - before_count[best - 1])
    size = best & -best
    told = f"mean |delta| is {low:.3g} before position {best} and {high:.3g} from there on"
    return f"{told}; {best} is a multiple of {size}" if size >= 8 else told


def _is_sharp(sequences: Sequence[AlignedSequence], first: int) -> bool:
    """Whether most samples that are long enough change there, within a few tokens."""
    found = []
    for each in sequences:
        at, delta = each.positions, np.abs(each.delta)
        before, after = delta[at < first], delta[at >= first]
        if after.size >= 4 and before.size:
            near = before[-_FEWEST:]
            found.append(after[:_FEWEST].mean() >= _CONTRAST / 2 * max(near.mean(), 1e-9))
    return bool(found) and float(np.mean(found)) >= 0.6


def _processed(sequences: Sequence[AlignedSequence]) -> str:
    """Whether mine is golden at another temperature, divided, or cut by top-k or top-p."""
    golden = np.concatenate([each.golden[each.positions] for each in sequences])
    mine = np.concatenate([each.mine[each.positions] for each in sequences])
    delta = mine - golden
    if golden.size < _FEWEST or _mean(delta) < LARGE:
        return ""
    factor = float((golden * mine).sum() / max(float((golden * golden).sum()), 1e-300))
    divided = mine - factor * golden
    if abs(factor - 1) > 0.02 and _mean(divided) * 20 < _mean(delta):
        return f"mine is golden times {factor:.4g}: the log probabilities themselves were divided"
    if told := _one_sided(golden, delta):
        return told
    slope, explained = _odds_slope(golden, mine)
    back, _ = _odds_slope(mine, golden)
    if explained < _MOSTLY or abs(slope - 1) < 0.03 or (slope - 1) * (back - 1) >= 0:
        return ""
    return (
        f"the odds of mine are those of golden to the power of {slope:.3g} (temperature about "
        f"{1 / slope:.3g}), which explains {100 * explained:.0f} % of the difference"
    )


def _one_sided(golden: Logprobs, delta: Logprobs) -> str:
    """Whether mine is never less likely: what top-k and top-p cut off is shared among the rest."""
    noise = 1e-3
    is_up = delta > noise
    if (delta < -noise).mean() > 0.005 or is_up.mean() < 0.05:
        return ""
    if (np.exp(golden + delta) > 1 + 1e-6).any():
        return ""
    kept = math.exp(-float(delta.max()))
    return (
        f"mine is never less likely, and {100 * is_up.mean():.0f} % of the tokens are likelier, by "
        f"{delta[is_up].mean():.3g} on average and {delta.max():.3g} at most: renormalised after "
        f"top-k or top-p kept {kept:.2f} or more"
    )


def _odds_slope(one: Logprobs, other: Logprobs) -> tuple[float, float]:
    """The power that turns the odds of one side into the other's, and how much it explains."""
    a, b = _log_odds(one), _log_odds(other)
    is_known = np.isfinite(a) & np.isfinite(b)
    a, b = a[is_known], b[is_known]
    if a.size < _FEWEST or a.std() < 1e-9:
        return 1.0, 0.0
    slope, offset = np.polyfit(a, b, 1)
    whole = float(((b - a) ** 2).sum())
    left = float(((b - slope * a - offset) ** 2).sum())
    return float(slope), 1 - left / max(whole, 1e-300)


def _log_odds(logprobs: Logprobs) -> Logprobs:
    p = np.clip(np.exp(logprobs), 0, 1)
    with np.errstate(divide="ignore"):
        found: Logprobs = logprobs - np.log1p(-p)
    return np.where((p > 1e-6) & (p < 1 - 1e-6), found, np.nan)


def _everywhere(sequences: Sequence[AlignedSequence]) -> str:
    """Whether most samples differ, and how alike they do."""
    means = np.array([_mean(each.delta) for each in sequences])
    delta = np.concatenate([each.delta for each in sequences])
    if _mean(delta) < LARGE:
        return ""
    low, high = np.quantile(means, [0.1, 0.9])
    share = 100 * float((means >= LARGE).mean())
    return (
        f"{share:.0f} % of the samples differ by {LARGE} or more on average; mean |delta| "
        f"{_mean(delta):.3g}, {low:.3g} to {high:.3g} in most samples"
    )
