"""Where a step is: the module call that is running, and how often each module was called."""

from __future__ import annotations

from collections.abc import Callable

from dumpcmp.nouns.key import ROOT


class Scope:
    """One call of a module, within which its functions are counted."""

    __slots__ = ("_functions", "call", "path", "prefix")

    def __init__(self, path: str, call: int, mark: str = "") -> None:
        self.path = path
        self.call = call
        self.prefix = (path or ROOT) + (f"@{call}" if call else "") + mark
        self._functions: dict[str, _Counter] = {}

    def count(self, function: str, selects: Callable[[str], bool]) -> tuple[str, int] | None:
        """The op of `function` here and the number of this call of it; None if not selected.

        `selects` is asked about an op once.
        """
        counter = self._functions.get(function)
        if counter is None:
            op = f"{self.prefix}/{function}"
            counter = self._functions[function] = _Counter(op, selects(op))
        if not counter.selected:
            return None
        number = counter.next
        counter.next = number + 1
        return counter.op, number


class _Counter:
    __slots__ = ("next", "op", "selected")

    def __init__(self, op: str, selected: bool) -> None:
        self.op = op
        self.next = 0
        self.selected = selected


class Scopes:
    """The scopes of one step; `mark` stands behind the path in the ops of a recomputation."""

    def __init__(self, mark: str = "") -> None:
        self.root = self.here = Scope("", 0)
        self.mark = mark
        self._outer: list[Scope] = []
        self._calls: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._outer)

    def next_of(self, path: str) -> Scope:
        """The scope of the next call of the module at `path`."""
        number = self._calls.get(path, 0)
        self._calls[path] = number + 1
        return Scope(path, number, self.mark)

    def open(self, path: str) -> Scope:
        """Go into the next call of the module at `path`."""
        self._outer.append(self.here)
        self.here = self.next_of(path)
        return self.here

    def close(self) -> None:
        """Go back to where the scope was opened that was opened last."""
        self.here = self._outer.pop()
