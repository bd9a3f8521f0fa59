"""Makes the first part of a model's next step when the last one ends, not when the next begins.

A device has nothing to do where a step begins, and is busy where it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dumpcmp.archive.paths import RankDirectory, remove
from dumpcmp.archive.write.part import Part

_MOST = 8  # models that have one


class _Spare(NamedTuple):
    step: int
    directory: Path
    part: Part
    final: Path  # the directory of the step,
    path: Path  # and the part there


class Spares:
    """Parts of steps that are to come, by model, each in a directory that is a draft yet."""

    def __init__(
        self, directory: RankDirectory, new_part: Callable[[Path, str, int, int], Part]
    ) -> None:
        self._directory, self._new_part = directory, new_part
        self._ended: dict[str, int] = {}  # the last step of each model
        self._spares: dict[str, _Spare] = {}

    def prepare(self, model: str, ended: int) -> None:
        """Make the part of the step that comes as long after `ended` as that after the one before.

        Trouble of the disk is left to whoever needs the part.
        """
        before = self._ended.get(model)
        self._ended[model] = ended
        if before is None or ended <= before or model in self._spares:
            return
        if len(self._spares) >= _MOST:
            self._discard(next(iter(self._spares)))
        step = 2 * ended - before
        final = self._directory.step_path(model, step)
        draft = final.with_name(f".new-{final.name}")
        try:
            draft.mkdir()
            part = self._new_part(draft, model, step, 0)
            self._spares[model] = _Spare(step, draft, part, final, final / part.path.name)
        except OSError:
            with suppress(OSError):
                remove(draft)

    def take(self, model: str, step: int) -> Part | None:
        """The first part of this step, in its place, if it was made before."""
        spare = self._spares.get(model)
        if spare is None:
            return None
        if spare.step == step:
            with suppress(OSError):  # the step has a directory with something in it
                spare.directory.rename(spare.final)
                spare.part.path = spare.path
                return self._spares.pop(model).part
        self._discard(model)
        return None

    def clear(self) -> None:
        """Remove them all: no step will begin any more."""
        for model in list(self._spares):
            self._discard(model)

    def _discard(self, model: str) -> None:
        spare = self._spares.pop(model)
        spare.part.close()
        with suppress(OSError):  # an audit finds what is left
            remove(spare.directory)
