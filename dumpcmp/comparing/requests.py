"""What a side was not asked to record: what it lacks for that reason is no difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dumpcmp.align.counting import AS_COUNTED, Counting
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Pair, Row, Verdict, Why
from dumpcmp.nouns.rows import having
from dumpcmp.nouns.selection import Io, Level, Tap, spelled
from dumpcmp.nouns.spoken import counted

_ALL = Tap(backward=True, weights=True)


@dataclass(frozen=True, slots=True)
class Asking:
    """What the capture of one side was told to record."""

    tap: Tap = _ALL
    counting: Counting = AS_COUNTED  # from the steps of the side's own count
    follows_weights: bool = False  # it records them unasked
    is_stated: bool = False  # the archive says what it was asked for

    @classmethod
    def of(cls, archive: Archive, counting: Counting = AS_COUNTED) -> Asking:
        """What the archive says of its filters; one that says nothing has none."""
        runs = (facts.get("run", {}) for facts in archive.run.values())
        run: dict[str, Any] = next((r for r in runs if isinstance(r.get("filters"), dict)), {})
        stated = run.get("filters")
        return cls(_tap(stated) if stated else _ALL, counting, bool(run.get("follows_weights")),
                   bool(stated))  # fmt: skip

    def leaves_out(self, key: Key) -> str:
        """The option by which a value of this name was left out; empty where none did."""
        tap, slot = self.tap, key.slot
        if not tap.selects_step(key.step - self.counting.offset(key.model)):
            tokens = f"--token {','.join(map(spelled, tap.steps))}" if tap.steps else ""
            return " ".join(filter(None, (tokens, f"--every {tap.every}" * (tap.every > 1))))
        if not tap.selects_op(key.op):
            return " ".join(f"--layer {glob}" for glob in tap.layers)
        if tap.level is Level.MODULES and key.op.function:
            return "--level modules"
        if slot.is_gradient and not tap.backward:
            return "no --backward"
        if slot.kind in ("param", "buffer") and not tap.weights and not self.follows_weights:
            return "no --weights"
        left = {Io.INPUT: "output", Io.OUTPUT: "input"}.get(tap.io)
        return f"--io {tap.io}" if left and left in slot.kind else ""


def _tap(stated: dict[str, Any]) -> Tap:
    """The filters of a run as they were asked for."""
    spans = stated.get("tokens") or ()
    return Tap(
        steps=tuple(range(first, last + 1) for first, last in spans),
        layers=tuple(stated.get("layers") or ()),
        io=Io(stated.get("io", Io.ALL)),
        backward=bool(stated.get("backward")),
        weights=bool(stated.get("weights")),
        level=Level(stated.get("level", Level.FUNCTIONS)),
        every=int(stated.get("every") or 1),
    )


def unasked(pair: Pair, golden: Asking, target: Asking, models: Mapping[str, str]) -> str:
    """Why one side was not asked to record a value that the other has; empty where it was."""
    is_golden = pair.golden is not None
    model = pair.key.model if is_golden else models.get(pair.key.model, pair.key.model)
    if said := target.counting.why_alone(model, pair.key.step, is_golden=is_golden):
        return said
    side, asked = ("golden", golden) if pair.golden is None else ("my side", target)
    option = asked.leaves_out(pair.key)
    return f"not recorded by request: {side} was dumped with {option}" if option else ""


def said_of_requests(rows: Sequence[Row]) -> Iterator[str]:
    """What must be said of values that were skipped, above all since one side was not asked."""
    told = Counter((row.reason, row.judgement.why) for row in having(rows, Verdict.SKIPPED))
    for (reason, why), count in told.items():
        values = counted(count, "value was", "values were")
        yield f"{values} {reason if why is Why.UNASKED else f'skipped: {reason}'}"
