"""Holds the trees of two effects against each other, leaf by leaf."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dumpcmp.nouns.effects import EffectLeaf, EffectTree, TreeLeafKind

_KEPT = frozenset({"dtype", "device"})
_BUILT_IN = ("list", "dict", "tuple", "size", "set")
_MOST_SHOWN = 60  # characters of one leaf in a sentence


@dataclass(frozen=True, slots=True)
class NumberRule:
    """When two floats of a result are the same number.

    They are measured numbers: what a program read off tensors that differ by rounding differs as
    they do. Where nothing of the runs differs, no number may.
    """

    limit: float = 0.0  # relative difference that rounding explains
    is_read: Callable[[float, float], bool] = lambda _golden, _target: False  # off values of both

    def for_path(self, path: str) -> NumberRule:  # noqa: ARG002
        """The rule for the leaf at `path`."""
        return self

    def are_same(self, golden: complex, target: complex) -> bool:
        """Whether `target` is golden's number, but for rounding."""
        if golden == target or (cmath.isnan(golden) and cmath.isnan(target)):
            return True
        if not (cmath.isfinite(golden) and cmath.isfinite(target)):
            return False
        if abs(target - golden) <= self.limit * abs(golden):
            return True
        if isinstance(golden, complex) or isinstance(target, complex):
            return False
        return self.limit > 0 and self.is_read(float(golden), float(target))


SETTINGS = 2.0**-40  # relative: what two ways to compute a learning rate in Python round


@dataclass(frozen=True, slots=True)
class TrainingRule(NumberRule):
    """Settings of training are given, not measured; the norm of gradients is measured."""

    def for_path(self, path: str) -> NumberRule:
        """The rule for the leaf at `path`."""
        return self if path.endswith(".total_norm") else NumberRule(SETTINGS)


@dataclass(frozen=True, slots=True)
class LeafDifference:
    """A leaf in which two effects differ; None where a side has no such leaf."""

    golden: EffectLeaf | None
    target: EffectLeaf | None

    @property
    def is_of_dtypes(self) -> bool:
        """Whether both leaves are dtypes."""
        leaves = (self.golden, self.target)
        return all(leaf is not None and _word(leaf) == "dtype" for leaf in leaves)

    @property
    def is_of_numbers(self) -> bool:
        """Whether both sides have a number there."""
        leaves = (self.golden, self.target)
        return all(leaf is not None and _is_number(leaf.value) for leaf in leaves)

    @property
    def said(self) -> str:
        """The difference in a sentence."""
        ours, theirs = self.golden, self.target
        if ours is None or theirs is None:
            leaf, who, other = (ours, "golden", "mine") if ours else (theirs, "mine", "golden's")
            assert leaf is not None
            return f"{leaf.path} is {_cut(leaf.shown)} in {who}, and {other} has no such part"
        if (place := _first_apart(ours.value, theirs.value)) is not None:
            values = (leaf.value["values"][place] for leaf in (ours, theirs))
            return f"{ours.path}.flat[{place}] is {next(values)} in golden, {next(values)} in mine"
        one, other = _cut(ours.shown), _cut(theirs.shown)
        if one == other:
            return f"{ours.path} is not the same in golden and mine: {one}"
        return f"{ours.path} is {one} in golden, {other} in mine{_relative(ours, theirs)}"


@dataclass(frozen=True, slots=True)
class TreeComparison:
    """What two effects have in common, and what not."""

    num_same: int = 0  # leaves that are no tensors, and not nothing
    tensors: Sequence[tuple[EffectLeaf, EffectLeaf]] = ()  # which have rows of their own
    differences: Sequence[LeafDifference] = ()
    open: Sequence[str] = ()  # what nobody could compare, and why
    containers: Sequence[str] = ()  # those of another type, though their parts are alike
    alone: Sequence[LeafDifference] = field(default_factory=tuple)  # tensors of one side
    kept: Sequence[LeafDifference] = ()  # where tensors lie and in which dtype, as their rows tell


