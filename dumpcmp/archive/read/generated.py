"""Finds in the generated code that an archive keeps the kernel that computes an op."""

from __future__ import annotations

from collections.abc import Iterator

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.record import Call

_CODE = "code-"  # how the names of the texts with generated code begin


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
    sources = (source_of(code, call.kernel) for code in _codes(archive, call.model))
    source = next(filter(None, sources), "  no source: it is called, not generated")
    return "\n".join([*lines, "", source])


def _codes(archive: Archive, model: str) -> Iterator[str]:
    for (_, owner, name), path in archive.texts.items():
        if owner == model and name.startswith(_CODE):
            yield path.read_text()


def source_of(code: str, kernel: str) -> str:
    """The definition of `kernel` in generated `code`; empty if it has none."""
    begin = code.find(f"\n{kernel} = async_compile.")
    if begin < 0:
        return ""
    end = code.find("\n'''", begin)
    return code[begin + 1 : code.find("\n", end + 1)]
