"""The order in which roots are told: as they came about."""

from __future__ import annotations

from collections.abc import Iterable

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.op_names import BACKWARD
from dumpcmp.nouns.row import Row, Verdict


def in_order(roots: Iterable[Row]) -> list[Row]:
    """`roots`, which are in the order of rows, as they came about: step by step, backward last.

    The backward pass runs against the order of the rows. What a parameter's gradient is in the
    end is known after it. Ops of the pass itself, which the dispatcher shows, ran when the
    gradients in their module came about. What could not be read may be a root: it comes after those
    of its step that are.
    """
    listed = list(enumerate(roots))
    passed = {
        (row.key.step, row.key.op.module): -index
        for index, row in listed
        if row.key.slot.is_gradient
    }

    def when(item: tuple[int, Row]) -> tuple[int, bool, bool, bool, float]:
        index, row = item
        key, slot = row.key, row.key.slot
        at = -index if slot.is_gradient else index
        if _is_backward(key) and not slot.is_gradient:
            at = passed.get((key.step, key.op.module), -len(listed))
        is_unread = row.verdict is Verdict.ERROR
        return key.step, is_unread, _is_backward(key), slot.is_parameter_gradient, at

    return [row for _, row in sorted(listed, key=when)]


def _is_backward(key: Key) -> bool:
    """Whether it came about in the backward pass: a gradient, or an op that autograd ran."""
    return key.slot.is_gradient or key.op.function.startswith(BACKWARD)