def compare_trees(golden: EffectTree, target: EffectTree, rule: NumberRule) -> TreeComparison:
    """Hold `target` against `golden`: parts of one path, then others that have the same value.

    Two implementations may call the parts of a result otherwise; a part that is nothing may be
    left out.
    """
    ours = {leaf.path: leaf for leaf in golden.leaves}
    theirs = {leaf.path: leaf for leaf in target.leaves}
    both = [(leaf, theirs[path]) for path, leaf in ours.items() if path in theirs]
    only_ours = [leaf for path, leaf in ours.items() if path not in theirs and _counts(leaf)]
    only_theirs = [leaf for path, leaf in theirs.items() if path not in ours and _counts(leaf)]
    both += _by_value(only_ours, only_theirs, rule)
    tensors, differences, opened, num_same = [], [], [], 0
    for one, other in both:
        if one.kind is TreeLeafKind.TENSOR and other.kind is TreeLeafKind.TENSOR:
            tensors.append((one, other))
        elif TreeLeafKind.OPEN in (one.kind, other.kind):
            opened.append(_why_open(one, other))
        elif _are_same(one, other, rule.for_path(one.path)):
            num_same += not one.is_nothing
        else:
            differences.append(LeafDifference(one, other))
    kept = [one for one in differences if tensors and _is_kept_otherwise(one)]
    differences = [one for one in differences if one not in kept]
    only_ours = _but_of_missing_objects(only_ours, golden, target)
    only_theirs = _but_of_missing_objects(only_theirs, target, golden)
    left = [LeafDifference(leaf, None) for leaf in only_ours]
    left += [LeafDifference(None, leaf) for leaf in only_theirs]
    # What a side returns beside others has rows of its own. Who returns nothing at all lacks it.
    is_empty = not all(any(map(_counts, tree.leaves)) for tree in (golden, target))
    alone = [one for one in left if _kind(one) is TreeLeafKind.TENSOR and not is_empty]
    differences += [one for one in left if _kind(one) is not TreeLeafKind.TENSOR or is_empty]
    return TreeComparison(
        num_same, tensors, differences, opened, list(_other_containers(golden, target)), alone, kept
    )


def _is_kept_otherwise(difference: LeafDifference) -> bool:
    """Whether both leaves are dtypes, or both devices: the rows of tensors tell what it matters."""
    if difference.golden is None or difference.target is None:
        return False
    words = {_word(difference.golden), _word(difference.target)}
    return len(words) == 1 and words <= _KEPT


def _word(leaf: EffectLeaf) -> str:
    """Which word JSON has for a leaf, if it has no value of its own."""
    return str(next(iter(leaf.value), "")) if isinstance(leaf.value, dict) else ""


def _but_of_missing_objects(
    leaves: Sequence[EffectLeaf], own: EffectTree, other: EffectTree
) -> list[EffectLeaf]:
    """`leaves`, less the attributes of objects with tensors that the other side does not return.

    A cache that one side returns has tensors, and attributes that say what is in it. Who returns
    no cache lacks its tensors, which are told by themselves; its attributes say nothing more.
    """
    tensors = [leaf.path for leaf in own.leaves if leaf.kind is TreeLeafKind.TENSOR]
    found = {*other.containers, *(leaf.path for leaf in other.leaves if _counts(leaf))}
    missing = [
        path for path, kind in own.containers.items()
        if kind not in _BUILT_IN and path not in found
        and any(_is_inside(tensor, path) for tensor in tensors)
    ]  # fmt: skip
    return [
        leaf for leaf in leaves
        if leaf.kind is TreeLeafKind.TENSOR or not any(_is_inside(leaf.path, p) for p in missing)
    ]  # fmt: skip


def _is_inside(path: str, container: str) -> bool:
    return path.startswith((f"{container}.", f"{container}["))


def _counts(leaf: EffectLeaf) -> bool:
    return not leaf.is_nothing


def _kind(difference: LeafDifference) -> TreeLeafKind:
    leaf = difference.golden or difference.target
    assert leaf is not None
    return leaf.kind


