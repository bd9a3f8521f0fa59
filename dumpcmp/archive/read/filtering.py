"""What a selection leaves of an archive: steps, ops and slots."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.selection import Tap, spelled


@dataclass(frozen=True, slots=True)
class Filter:
    """One selection: of steps and ops as a Tap has them, and of slots by globs or kinds."""

    tap: Tap
    slots: tuple[str, ...]

    def selects(self, key: Key) -> bool:
        return (
            self.tap.selects_step(key.step)
            and self.tap.selects_op(key.op)
            and (
                not self.slots
                or any(fnmatchcase(key.slot, glob) or key.slot.kind == glob for glob in self.slots)
            )
        )

    def __str__(self) -> str:
        steps = ",".join(map(spelled, self.tap.steps))
        named = {"layers": self.tap.layers, "steps": (steps,) if steps else (), "slots": self.slots}
        return " ".join(f"{name} {' '.join(told)}" for name, told in named.items() if told)
