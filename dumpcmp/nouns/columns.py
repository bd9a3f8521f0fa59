"""The columns of a report, written down once: CSV, JSON, to_pandas and docs/reports.md share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from dumpcmp.nouns.replay import Choice
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.rows import Rows

if TYPE_CHECKING:
    import pandas as pd

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, what it means, and how to read it from a Row."""

    name: str
    doc: str
    cell: Callable[[Row], Cell]
    holder: str = ""  # the attribute of a Row, perhaps None, that has what the cell tells,
    path: str = ""  # and as which attribute


def _column(name: str, doc: str, path: str) -> Column:
    """A column that is an attribute of a Row, or of something that a Row may not have."""
    holder, _, rest = path.partition(".")
    if not rest:
        return Column(name, doc, attrgetter(holder))
    held, read = attrgetter(holder), attrgetter(rest)
    cell = lambda row: None if held(row) is None else read(held(row))  # noqa: E731
    return Column(name, doc, cell, holder, rest)


def _metric(name: str, doc: str, path: str = "") -> Column:
    return _column(name, doc, f"metrics.{path or name}")


@lru_cache(1024)
def shape_text(shape: tuple[int, ...] | None) -> str | None:
    """A shape as reports write it."""
    return None if shape is None else "x".join(map(str, shape)) or "scalar"


def _place(row: Row) -> str | None:
    return None if row.metrics is None or row.metrics.equal else str(list(row.metrics.worst))


def _dtype(row: Row) -> str | None:
    return _both(row.golden_dtype or None, row.target_dtype or None)


def _shape(row: Row) -> str | None:
    return _both(shape_text(row.golden_shape), shape_text(row.target_shape))


def _both(golden: str | None, target: str | None) -> str | None:
    """What both sides have, or each has."""
    if golden is None or target is None or golden == target:
        return target if golden is None else golden
    return f"{golden} | {target}"


def _how_known(row: Row) -> str | None:
    if row.metrics is None:
        return None
    how = "exact" if row.metrics.exact else "estimated"
    return how if row.metrics.sample is None else f"{how}: {row.metrics.sample}"


def _other_name(row: Row) -> str | None:
    same = row.golden_key is None or row.golden_key == row.target_key
    return None if row.target_key is None or same else str(row.target_key)


def _by_rank(row: Row) -> str | None:
    if not row.by_rank:
        return None
    return " ".join(f"{rank}:{error:.4g}" for rank, error in row.by_rank)


def _choice(row: Row) -> Choice | None:
    choice = row.replay.choice if row.replay else None
    return choice if choice is not None and choice.decides else None


def _agreement(row: Row) -> float | None:
    choice = _choice(row)
    return None if choice is None else choice.agreement


def _margin(row: Row) -> float | None:
    choice = _choice(row)
    return choice.flips[0].margin if choice is not None and choice.flips else None


def _noise(row: Row) -> float | None:
    choice = _choice(row)
    return choice.flips[0].noise if choice is not None and choice.flips else None


