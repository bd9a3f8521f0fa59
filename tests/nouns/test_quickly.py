"""Dataclasses that are made quickly are what they were: names, defaults, order, and frozen."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from dumpcmp.nouns.quickly import quickly_made


def _new() -> Any:
    @dataclass(frozen=True, slots=True)
    class Made:
        one: int
        two: str = "b"
        many: list[int] = field(default_factory=list)
        sum: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "sum", self.one + len(self.many))

    return Made


_Usual, _Quick = _new(), quickly_made(_new())


@pytest.mark.parametrize("args", [(1,), (1, "c"), (1, "c", [4, 5])])
def test_it_is_made_as_usual(args: Any) -> None:
    one, other = _Usual(*args), _Quick(*args)
    assert repr(other) == repr(one)
    assert other == _Quick(*args) and replace(other, one=3).one == 3
    with pytest.raises(FrozenInstanceError):
        other.one = 2
    assert _Quick(1).many is not _Quick(1).many
    assert list(inspect.signature(_Quick).parameters) == ["one", "two", "many"]
    with pytest.raises(TypeError, match="one"):
        _Quick()
