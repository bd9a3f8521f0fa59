"""One side of a call, with marks in place of tensors: what rules of following read from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import CallArguments, read_arguments
from dumpcmp.replay.counterparts import spread
from dumpcmp.replay.unreplayable import Unreplayable


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """A tensor as following knows it: marks of its elements or rows, and integers themselves."""

    marks: Tensor
    shape: tuple[int, ...]
    read: Callable[[], Tensor] | None = None  # of integers and booleans: they say what is taken

    @property
    def whole(self) -> Tensor:
        """A mark for each element."""
        return spread(self.marks, self.shape)

    @property
    def known(self) -> Tensor:
        """The integers themselves."""
        if self.read is None:
            raise Unreplayable("an index is not known")
        return self.read()


@dataclass(frozen=True, slots=True, eq=False)
class MarkedCall:
    """One side of a call: its arguments with Marked values, and the shapes that it gave out."""

    call: Call
    arguments: CallArguments
    shapes: Mapping[str, tuple[int, ...]]  # of outputs, by slot
    got: Mapping[str, Tensor]  # those that are integers or booleans

    @classmethod
    def of(
        cls,
        call: Call,
        given: Mapping[str, Marked],
        shapes: Mapping[str, tuple[int, ...]],
        got: Mapping[str, Tensor],
    ) -> MarkedCall:
        """Read the arguments of `call`, with what was `given` in their places."""
        filled = cast(Mapping[str, Tensor], given)  # what stands for tensors is never computed with
        return cls(call, read_arguments(call.arguments, filled), shapes, got)

    def named(self, *names: str) -> dict[str, Any]:
        """The arguments by name; positional ones are called `names` in order."""
        return dict(zip(names, self.arguments.args, strict=False)) | self.arguments.kwargs

    @property
    def marked(self) -> list[Marked]:
        """All tensors that it was given, in order."""
        return [leaf for leaf in self.arguments.leaves() if isinstance(leaf, Marked)]

    def with_marks(self, *, whole: bool = True) -> CallArguments:
        """The arguments with marks of elements, or as they are, in place of values."""

        def change(leaf: Any) -> Any:
            if not isinstance(leaf, Marked):
                return leaf
            return leaf.whole if whole else leaf.marks

        return self.arguments.mapped(change)


Given = list[Tensor]  # marks of all that each element of one output was computed from


class Hinted(list[Tensor]):
    """The same of what is only taken from elsewhere, and marks that tell equal ones apart."""

    def __init__(self, marks: Given, hints: Given) -> None:
        super().__init__(marks)
        self.hints = hints


FollowRule = Callable[[MarkedCall], list[Given]]  # for each output, in order