COLUMNS: tuple[Column, ...] = (
    _column("token", "step: the nth call of the model, from 0", "key.step"),
    _column("op", "module path, or module path/function", "key.op"),
    _column("verdict", "PASS, FAIL, UNPAIRED, SHAPE, ...", "verdict.value"),
    _metric("cosine", "cosine of the angle between golden and mine"),
    _metric("max_abs_diff", "largest |mine - golden|"),
    _metric("max_rel_err", "largest |mine - golden| / (|golden| + rms of golden)"),
    _metric("rel_l2", "norm of mine - golden over the norm of golden"),
    Column("dtype", "element type: golden's, and mine where it is another", _dtype),
    Column("shape", "shape: golden's, and mine where it is another", _shape),
    _column("reason", "why the verdict is not PASS", "reason"),
    _column("model", "name of the root module", "key.model"),
    _column("call", "nth call of the op, from 0", "key.call"),
    _column("slot", "which value of the call: input.0, output.0, ...", "key.slot"),
    _column("root", "True where a divergence began", "root"),
    Column("cause", "the root that this row inherits from",
           lambda row: str(row.cause) if row.cause else ""),
    Column("origin", "where a difference comes from: equal, introduced, inherited, amplified, "
           "flipped, unknown", attrgetter("origin.value")),
    _column("introduced", "rel_l2 of mine against the op in float64 on what mine was given",
            "replay.introduced"),
    _column("inherited", "rel_l2 of the op in float64 on what mine was given against golden",
            "replay.inherited"),
    _column("amplification", "inherited over the largest rel_l2 of what was given",
            "replay.amplification"),
    _column("condition", "how much larger the terms of the op's sums are than what they come to",
            "replay.condition"),
    Column("agreement", "of an op that chooses: share of rows in which both sides chose the same",
           _agreement),
    Column("margin", "of a flip: how far apart golden's scores of the two choices are", _margin),
    Column("score_noise", "of a flip: how far apart both sides' scores are in that row", _noise),
    Column("zero", "True where both sides are zero everywhere, and their cosine 1 for that alone",
           lambda row: row.is_zero),
    Column("worst", "index of the element with max_abs_diff", _place),
    _metric("mean_rel_err", "mean of |mine - golden| / (|golden| + rms of golden)"),
    _metric("mean_rel_err_plain", "mean of |mine - golden| / |golden|, 0 at golden zeros"),
    _metric("max_rel_err_plain", "largest |mine - golden| / |golden|; inf at golden zeros"),
    _column("tolerance", "the rel_l2 that was admissible, where that was the rule",
            "judgement.limit"),
    _metric("cosine_distance", "1 - cosine, from the differences, so that it keeps its digits"),
    _metric("rmse", "root of the mean squared difference"),
    _metric("mean_abs_diff", "mean |mine - golden|"),
    _metric("pcc", "Pearson correlation; empty for constants, blind to scale and offset"),
    _metric("gain", "how much larger mine is than golden, as a factor less 1"),
    _metric("gain_score", "mean gain of the rows over its standard error; above 8 is no chance"),
    _metric("max_row_err", "largest relative error of one row (trailing dims of 64 or more)"),
    _metric("max_ulp", "most representable numbers between two elements"),
    _metric("count", "elements of the value"),
    _metric("mismatched", "elements that are not close (rtol, atol), or differ if integers"),
    _metric("golden_nan", "NaN in golden", "golden.num_nan"),
    _metric("my_nan", "NaN in mine", "target.num_nan"),
    _metric("golden_inf", "infinities in golden", "golden.num_inf"),
    _metric("my_inf", "infinities in mine", "target.num_inf"),
    _column("golden_dtype", "element type of golden", "golden_dtype"),
    _column("my_dtype", "element type of mine", "target_dtype"),
    Column("golden_shape", "shape of golden", lambda row: shape_text(row.golden_shape)),
    Column("my_shape", "shape of mine", lambda row: shape_text(row.target_shape)),
    _metric("golden_min", "smallest finite element of golden", "golden.min"),
    _metric("golden_max", "largest finite element of golden", "golden.max"),
    _metric("golden_mean", "mean of golden's finite elements", "golden.mean"),
    _metric("golden_norm", "Euclidean norm of golden's finite elements", "golden.norm"),
    _metric("my_min", "smallest finite element of mine", "target.min"),
    _metric("my_max", "largest finite element of mine", "target.max"),
    _metric("my_mean", "mean of my finite elements", "target.mean"),
    _metric("my_norm", "Euclidean norm of my finite elements", "target.norm"),
    _column("golden_error", "rmse of golden against --reference", "reference_errors.golden"),
    _column("my_error", "rmse of mine against --reference", "reference_errors.target"),
    _column("error_ratio", "my_error over golden_error; below 1, mine is the better",
           "reference_errors.ratio"),
    Column("metrics", "exact, or estimated from Summaries; of how many rows, if not of all",
           _how_known),
    _metric("confidence", "relative standard deviation of estimates; inf: only a lower bound"),
    Column("paired_by",
           "how the two sides found each other: key, prefix, mapping, order, provenance, twin, ...",
           attrgetter("paired_by")),
    _column("layout",
            "of a partitioned run: how the shards became whole; of a port: the order of its dims",
            "layout"),
    Column("by_rank", "of a partitioned run, where the value differs: rel_l2 of each rank's shard",
           _by_rank),
    Column("my_op", "the op on my side, where it has another name or call", _other_name),
    _column("source", "line of the program that ran the op", "source"),
)  # fmt: skip


