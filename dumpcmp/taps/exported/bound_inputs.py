"""What an exported program is called with: tensors for its inputs, by name and in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.trees import slots_of


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input of an exported program, as the program describes it."""

    name: str
    dtype: str  # torch's name of it; empty for what is no tensor
    sizes: Sequence[int | None]  # None: any
    kind: str = ""  # as the format names the type, for messages


def bound(
    program: str, inputs: Sequence[ModelInput], args: Any, kwargs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The tensors of a call, by the names of `inputs`: those given by name, the rest in order.

    An exporter leaves inputs out that nothing reads: of the rest each goes to the first input whose
    dtype and sizes it has.
    """
    names = [each.name for each in inputs]
    found = {n: t for n, t in kwargs.items() if isinstance(t, Tensor) and n in names}
    others = {name: value for name, value in kwargs.items() if name not in found}
    rest = [tensor for _, tensor in slots_of("", (args, others))]
    for each in inputs:
        if each.name in found:
            continue
        if not rest:
            raise CaptureError(
                f"{program} takes {', '.join(names)}, and {each.name} was not given",
                hint="give it by name: in an .npz, or as a golden archive's input",
            )
        at = next((i for i, tensor in enumerate(rest) if _fits(each, tensor)), 0)
        found[each.name] = rest[at]
        rest = rest[at + 1 :]
    for each in inputs:
        _check(program, each, found[each.name])
    return {name: found[name] for name in names}


def _fits(known: ModelInput, tensor: Tensor) -> bool:
    return (
        str(tensor.dtype) == f"torch.{known.dtype}"
        and len(known.sizes) == tensor.ndim
        and all(
            size in (None, given) for size, given in zip(known.sizes, tensor.shape, strict=True)
        )
    )


def _check(program: str, known: ModelInput, tensor: Tensor) -> None:
    if not known.dtype:
        raise CaptureError(f"input {known.name} of {program} is {known.kind}, not a tensor")
    given = str(tensor.dtype).removeprefix("torch.")
    if given != known.dtype:
        raise CaptureError(
            f"input {known.name} of {program} is {known.dtype}, and what was given is {given}",
            hint=f"convert it: {known.name}.to(torch.{known.dtype})",
        )
