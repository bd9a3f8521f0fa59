"""Effects: what a run leaves behind besides the values of its ops, as an archive tells it.

Each is a Call of a reserved op. Its arguments hold one JSON tree: tensors by the slots in which
they are recorded, all else by value. `docs/format.md` has the words of these trees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import EFFECTS, ROOT, Key, Op, Slot
from dumpcmp.nouns.record import Call

TARGET = "dumpcmp.effects"  # of the Calls that are effects: no function that could be run again


class Effect(StrEnum):
    """The kinds of effects, which are the reserved ops."""

    RESULT = "result"
    YIELDED = "yielded"
    EXCEPTION = "exception"
    INPUTS = "inputs"
    STATE = "state"
    TRAINING = "training"
    OPTIMIZER = "optimizer"
    GENERATORS = "generators"
    DATA = "data"

    @property
    def op(self) -> Op:
        """The reserved op."""
        return Op(f"{EFFECTS}/{self}")

    @property
    def is_of_end(self) -> bool:
        """Whether it is of the end of a run, or of no model: where a run has none, it is open."""
        return self in (Effect.STATE, Effect.OPTIMIZER, Effect.GENERATORS, Effect.DATA)


def effect_of(op: Op) -> Effect | None:
    """The kind of effect that calls of `op` are; None where they are none, or of no known kind."""
    return _KINDS.get(op)


def parameters_kept(key: Key) -> Iterator[tuple[Op, Slot]]:
    """The parameters of which a tensor in an optimizer's state may be, by module and slot.

    Its slot is ``output.state.layers.0.weight.exp_avg``: the path of a parameter, and a name.
    """
    if key.op != Effect.OPTIMIZER.op or not key.slot.startswith(_STATE):
        return
    words = key.slot.removeprefix(_STATE).split(".")
    for end in range(len(words) - 1, 0, -1):
        yield Op(".".join(words[: end - 1]) or ROOT), Slot(f"param.{words[end - 1]}")


CLIPPING = "clip_grad_norm_"  # what steers training where gradients are clipped to a norm
_STATE = "output.state."
_KINDS: dict[str, Effect] = {effect.op: effect for effect in Effect}

MEANINGS = {  # docs/format.md repeats these tables
    Effect.RESULT: "what the root module returned",
    Effect.YIELDED: "what the generator that it returned yielded, a call for each, and returned",
    Effect.EXCEPTION: "what its forward raised: type, message and line of the program",
    Effect.INPUTS: "what it was given and changed in place, as it was after the step",
    Effect.STATE: "parameters and buffers that differ at the end of the run from what was "
    "recorded last, by their paths",
    Effect.TRAINING: "what steers training, in order: the settings of an optimizer that stepped "
    "and what it had kept before, the norm that gradients were clipped to and had, the scale of "
    "losses",
    Effect.OPTIMIZER: "an optimizer at the end of the run: its settings, and what it keeps of each "
    "parameter, by name",
    Effect.GENERATORS: "torch's generators that drew numbers: their seeds, and digests of their "
    "states at the end",
    Effect.DATA: "how far a data loader was in its epoch when the step had run: the samples that "
    "are left, and what a loader with a `state_dict` says",
}
WORDS = {
    "root": "a tensor, by the slot of the root's call that holds it",
    "slot": "a tensor, by the slot of this call that holds it",
    "tensor": "the dtype and shape of a tensor that is not recorded here",
    "unchanged": "the dtype and shape of a tensor that is as it was before the step",
    "float": "nan, inf or -inf",
    "complex": "real and imaginary part",
    "int": "a large integer, in hexadecimal",
    "str": "the beginning of a long text, beside its `length` and `digest`",
    "bytes": "in hexadecimal; of many the beginning, beside `length` and `digest`",
    "tuple": "its parts",
    "size": "its numbers",
    "set": "its parts, sorted by their JSON",
    "dict": "its parts by keys that are texts",
    "pairs": "keys and parts of any other mapping",
    "object": "the class of any other container or object, beside its `parts` by name",
    "more": "how many parts of a long list are left out, beside their `digest`",
    "array": "of numpy: `dtype`, `shape`, and `values`, `items`, a `slot` or a `digest`",
    "scalar": "of numpy: `dtype` and `value`",
    "enum": "class and name of the member",
    "name": "a class, function or module",
    "value": "what an object of the standard library says of itself, beside its `type`",
    "generator": "the name of a generator; what it yields are calls of their own",
    "exception": "its class, beside `message` and `place`",
    "cycle": "the place above at which the same object stands",
    "opaque": "the class of an object that has no value, beside a `digest` of its repr",
    "unrecorded": "why something was not written down, beside its `type`",
}  # and dtype, device, layout, memory_format, slice, range, ellipsis: what torch and Python call so

TENSOR_WORDS = ("root", "slot", "tensor")
_SEQUENCES = ("tuple", "size", "set")


class TreeLeafKind(StrEnum):
    """How a leaf of a tree can be compared."""

    TENSOR = "tensor"  # it is a value of the archive, compared as such
    NUMBER = "number"  # a float or complex number, which may have been measured
    PLAIN = "plain"  # equal or not
    OPEN = "open"  # it was not recorded, or has no value: nobody can compare it


@dataclass(frozen=True, slots=True)
class EffectLeaf:
    """A leaf of an effect's tree."""

    path: str  # as Python writes it: "result[1]", "result.loss", "result['n']"
    kind: TreeLeafKind
    value: Any  # what decides whether it is the same: a number, a text, or parsed JSON
    shown: str  # for a reader
    slot: str = ""  # of a tensor that is recorded

    @property
    def is_nothing(self) -> bool:
        """Whether it is None, which a field that was not set is, too."""
        return self.kind is TreeLeafKind.PLAIN and self.value is None


