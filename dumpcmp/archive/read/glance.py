"""What a reader is shown: a value's extremes, a few of its elements, the kernel of an op."""

from __future__ import annotations

import numpy as np

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.value import Value, widen

_BLOCK = 1 << 20  # elements widened at once


def extremes(value: Value) -> str:
    """Smallest and largest element, and how many are NaN; of complex numbers their size."""
    low, high, num_nan = np.inf, -np.inf, 0
    flat = value.bits.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        numbers = widen(flat[start : start + _BLOCK], value.dtype)
        block = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
        unordered = np.isnan(block) if block.dtype.kind == "f" else np.zeros(block.shape, bool)
        num_nan += int(unordered.sum())
        if not unordered.all():
            low = min(low, block[~unordered].min())
            high = max(high, block[~unordered].max())
    told = [] if low > high else [f"{low:.6g} .. {high:.6g}"]
    return ", ".join([*told, *([f"{num_nan} NaN"] if num_nan else [])])


def excerpt(value: Value, most: int = 6) -> str:
    """The elements of `value`, the middle left out where there are many."""
    with np.printoptions(threshold=most**2, edgeitems=most // 2, precision=6, linewidth=88):
        return str(value.numbers())


def kernel_of(archive: Archive, call: Call) -> str:
    """What computes `call` in a compiled run, for a reader: its line, its kernel, the source."""
    lines = [f"{call.op}#{call.call}  {call.source}".rstrip()]
    if not call.is_compiled:
        return "\n".join([*lines, "  not compiled: this run has no kernels"])
    if call.is_removed:
        return "\n".join([*lines, "  no kernel computes it: the compiler folded or removed it"])
    lines.append(f"  {call.kernel}")
    if call.origins:
        lines.append(f"  together with {', '.join(call.origins)}")
    sources = (
        source_of(path.read_text(), call.kernel)
        for (_, model, name), path in archive.texts.items()
        if model == call.model and name.startswith("code-")  # generated code
    )
    source = next(filter(None, sources), "  no source: it is called, not generated")
    return "\n".join([*lines, "", source])


def source_of(code: str, kernel: str) -> str:
    """The definition of `kernel` in generated `code`; empty if it has none."""
    begin = code.find(f"\n{kernel} = async_compile.")
    if begin < 0:
        return ""
    end = code.find("\n'''", begin)
    return code[begin + 1 : code.find("\n", end + 1)]
