"""What functions do with the elements of their first input, by whatever name they are called."""

from __future__ import annotations

from functools import cache

from dumpcmp.nouns.op_names import WorkSet

# Functions whose outputs are views of their first input, as far as its layout allows.
_VIEWS = WorkSet(
    """
    adjoint alias as_strided atleast_1d atleast_2d atleast_3d broadcast_to chunk contiguous data
    detach diagonal dsplit expand expand_as flatten getitem H hsplit imag linalg_diagonal mH movedim
    mT narrow permute ravel real reshape reshape_as select slice split squeeze T t tensor_split
    transpose unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze
    view view_as view_as_complex view_as_real vsplit
    """
)
_COPIES = WorkSet("clone copy lift_fresh lift_fresh_copy to dropout")
_CONTRACTIONS = WorkSet("addbmm addmm addmv baddbmm bmm dot einsum linear matmul mm mv tensordot")


@cache
def gives_views(function: str) -> bool:
    """Whether the outputs of `function` are its first input, seen in another way."""
    return function in _VIEWS


@cache
def keeps_elements(function: str) -> bool:
    """Whether what `function` gives out can be its first input once more, element by element."""
    return function in _VIEWS or function in _COPIES


@cache
def contracts(function: str) -> bool:
    """Whether `function` multiplies matrices, however it lays them out before."""
    return function in _CONTRACTIONS