@dataclass(frozen=True, slots=True)
class EffectTree:
    """The leaves of one effect in order, and of which types its containers are."""

    leaves: tuple[EffectLeaf, ...]
    containers: Mapping[str, str]  # by path: "list", "dict", "pkg.Output"

    @property
    def is_all_tensors(self) -> bool:
        """Whether every leaf is a tensor or nothing: then the rows of its tensors say it all."""
        return all(leaf.kind is TreeLeafKind.TENSOR or leaf.is_nothing for leaf in self.leaves)


def tree_of(call: Call) -> EffectTree:
    """The tree of an effect; ArchiveError where it is damaged."""
    given = argument_tree(call).get("args", [])
    reading = _TreeReader({})
    name = str(call.op.function)
    leaves = [leaf for value in given for leaf in reading.leaves(value, name)]
    return EffectTree(tuple(leaves), reading.containers)


def parts_of_effect(call: Call) -> dict[str, Any]:
    """The parts of an effect that is an object, as JSON has them."""
    given = argument_tree(call).get("args", [])
    parts = given[0].get("parts", {}) if given and isinstance(given[0], dict) else {}
    return parts if isinstance(parts, dict) else {}


def shown_tree(call: Call, most: int = 200) -> str:
    """The tree of an effect in one line for a reader, cut where it is long."""
    text = ", ".join(_shown(value) for value in argument_tree(call).get("args", []))
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True)
class _TreeReader:
    """Reads a tree, and notes what its containers are."""

    containers: dict[str, str]

    def leaves(self, tree: Any, path: str) -> Iterator[EffectLeaf]:
        """The leaves of `tree`, which stands at `path`."""
        if isinstance(tree, list):
            yield from self._inside("list", _numbered(tree), path)
            return
        if not isinstance(tree, dict):
            yield _plain(tree, path)
            return
        word = next(iter(tree), "")
        inside = tree.get(word)
        if word in _SEQUENCES and isinstance(inside, list):
            yield from self._inside(word, _numbered(inside), path)
        elif word == "dict" and isinstance(inside, dict):
            keyed = ((f"[{key!r}]", part) for key, part in inside.items())
            yield from self._inside("dict", keyed, path)
        elif word == "pairs" and isinstance(inside, list):
            keyed = ((f"[{_shown(pair[0])}]", pair[1]) for pair in inside)
            yield from self._inside("dict", keyed, path)
        elif word == "object" and "parts" in tree:
            named = ((f".{name}", part) for name, part in tree["parts"].items())
            yield from self._inside(str(inside), named, path)
        else:
            yield _special(word, tree, path)

    def _inside(
        self, kind: str, parts: Iterable[tuple[str, Any]], path: str
    ) -> Iterator[EffectLeaf]:
        self.containers[path] = kind
        is_empty = True
        for name, part in parts:
            is_empty = False
            yield from self.leaves(part, f"{path}{name}")
        if is_empty:
            yield EffectLeaf(path, TreeLeafKind.PLAIN, "empty", f"an empty {kind}")


def _numbered(parts: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"[{number}]", part) for number, part in enumerate(parts))


def _plain(value: Any, path: str) -> EffectLeaf:
    kind = TreeLeafKind.NUMBER if isinstance(value, float) else TreeLeafKind.PLAIN
    told: Any = value
    if isinstance(value, bool):
        told = ("bool", value)  # which is no number of Python's
    return EffectLeaf(path, kind, told, _shown(value))


