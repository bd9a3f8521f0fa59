"""Whether two archives hold one step bit for bit, as their indexes tell; no value is read."""

from __future__ import annotations

import math

import numpy as np

from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.read.rankstep import RankStep
from dumpcmp.archive.schema import ABSENT, CALL_FIELDS, NO_ROW, SHARED_DIRECTORY, Form
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.value import DTYPES

# All but where the bytes lie.
_TOLD = ("call", "form", "order", "part", "same", "nbytes", "digest")
_KERNEL = CALL_FIELDS.index("kernel")


def same_contents(one: RankStep | None, other: RankStep | None) -> Contents | None:
    """What both steps hold in the same way, each in one part that is whole; None elsewhere.

    Nothing that a comparison has to look at closely is among it: no kernels of a compiler, nothing
    empty, and nothing of which less than all elements is kept.
    """
    if one is None or other is None or len(one.parts) != 1 or len(other.parts) != 1:
        return None
    ((number, ours),), ((also, theirs),) = one.parts.items(), other.parts.items()
    if number != also or not (_is_whole(ours, number) and _is_whole(theirs, number)):
        return None
    is_same = ours.forms == theirs.forms and ours.listed_calls == theirs.listed_calls
    is_same = is_same and all(np.array_equal(ours.rows[c], theirs.rows[c]) for c in _TOLD)
    return ours if is_same and _is_plain(ours) else None


def _is_whole(contents: Contents, number: int) -> bool:
    """Whether all values lie where the index of a part says that they do, or in shared parts."""
    rows = contents.rows
    if contents.problems or contents.missing or contents.datasets or not contents.sealed:
        return False
    if any(path.parent.name != SHARED_DIRECTORY for path, _ in contents.elsewhere.values()):
        return False
    return bool(len(rows) and (rows["part"] == number).all() and (rows["call"] != ABSENT).all())


def _is_plain(contents: Contents) -> bool:
    """Whether a comparison has nothing to say of the values but that they are the same."""
    rows, calls = contents.rows, contents.listed_calls
    linked = rows["same"][rows["same"] != NO_ROW]
    if linked.size and (linked.max() >= len(rows) or (rows["same"][linked] != NO_ROW).any()):
        return False
    if (rows["digest"][rows["same"] == NO_ROW] == b"").any():
        return False
    if len(set(contents.ops)) < len(calls) or any(call[_KERNEL] for call in calls.listed):
        return False
    return _are_named_once(contents) and all(map(_is_plain_form, contents.forms))


def _are_named_once(contents: Contents) -> bool:
    """Whether no name comes twice, of which the first of its values alone would count."""
    slots: dict[str, int] = {}
    numbers = np.array([slots.setdefault(form.slot, len(slots)) for form in contents.forms])
    names = contents.rows["call"].astype(np.int64) * len(slots) + numbers[contents.rows["form"]]
    return len(set(names.tolist())) == len(names)


def _is_plain_form(form: Form) -> bool:
    is_full = form.kept is Kept.FULL and form.stored is None and math.prod(form.shape) > 0
    is_told = form.layout or form.problem or form.seen_in
    return is_full and not is_told and form.dtype in DTYPES
