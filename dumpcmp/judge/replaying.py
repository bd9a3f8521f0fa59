"""What a Replay proves: whether rounding explains what an op made of what it was given."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dumpcmp.judge.tolerances import (
    FLIP,
    FLOAT32_EPS,
    REPLAY_FEW,
    REPLAY_GAIN,
    REPLAY_NOISE,
    REPLAY_ROUND,
    REPLAY_ROW,
    REPLAY_SUM,
)
from dumpcmp.nouns.replay import Choice, Flip, Replay


def bound(replay: Replay) -> float:
    """The error that rounding explains: of the output's dtype, and of sums in float32."""
    sums = (REPLAY_SUM * min(replay.eps, FLOAT32_EPS) + replay.shortcut) * replay.condition
    return max(REPLAY_ROUND * replay.eps + sums, REPLAY_NOISE * replay.noise)


def wrong(replay: Replay) -> str:
    """What the op did wrong with what it was given, in a sentence; empty where it is right."""
    return next(_wrongs(replay), "")


def _wrongs(replay: Replay) -> Iterator[str]:
    if replay.choice and replay.choice.wrong:
        yield replay.choice.wrong
    if replay.choice and replay.choice.decides and replay.choice.flips:
        yield from _unexplained(replay.choice.flips[0])
    if replay.is_exact and replay.mismatched:
        yield f"it only moves what it was given, but {replay.mismatched} elements are others"
    if not replay.nonfinite_agree:
        yield "NaN or Inf stand where the op in float64 on the same inputs has none, or lack there"
    limit = bound(replay)
    given = "of the op in float64 on the same inputs"
    if replay.introduced > limit:
        yield f"it is rel_l2 {replay.introduced:.3g} off the result {given}, above {limit:.3g}"
    if replay.worst_row > REPLAY_ROW * limit:
        row = REPLAY_ROW * limit
        yield f"a row is {replay.worst_row:.3g} off the result {given}, above {row:.3g}"
    chance = 1 + REPLAY_FEW / math.sqrt(max(1, replay.count))  # few roundings do not even out
    if abs(replay.gain) > max(REPLAY_GAIN * replay.eps * chance, limit - REPLAY_ROUND * replay.eps):
        yield f"it is by the factor 1{replay.gain:+.3g} larger than the result {given}"


def _unexplained(flip: Flip) -> Iterator[str]:
    """Two right choices differ only where the scores do: this one needs another explanation."""
    if flip.margin > FLIP * flip.noise:
        yield (
            f"in row {list(flip.row)} it chose {list(flip.target)} and not {list(flip.golden)}, "
            f"though golden's margin {flip.margin:.3g} is above the noise {flip.noise:.3g} of the "
            "scores: one of the sides chose wrongly, or the scores are not the same thing"
        )


def flipped(choice: Choice) -> str:
    """How often the sides chose otherwise, and by what margin."""
    said = f"{choice.num_flipped} of {choice.num_rows} rows chose otherwise, rightly for their own"
    if not choice.flips:
        return f"{said} scores"
    flip = choice.flips[0]
    if flip.is_tie:
        return f"{said} scores: a tie"
    return f"{said} scores: margin {flip.margin:.3g}, noise {flip.noise:.3g}"