def _special(word: str, tree: Mapping[str, Any], path: str) -> EffectLeaf:
    """A leaf that JSON has no word for."""
    inside, shown = tree.get(word), _shown(tree)
    if word in TENSOR_WORDS:
        slot = str(inside) if word != "tensor" else ""
        return EffectLeaf(path, TreeLeafKind.TENSOR, word, shown, slot)
    if word == "float":
        return EffectLeaf(path, TreeLeafKind.NUMBER, float(str(inside)), shown)
    if word == "complex" and isinstance(inside, list) and len(inside) == 2:
        return EffectLeaf(path, TreeLeafKind.NUMBER, complex(*map(_float, inside)), shown)
    if word == "scalar" and isinstance(inside, dict):
        leaf = _plain(inside.get("value"), path)
        if isinstance(inside.get("value"), dict):
            leaf = _special(next(iter(inside["value"]), ""), inside["value"], path)
        return EffectLeaf(path, leaf.kind, leaf.value, shown)
    if word == "array" and isinstance(inside, dict) and "slot" in inside:
        return EffectLeaf(path, TreeLeafKind.TENSOR, "slot", shown, str(inside["slot"]))
    if word == "array" and isinstance(inside, dict) and "values" in inside:
        return EffectLeaf(path, TreeLeafKind.NUMBER, inside, shown)
    if word in ("opaque", "unrecorded"):
        return EffectLeaf(path, TreeLeafKind.OPEN, dict(tree), shown)
    return EffectLeaf(path, TreeLeafKind.PLAIN, dict(tree), shown)


def _float(part: Any) -> float:
    return float(str(part["float"])) if isinstance(part, dict) else float(part)


def _shown(tree: Any) -> str:
    """A tree as a reader writes it."""
    if isinstance(tree, list):
        return f"[{', '.join(map(_shown, tree))}]"
    if not isinstance(tree, dict):
        return repr(tree)
    word = next(iter(tree), "")
    return _SHOWN[word](tree[word], tree) if word in _SHOWN else json.dumps(tree)


def _shown_cut(text: str, tree: Mapping[str, Any], unit: str) -> str:
    return f"{text}... ({tree.get('length')} {unit})" if "digest" in tree else text


def _shown_object(kind: Any, tree: Mapping[str, Any]) -> str:
    parts = tree.get("parts") or {}
    told = ", ".join(f"{name}={_shown(part)}" for name, part in parts.items())
    return f"{str(kind).rpartition('.')[2]}({told})"


def _shown_array(inside: Mapping[str, Any], _: Any) -> str:
    sizes = ", ".join(map(str, inside.get("shape", ())))
    values = f" {_shown(inside['values'])}" if "values" in inside else ""
    return f"numpy {inside.get('dtype')}[{sizes}]{values}"


_SHOWN: dict[str, Any] = {
    "root": lambda slot, _: f"tensor <root> {slot}",
    "slot": lambda slot, _: f"tensor {slot}",
    "tensor": lambda told, _: f"tensor {told}, which was not recorded",
    "unchanged": lambda told, _: f"unchanged {told}",
    "float": lambda text, _: str(text),
    "complex": lambda parts, _: str(complex(*map(_float, parts))),
    "str": lambda text, tree: _shown_cut(repr(text), tree, "characters"),
    "bytes": lambda text, tree: _shown_cut(f"bytes {text}", tree, "bytes"),
    "int": lambda text, _: str(text),
    "tuple": lambda parts, _: f"({', '.join(map(_shown, parts))}{',' if len(parts) == 1 else ''})",
    "size": lambda parts, _: f"Size({', '.join(map(_shown, parts))})",
    "set": lambda parts, _: f"{{{', '.join(map(_shown, parts))}}}",
    "dict": lambda parts, _: f"{{{', '.join(f'{k!r}: {_shown(v)}' for k, v in parts.items())}}}",
    "pairs": lambda parts, _: f"{{{', '.join(f'{_shown(k)}: {_shown(v)}' for k, v in parts)}}}",
    "object": _shown_object,
    "array": _shown_array,
    "scalar": lambda inside, _: f"{inside['dtype']} {_shown(inside['value'])}",
    "more": lambda count, _: f"and {count} more",
    "cycle": lambda path, _: f"{path} again",
    "opaque": lambda kind, _: f"an object of {kind}",
    "unrecorded": lambda why, _: f"what was not recorded: {why}",
    "generator": lambda name, _: f"a generator of {name}",
    "enum": lambda name, _: str(name),
    "name": lambda name, _: str(name),
    "value": lambda text, _: str(text),
    "exception": lambda kind, tree: f"{str(kind).rpartition('.')[2]}({tree.get('message')!r})",
}