READ_FIRST = 10  # columns that a reader looks at first: a table has them even if they are empty
_NAMES = tuple(column.name for column in COLUMNS)
_HOLDERS = tuple(dict.fromkeys(column.holder for column in COLUMNS if column.holder))
_ALONE = tuple(at for at, column in enumerate(COLUMNS) if not column.holder)
_HELD = {
    name: tuple(at for at, one in enumerate(COLUMNS) if one.holder == name) for name in _HOLDERS
}


def _read_at_once(places: Sequence[int]) -> Callable[[Any], tuple[Cell, ...]]:
    """Reads the cells at `places` of what holds them all."""
    paths = [COLUMNS[at].path for at in places]
    if len(paths) > 1:
        return attrgetter(*paths)
    alone = attrgetter(paths[0])
    return lambda value: (alone(value),)


# What may hold several cells, how all of them are read at once, and what stands there without it.
_TOGETHER = {
    name: (attrgetter(name), _read_at_once(places), (None,) * len(places))
    for name, places in _HELD.items()
}
_OF_METRICS = tuple(at for at in _ALONE if COLUMNS[at].name in ("zero", "worst", "metrics"))
_OF_THE_REST = tuple(at for at in _ALONE if at not in _OF_METRICS)
_REST_TOGETHER = tuple(told for name, told in _TOGETHER.items() if name != "metrics")
_METRICS_ALONE = tuple(COLUMNS[at].cell for at in _OF_METRICS)
_REST_ALONE = tuple(COLUMNS[at].cell for at in _OF_THE_REST)
_READ = [  # the places in the order of reading
    *_HELD["metrics"], *_OF_METRICS,
    *chain.from_iterable(places for name, places in _HELD.items() if name != "metrics"),
    *_OF_THE_REST,
]  # fmt: skip
_IN_ORDER = itemgetter(*(_READ.index(at) for at in range(len(COLUMNS))))
TEXTS = tuple(at for at, column in enumerate(COLUMNS) if column.holder != "metrics")  # perhaps
_C = TypeVar("_C")


def line_of(row: Row) -> list[Cell]:
    """The cells of one row in the order of COLUMNS. A report asks for all of every row."""
    return list(in_order([*metrics_cells(row), *other_cells(row)]))


def metrics_cells(row: Row) -> list[Cell]:
    """Those cells that the Metrics of a row tell, whichever row has them; not in order."""
    holder, read, nothing = _TOGETHER["metrics"]
    value = holder(row)
    found = nothing if value is None else read(value)
    return [*found, *(cell_of(row) for cell_of in _METRICS_ALONE)]


def other_cells(row: Row) -> list[Cell]:
    """All other cells of a row; not in order."""
    found: list[Cell] = []
    for holder, read, nothing in _REST_TOGETHER:
        value = holder(row)
        found += nothing if value is None else read(value)
    found += [cell_of(row) for cell_of in _REST_ALONE]
    return found


def in_order(found: Sequence[_C]) -> tuple[_C, ...]:
    """What stands for `metrics_cells` and then `other_cells`, in the order of COLUMNS."""
    ordered: tuple[_C, ...] = _IN_ORDER(found)
    return ordered


def cells(row: Row) -> dict[str, Cell]:
    """The cells of one row, by column; a user's own numbers come last."""
    return dict(zip(_NAMES, line_of(row), strict=True)) | dict(row.own)


def own_columns(rows: Iterable[Row]) -> dict[str, None]:
    """The names of a user's own numbers."""
    return dict.fromkeys(name for row in rows for name, _ in row.own)


def headings(rows: Iterable[Row]) -> list[str]:
    """The names of all columns that `rows` fill, a user's own last."""
    own = rows.own if isinstance(rows, Rows) else own_columns(rows)
    return [*(column.name for column in COLUMNS), *own]


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """`rows` as a table."""
    import pandas as pd

    return pd.DataFrame([cells(row) for row in rows], columns=headings(rows))
