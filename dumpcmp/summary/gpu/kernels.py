"""Launches one Triton kernel, without Triton's look-ups where its way of launching is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

_WIDTHS = {"i32": 4, "u32": 4, "i64": 8, "u64": 8}  # of numbers that kernels here take
_SCRATCH = 2  # pointers that Triton's kernels take behind their own arguments


class DriverKernel(NamedTuple):
    """A compiled kernel as the driver launches it."""

    function: int
    grid: tuple[int, int, int]
    num_threads: int
    shared_nbytes: int
    widths: bytes  # of its arguments in bytes, 0 for those that are compiled in


@dataclass(slots=True, eq=False)
class Launch:
    """A kernel with its grid and constants, launched without Triton's look-ups when it can be."""

    _kernel: Any
    grid: tuple[int, int, int]
    _dtypes: tuple[torch.dtype, ...]  # of what the pointers point to
    _constants: tuple[Any, ...]
    _options: dict[str, int]
    compiled: DriverKernel | None = None  # where the driver can be asked to launch it
    _before: tuple[Any, ...] = ()  # what the compiled kernel wants before the arguments
    _launch: Callable[..., None] | None = None
    _direct: bool = True  # until it fails once

    def __call__(
        self, stream: int, pointers: tuple[int, ...], numbers: tuple[int, ...] = (),
        grid: tuple[int, int, int] | None = None,
    ) -> None:  # fmt: skip
        """Launch it on `stream`, with its own grid if no other is given."""
        grid = grid or self.grid
        if self._launch is None:
            self._compile(pointers, numbers, grid)
            return
        try:
            self._launch(*grid, stream, *self._before, *pointers, *numbers, *self._constants)
        except TypeError:  # the compiled kernels of another Triton take other arguments
            self._launch, self.compiled, self._direct = None, None, False
            self._compile(pointers, numbers, grid)

    def _compile(
        self, pointers: tuple[int, ...], numbers: tuple[int, ...], grid: tuple[int, int, int]
    ) -> None:
        """Launch in Triton's own way, and keep the way to what it has compiled."""
        typed = map(_Pointer, pointers, self._dtypes)
        launch = self._kernel[grid]
        compiled = launch(*typed, *numbers, *self._constants, **self._options)
        run: Any = getattr(compiled, "run", None)
        if not self._direct or getattr(run, "__dict__", {}).keys() != _LAUNCHER:
            return
        if run.global_scratch_size or run.profile_scratch_size:
            return
        told = (compiled.function, run.launch_cooperative_grid, run.launch_pdl)
        self._before = (*told, None, None, compiled.packed_metadata, None, None, None)
        self._launch = run.launch
        self.compiled = self._known(compiled)

    def _known(self, compiled: Any) -> DriverKernel | None:
        """How the driver launches it; None where that is more than a grid with arguments."""
        metadata, kinds = compiled.metadata, tuple(compiled.src.signature.values())
        run, number = compiled.run, len(self._dtypes)
        special = run.launch_cooperative_grid or run.launch_pdl or run.num_ctas != 1
        is_ours = all(each.startswith("*") for each in kinds[:number])
        rest = kinds[number : len(kinds) - len(self._constants)]
        if special or not is_ours or not {*rest} <= {*_WIDTHS, "constexpr"}:
            return None
        widths = bytes([8] * number + [_WIDTHS.get(each, 0) for each in rest] + [8] * _SCRATCH)
        threads = 32 * metadata.num_warps
        return DriverKernel(compiled.function, self.grid, threads, metadata.shared, widths)


# The fields of Triton's launcher whose way of launching is known here; others are left to Triton.
_LAUNCHER = {
    "global_scratch_align", "global_scratch_size", "launch", "launch_cooperative_grid",
    "launch_pdl", "num_ctas", "profile_scratch_align", "profile_scratch_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pointer:
    """An address as Triton takes it when it compiles."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address