def _by_value(
    golden: list[EffectLeaf], target: list[EffectLeaf], rule: NumberRule
) -> Iterator[tuple[EffectLeaf, EffectLeaf]]:
    """Leaves of other paths that have the same value; tensors in order. Those found are removed."""
    for leaf in list(golden):
        same = (other for other in target if _may_be(leaf, other, rule))
        if (found := next(same, None)) is not None:
            golden.remove(leaf)
            target.remove(found)
            yield leaf, found


def _may_be(golden: EffectLeaf, target: EffectLeaf, rule: NumberRule) -> bool:
    if TreeLeafKind.OPEN in (golden.kind, target.kind) or golden.kind is not target.kind:
        return False
    if golden.kind is TreeLeafKind.TENSOR:  # of several nobody knows which is which
        return False
    return _are_same(golden, target, rule)


def _are_same(golden: EffectLeaf, target: EffectLeaf, rule: NumberRule) -> bool:
    if TreeLeafKind.TENSOR in (golden.kind, target.kind):
        return False
    one, other = golden.value, target.value
    if isinstance(one, dict) and isinstance(other, dict) and "values" in one and "values" in other:
        return _are_same_arrays(one, other, rule)
    if _is_number(one) and _is_number(other):
        exact = isinstance(one, int) and isinstance(other, int)
        return bool(one == other) if exact else rule.are_same(one, other)
    return type(one) is type(other) and bool(one == other)


def _are_same_arrays(
    golden: Mapping[str, Any], target: Mapping[str, Any], rule: NumberRule
) -> bool:
    """Whether two small arrays of numpy have one type and shape, and the same numbers."""
    if any(golden.get(word) != target.get(word) for word in ("dtype", "shape")):
        return False
    pairs = zip(golden["values"], target["values"], strict=False)
    return len(golden["values"]) == len(target["values"]) and all(
        _are_same_numbers(_number(one), _number(other), rule) for one, other in pairs
    )


def _first_apart(golden: Any, target: Any) -> int | None:
    """The first element in which two arrays of one type and shape differ."""
    if not (isinstance(golden, dict) and isinstance(target, dict)):
        return None
    if "values" not in golden or any(golden.get(w) != target.get(w) for w in ("dtype", "shape")):
        return None
    pairs = enumerate(zip(golden["values"], target.get("values", ()), strict=False))
    return next((place for place, (one, other) in pairs if one != other), None)


def _are_same_numbers(golden: Any, target: Any, rule: NumberRule) -> bool:
    if isinstance(golden, int) and isinstance(target, int):
        return golden == target
    return rule.are_same(golden, target)


def _number(tree: Any) -> Any:
    """A number of an array, as JSON has it."""
    if not isinstance(tree, dict):
        return tree
    if "float" in tree:
        return float(str(tree["float"]))
    return complex(*map(_number, tree.get("complex", (math.nan, 0.0))))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def _why_open(golden: EffectLeaf, target: EffectLeaf) -> str:
    is_ours = golden.kind is TreeLeafKind.OPEN
    leaf, who = (golden, "golden") if is_ours else (target, "mine")
    return f"{leaf.path} is {_cut(leaf.shown)} in {who}, which cannot be compared"


def _other_containers(golden: EffectTree, target: EffectTree) -> Iterator[str]:
    for path, kind in golden.containers.items():
        other = target.containers.get(path)
        if other is not None and other != kind:
            yield f"{path} is a {kind} in golden, a {other} in mine; their parts are compared"


def _relative(golden: EffectLeaf, target: EffectLeaf) -> str:
    """How far apart two numbers are."""
    one, other = golden.value, target.value
    numbers = [one, other] if _is_number(one) and _is_number(other) else []
    if not numbers or golden.kind is not TreeLeafKind.NUMBER or not one or not cmath.isfinite(one):
        return ""
    return f" (relative difference {abs(other - one) / abs(one):.3g})"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
