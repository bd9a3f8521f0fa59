"""Both sides of a pair, made whole: what is measured, and what is run again."""

from __future__ import annotations

from functools import lru_cache

from dumpcmp.align.mesh.assemble import Assembled, assemble, on_shared_ranks
from dumpcmp.align.mesh.held import AssemblyError
from dumpcmp.align.pieces import cut_out, part_shape
from dumpcmp.align.turning import turned
from dumpcmp.comparing.expanding import unexpanded
from dumpcmp.comparing.kept_rows import rows_of_both
from dumpcmp.comparing.laying import Task
from dumpcmp.comparing.side import Shares, archive_at
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.row import Cut
from dumpcmp.nouns.value import Value

_SMALL = 1 << 15  # bytes of both sides


def side_of(task: Task, is_target: bool) -> Value:
    """One side of a pair, whole, or the rows of it that both sides keep.

    What one op gave out others were given: small ones are kept at hand for a while.
    """
    return _lately(task, is_target) or _side(task, is_target)


@lru_cache(maxsize=1024)
def _lately(task: Task, is_target: bool) -> Value | None:
    """One side of a small pair; None of a large one, of which nothing is kept."""
    return _side(task, is_target) if 0 < task.nbytes <= _SMALL else None


def let_go() -> None:
    """Keep nothing at hand any more: the steps that it belongs to are done with."""
    _lately.cache_clear()
    _tried.cache_clear()


def _side(task: Task, is_target: bool) -> Value:
    if task.is_sampled:
        return rows_of_both(task)[is_target]
    if task.is_partitioned:
        return assembled_sides(task)[is_target].value
    return target_part(task) if is_target else golden_part(task)


def sides_of(task: Task) -> tuple[Value, Value]:
    """Both sides of a pair as they are measured: whole, or the part that the other side has."""
    if task.is_partitioned:
        ours, theirs = assembled_sides(task)
        return ours.value, theirs.value
    return golden_part(task), target_part(task)


def golden_part(task: Task) -> Value:
    """What of golden the target has as a value."""
    return _part(whole_value(task.golden), task.golden_part)


def target_part(task: Task) -> Value:
    """What of the target golden has as a value, with its dims in golden's order."""
    value = _part(whole_value(task.target), task.target_part)
    if task.turn is None:
        return unexpanded(value, task.golden.first)
    shape = task.golden.first.shape
    shape = part_shape(shape, task.golden_part) if task.golden_part else shape
    return Value(value.dtype, turned(value.bits, task.turn, shape))


def assembled_sides(task: Task) -> tuple[Assembled, Assembled]:
    """Both sides of a pair of which one lies in shards.

    What measuring came to is kept at hand for a while, of small ones: ops were given it, too.
    """
    found = _tried(task) if 0 < task.nbytes <= _SMALL else _assembled(task)
    if isinstance(found, AssemblyError):
        raise found.with_traceback(None)
    return found


@lru_cache(maxsize=1024)
def _tried(task: Task) -> tuple[Assembled, Assembled] | AssemblyError:
    """Both sides of a small pair, or why they do not become whole."""
    try:
        return _assembled(task)
    except AssemblyError as error:
        return error.with_traceback(None)


def _assembled(task: Task) -> tuple[Assembled, Assembled]:
    held = task.golden.held(), task.target.held()
    if task.is_beside and (found := on_shared_ranks(*held, task.limit)) is not None:
        return found
    return assemble(*held, task.limit, task.assumed, task.known)


def _part(value: Value, part: Cut | None) -> Value:
    """What of `value` the other side has as a value of its own."""
    return value if part is None else Value(value.dtype, cut_out(value.bits, part))


def same_bytes(golden: Shares, target: Shares) -> bool:
    """Whether the digests say that nothing differs, so that one side need not be read."""
    one, other = golden.first, target.first
    return one.digest == other.digest != "" and (one.dtype, one.shape) == (other.dtype, other.shape)


def whole_value(shares: Shares) -> Value:
    """The elements of a value that some rank holds whole."""
    if len({record.digest for record in shares.records}) > 1:
        raise DumpcmpError(f"{shares.first.key} lies in shards on {len(shares.records)} ranks")
    return archive_at(shares.path).load(shares.first)
