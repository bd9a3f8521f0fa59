"""What a Replay proves: whether rounding explains what an op made of what it was given."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dumpcmp.judge.tolerances import (
    FLIP,
    FLOAT32_EPS,
    QUANTISED_CHANCE,
    QUANTISED_CLIPPED,
    QUANTISED_GAIN,
    QUANTISED_PRODUCT,
    QUANTISED_UNEVEN,
    REPLAY_CHANCE,
    REPLAY_ELEMENT,
    REPLAY_GAIN,
    REPLAY_NEAREST,
    REPLAY_NOISE,
    REPLAY_OFFSET,
    REPLAY_ROUND,
    REPLAY_ROW,
    REPLAY_SUM,
)
from dumpcmp.nouns.levels import Quantised
from dumpcmp.nouns.replay import Choice, Flip, Replay
from dumpcmp.nouns.spoken import counted, plural

_GIVEN = "the op in float64 on the same inputs"
_MADE = "what golden's optimizer makes of the same gradients"


def bound(replay: Replay) -> float:
    """The error that rounding explains: of the output's dtype, and of sums in float32."""
    sums = (REPLAY_SUM * _unit(replay) + replay.shortcut) * replay.condition
    noise = max(sums, REPLAY_NOISE * replay.noise)
    return REPLAY_ROUND * replay.eps + noise + QUANTISED_PRODUCT * replay.factors


def wrong(replay: Replay) -> str:
    """What the op did wrong with what it was given, in a sentence; empty where it is right."""
    return "" if replay.levels else next(_wrongs(replay), "")


def _wrongs(replay: Replay) -> Iterator[str]:
    if replay.choice is not None:
        yield from filter(None, [replay.choice.wrong])
        if replay.choice.decides and replay.choice.flips:
            yield from _unexplained(replay.choice.flips[0])
        return  # what was chosen may be other elements than the replay has, and as right
    if replay.is_exact and replay.mismatched:
        others = counted(replay.mismatched, "element is another", "elements are others")
        yield f"it rounds nothing, but {others}"
    if not replay.nonfinite_agree:
        yield "NaN or Inf stand where the op in float64 on the same inputs has none, or lack there"
    if not replay.is_exact:
        yield from _roundings(replay)
        yield from _errors(replay)
        yield from _biases(replay)
        yield from _columns(replay)


def is_unbiased(found: Quantised) -> bool:
    """Whether what was rounded to levels is as large as it was: a scale may be off, not a level."""
    share = QUANTISED_UNEVEN if found.levels.table else QUANTISED_CLIPPED
    most = max(QUANTISED_GAIN, share * found.levels.half)
    return abs(found.gain) <= most + QUANTISED_CHANCE * found.chance


def said_of_factors(word: str, replay: Replay) -> str:
    """That a product is as near as factors make it that were rounded to declared levels."""
    most = bound(replay)
    return f"{replay.introduced:.3g} off, where factors in {word} explain {most:.3g}"


def _roundings(replay: Replay) -> Iterator[str]:
    """What is computed at once and rounded once is the nearest there is, but for rare ties."""
    if replay.is_nearest and replay.mismatched > max(4, REPLAY_NEAREST * replay.count):
        yield (
            f"{replay.mismatched} of {replay.count} elements are not the nearest to {_GIVEN}: "
            "it was rounded otherwise, or is another result"
        )


def _errors(replay: Replay) -> Iterator[str]:
    """What is off by more than rounding explains: the whole, a row or an element."""
    limit = bound(replay)
    unit = _unit(replay) + replay.shortcut
    sums = REPLAY_ELEMENT * max(unit * replay.condition, replay.noise, replay.factors)
    for what, found, most in (
        ("it", replay.introduced, limit),
        ("a row", replay.worst_row, max(REPLAY_ROW * limit, REPLAY_NOISE * replay.row_noise)),
        (
            "an element",
            replay.worst_element,
            replay.eps + max(sums, REPLAY_NOISE * replay.element_noise),
        ),
    ):
        if found > most:
            given = _given(replay)
            yield f"{what} is {found:.3g} off {given}, where rounding explains {most:.3g}"


def _biases(replay: Replay) -> Iterator[str]:
    """Rounding has no side: an output that is larger, or shifted, on the whole is no rounding."""
    error = REPLAY_CHANCE * replay.introduced
    chance = error / math.sqrt(max(1.0, min(replay.num_weighty, replay.count)))
    sums = (REPLAY_SUM / 2 * _unit(replay) + replay.shortcut) * replay.condition
    most = max(REPLAY_GAIN * replay.eps + max(sums, REPLAY_NOISE / 2 * replay.noise), chance)
    most += replay.leeway
    if abs(replay.gain) > most:
        given = _given(replay)
        yield f"it is 1{replay.gain:+.3g} times {given}, where rounding explains {most:.3g}"
    chance = error / math.sqrt(max(1, replay.count))
    most = max(REPLAY_OFFSET * replay.eps + max(sums, REPLAY_NOISE / 2 * replay.noise), chance)
    most += replay.leeway
    if abs(replay.offset) > most:
        given = _given(replay)
        yield f"it is {given} {replay.offset:+.3g} of its rms, where rounding explains {most:.3g}"


def _columns(replay: Replay) -> Iterator[str]:
    """Each column of a quantised product may have a scale of its own, and it may be another's."""
    if replay.columns > QUANTISED_PRODUCT:
        yield (
            f"its columns are larger and smaller than {_given(replay)} makes them, "
            f"{replay.columns:.2g} times as much as rounded factors explain: scales may be others'"
        )


def _given(replay: Replay) -> str:
    """What a value was held against."""
    return _GIVEN if replay.num_ops else _MADE


def _unit(replay: Replay) -> float:
    """The rounding of what sums are made in: float32, or float64 for that."""
    return min(replay.eps, FLOAT32_EPS)


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
    rows, their = counted(choice.num_rows, "row"), plural(choice.num_flipped, "its", "their")
    said = f"{choice.num_flipped} of {rows} chose otherwise, rightly for {their} own"
    if not choice.flips:
        return f"{said} scores"
    flip = choice.flips[0]
    if flip.is_tie:
        return f"{said} scores: a tie"
    return f"{said} scores: margin {flip.margin:.3g}, noise {flip.noise:.3g}"
