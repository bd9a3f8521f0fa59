"""What a user writes down to have an op verified: the op, its arguments, the partitions to try."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dumpcmp.nouns.errors import DumpcmpError

SHAPE, VALUE = "shape", "value"


class PartitionError(DumpcmpError):
    """A configuration, graph or partition option that cannot be verified as it stands."""


@dataclass(frozen=True, slots=True)
class IRObject:
    """A value that a tracer knew under a name; here only its `value` counts."""

    name: str = "obj"
    id: int | None = None
    value: Any = None
    is_constant: bool = True


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One argument: a tensor to be made with the shape `value`, or `value` as it is."""

    value_form: str
    value: Any
    dtype: torch.dtype = torch.float32
    requires_grad: bool = True

    def __post_init__(self) -> None:
        if self.value_form not in (SHAPE, VALUE):
            raise PartitionError(
                f"TensorInfo({self.value_form!r}, ...): there is no such form",
                hint="write TensorInfo('shape', (8, 4)) or TensorInfo('value', 3)",
            )
        if self.value_form == SHAPE:
            object.__setattr__(self, "value", tuple(int(size) for size in self.value))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape) if self.value_form == VALUE else self.value

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class PartitionConfig:
    """An op, its arguments, and the partitions of it to be verified.

    `fsig` names the function (``"torch.conv2d"``). Each of `parti_options` is ``{"idx": i, "dim":
    d}``: split argument i along its dim d, in ``"num"`` parts (2 if it does not say), and with
    ``"sync": False`` without the communication that the op would need inside. `anno` replaces the
    annotation of our table.
    """

    fsig: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    noutputs: int = 1
    parti_options: Sequence[Mapping[str, Any]] = ()
    import_customized_func: str = ""
    non_grad_indices: Sequence[int] = ()
    anno: str = ""
