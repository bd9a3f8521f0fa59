"""What operations have in common that no single recorded function does."""

from __future__ import annotations

from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay

_OUTPUT = "output.0"


class OfOneCall:
    """An operation that stands for one recorded call, of which it gives the output."""

    __slots__ = ()
    call: Call

    @property
    def slot(self) -> str:
        return _OUTPUT

    @property
    def calls(self) -> tuple[Call, ...]:
        return (self.call,)


class FoundByElements:
    """An operation that only moves elements, and was found by them: they show that it is right."""

    __slots__ = ()

    def held(self, *_: object) -> Replay | None:
        """Nothing is to be held against anything."""
        return None
