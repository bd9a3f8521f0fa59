"""How SGLang's dumper names files: ``step=0___rank=1___dump_index=12___name=attn_out.pt``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dumpcmp.importing.titles import Title, split_slot
from dumpcmp.nouns.errors import LayoutError, SelectionError
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.record import Phase

_BETWEEN = "___"
_HOOKED = "non_intrusive__"  # before the name of a value that a hook on a module took
_GRADIENT, _PARAMETER = "grad__", "param__"
_VALUE, _TOLD = "value", "meta"  # what a file is a dict of
_AXIS_RANK = re.compile(rf"{_TOLD}\.\w+_parallel_info\.(\w+)_rank")


def is_sglang(path: str) -> bool:
    """Whether a file at `path` has a name as the dumper gives."""
    tags = _tags(path)
    return "name" in tags and "rank" in tags


def _tags(path: str) -> dict[str, str]:
    stem = path.rpartition("/")[2].removesuffix(".pt")
    pairs = (tag.partition("=") for tag in stem.split(_BETWEEN))
    return {name: word for name, equals, word in pairs if equals}


def sglang_title(path: str, name: str, words: Mapping[str, str]) -> Title | None:
    """What a value is called; None for a number that the file says of itself.

    `name` is that of the value in its file, `words` what else is there.
    """
    inner = name
    if name == _VALUE or name.startswith(f"{_VALUE}."):
        inner = name[len(_VALUE) + 1 :]
    elif name.partition(".")[0] == _TOLD:
        return None
    tags = _tags(path)
    if not is_sglang(path):
        raise SelectionError(
            f"{path} has no name as SGLang's dumper gives",
            hint="choose another --format, or leave it out with --files",
        )
    op, slot = _named(tags, inner)
    numbers = {tag: _whole(tags.get(tag, "0"), path) for tag in ("step", "rank", "dump_index")}
    is_again = tags.get("recompute_status") == "recompute"
    return Title(
        op, slot, numbers["step"], numbers["rank"], order=numbers["dump_index"],
        phase=Phase.RECOMPUTE if is_again else Phase.FORWARD, layout=_layout(words),
    )  # fmt: skip


def _named(tags: Mapping[str, str], inner: str) -> tuple[str, str]:
    """The op and the slot."""
    name = tags["name"]
    if name.startswith(_PARAMETER):
        op, _, last = name.removeprefix(_PARAMETER).rpartition(".")
        return _in_layer(op, tags), f"param.{last}"
    gradient = "grad_" if name.startswith(_GRADIENT) else ""
    name = name.removeprefix(_GRADIENT)
    op, _, slot = split_slot(name.removeprefix(_HOOKED))
    if inner:
        slot = f"{slot.partition('.')[0]}.{inner}"
    return _in_layer(op, tags), gradient + slot


def _in_layer(op: str, tags: Mapping[str, str]) -> str:
    layer = tags.get("layer_id", "")
    return f"layers.{layer}.{op}" if layer.isdecimal() and "layers." not in op else op


def _whole(word: str, path: str) -> int:
    if not word.isdecimal() or len(word) > 9:
        raise SelectionError(f"{path}: {word!r} is no number", hint="choose another --format")
    return int(word)


def _layout(words: Mapping[str, str]) -> str:
    """How the value lies over the ranks, as its file says; empty where it says nothing of use."""
    dims = words.get(f"{_TOLD}.dims", "")
    if dims in ("", "None"):
        return ""
    on = {found[1]: name for name in words if (found := _AXIS_RANK.fullmatch(name))}
    try:
        axes = [axis for axis in parse_layout(dims).axes if axis in on]
        told = [f"{axis}:{words[on[axis]]}/{words[on[axis][:-4] + 'size']}" for axis in axes]
        return str(parse_layout(f"{dims} @ {' '.join(told)}" if told else dims))
    except (LayoutError, KeyError):
        return ""
