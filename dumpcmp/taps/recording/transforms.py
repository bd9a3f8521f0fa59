"""What tensors hold inside of the transforms of torch.func: for vmap, the whole batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

from dumpcmp.nouns.record import VMAP
from dumpcmp.pytorch.names import PrivateName, private

_CLEAR = "torch._functorch.pyfunctorch:temporarily_clear_interpreter_stack"
_FUNCTORCH = "torch._C._functorch"
_ASKED = "get_unwrapped is_batchedtensor is_gradtrackingtensor is_functorch_wrapped_tensor"
_TOLD = "maybe_get_bdim maybe_get_level"


class Inner(NamedTuple):
    """The tensor inside of wrappers, and the levels of vmap whose batches it has in front."""

    tensor: Tensor
    levels: tuple[int, ...] = ()

    @property
    def seen_in(self) -> str:
        """What a Record says of it."""
        return f"{VMAP} {','.join(map(str, self.levels))}" if self.levels else ""


@cache
def can_look_inside() -> bool:
    """Whether this torch has what is needed for it; a capture has told the user where not."""
    names = (f"{_FUNCTORCH}:{name}" for name in f"{_ASKED} {_TOLD}".split())
    return all(PrivateName(path, "").is_there for path in (_CLEAR, *names))


def outside() -> AbstractContextManager[Any]:
    """No transform is under way in the block: what is computed there is computed as it is."""
    cleared: AbstractContextManager[Any] = private(_CLEAR)()
    return cleared


def held_by(tensor: Tensor) -> Inner | None:
    """What is inside of `tensor`; None where it is no wrapper that is known. To be asked outside.

    Batches come first, that of the outermost vmap before the others, wherever the rules of vmap
    have put them.
    """
    functorch: Any = private(_FUNCTORCH)
    if functorch.is_gradtrackingtensor(tensor):
        return held_by(functorch.get_unwrapped(tensor))
    if functorch.is_batchedtensor(tensor):
        held = held_by(functorch.get_unwrapped(tensor))
        if held is None:
            return None
        at = len(held.levels)
        moved = held.tensor.detach().movedim(at + functorch.maybe_get_bdim(tensor), at)
        return Inner(moved, (*held.levels, functorch.maybe_get_level(tensor)))
    return None if functorch.is_functorch_wrapped_tensor(tensor) else Inner(tensor)
