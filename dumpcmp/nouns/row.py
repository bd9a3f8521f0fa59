"""One value of both runs: the Pair, its Metrics, the Judgement on it, and the Row of it all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.replay import Origin, Replay
from dumpcmp.nouns.sampled import Sample
from dumpcmp.nouns.spoken import shorten


class Verdict(StrEnum):
    """The judgement on one row. Only PASS passes; absence of evidence is not PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNPAIRED = "UNPAIRED"  # only one side has it, and nothing after it shows that it is right
    COVERED = "COVERED"  # only one side has it; all that was computed from it agrees, or it is zero
    DEAD = "DEAD"  # only one side has it, and nothing was computed from it
    SHAPE = "SHAPE"  # the sides have different shapes
    DTYPE = "DTYPE"  # different dtypes; compared after promotion, within tolerance
    EMPTY = "EMPTY"  # no elements: nothing was compared
    NONFINITE = "NONFINITE"  # NaN or Inf where the other side has none
    FLIP = "FLIP"  # another choice than golden's, and a right one for what was given
    FUSED = "FUSED"  # not materialised in the target: listed, not compared
    INCONCLUSIVE = "INCONCLUSIVE"  # no credible reference, or no layout that fits
    ERROR = "ERROR"  # could not be read or measured; the reason says why
    REFUSED = "REFUSED"  # a partition that the op's annotation forbids
    SKIPPED = "SKIPPED"  # not tried: listed with the reason

    @property
    def fails(self) -> bool:
        """Whether this verdict alone makes the runs different."""
        return self in FAILING


FAILING = frozenset(map(Verdict, ("FAIL", "UNPAIRED", "SHAPE", "NONFINITE", "ERROR", "REFUSED")))


class Extent(NamedTuple):
    """The extremes, mean and Euclidean norm of one side's finite elements, and its others."""

    min: float = math.nan
    max: float = math.nan
    mean: float = math.nan
    norm: float = math.nan
    num_nan: int = 0
    num_inf: int = 0


@dataclass(frozen=True, slots=True)
class Closeness:
    """How near an element must lie so as not to count as `Metrics.mismatched`."""

    rtol: float = 1e-5
    atol: float = 1e-8


USUAL = Closeness()
EXACTLY = Closeness(0.0, 0.0)


class Metrics(NamedTuple):
    """How far the target lies from golden, as numbers and without opinion.

    Differences are target - golden, over the elements that are finite on both sides. Sums are in
    float64. What does not exist is NaN: the errors of an empty pair, the cosine of a zero with
    something else, the PCC of a constant.
    """

    count: int  # type: ignore[assignment]  # elements of either side; no method of a tuple's
    equal: bool  # the bits of both sides are the same
    num_finite: int = 0  # elements that are finite on both sides
    cosine: float = math.nan
    cosine_distance: float = math.nan  # 1 - cosine, from the differences: exact near zero
    pcc: float = math.nan
    rel_l2: float = math.nan  # |target - golden| / |golden|
    gain: float = math.nan  # the target is (1 + gain) * golden + what does not resemble golden
    gain_score: float = math.nan  # the mean gain of rows over its standard error
    max_row_err: float = math.nan  # of rows: |difference| / (|golden's row| + rms of golden's rows)
    rmse: float = math.nan
    max_abs_diff: float = math.nan
    mean_abs_diff: float = math.nan
    worst: tuple[int, ...] = ()  # where max_abs_diff is
    max_rel_err: float = math.nan  # of |difference| / (|golden| + rms(golden))
    mean_rel_err: float = math.nan
    mean_rel_err_plain: float = math.nan  # of |difference| / |golden|, and 0 at golden zeros
    max_rel_err_plain: float = math.nan  # of |difference| / |golden|; infinite at golden zeros
    max_ulp: float = math.nan  # in units of the coarser dtype
    mismatched: int = 0  # elements outside `Closeness`
    nonfinite_agree: bool = True  # NaN and the infinities are at the same places on both sides
    golden: Extent = Extent()
    target: Extent = Extent()
    exact: bool = True  # False: estimated from Summaries
    confidence: float = 0.0  # relative standard deviation of an estimate
    sample: Sample | None = None  # the rows that were compared, where nobody has the others

    @property
    def golden_rms(self) -> float:
        """The root mean square of golden's elements that are finite on both sides."""
        return self.golden.norm / math.sqrt(max(1, self.num_finite))

    @classmethod
    def of_equals(cls, count: int, num_finite: int, side: Extent) -> Metrics:
        """Of two sides with the same bits, of which `side` tells: every error is 0."""
        direction = 1.0 if num_finite else math.nan
        pcc = 1.0 if side.min < side.max else math.nan
        return cls(
            count, True, num_finite, direction, 1 - direction, pcc, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, (), 0.0, 0.0, 0.0, 0.0, 0.0, 0, True, side, side,
        )  # fmt: skip


Own = tuple[tuple[str, float], ...]  # a user's own numbers of a pair, by the names of their columns


ByRank = tuple[tuple[int, float], ...]  # where a value differs: each rank's rel_l2 of its shard


class ReferenceErrors(NamedTuple):
    """How far both sides lie from a reference of higher precision, as rmse, and its own rms."""

    golden: float
    target: float
    rms: float

    @classmethod
    def of(cls, golden: Metrics, target: Metrics) -> ReferenceErrors | None:
        """The errors, from both sides measured against the reference; None without numbers."""
        if not (golden.nonfinite_agree and target.nonfinite_agree):
            return None
        return cls(golden.rmse, target.rmse, golden.golden_rms)

    @property
    def ratio(self) -> float:
        """The target's error in units of golden's."""
        if not self.golden:
            return math.inf if self.target else 1.0
        return self.target / self.golden


class PairedBy(StrEnum):
    """How the two sides of a value found each other."""

    NOTHING = ""  # they did not: one side alone has it
    KEY = "key"
    PREFIX = "prefix"  # the same key but for what wrappers put into module paths
    MAPPING = "mapping"  # the user's
    ORDER = "order"  # among the calls of one module
    FLOW = "flow"  # they do the same to values that are paired, under whatever name
    VALUE = "value"  # it is a value that is paired elsewhere: a module's, a copy's, a view's
    PROVENANCE = "provenance"  # what the graph of a compiled target tells
    TWIN = "twin"  # the same, where the twin of a kernel stored the value
    COLLECTIVE = "collective"  # what a collective moved is golden's value before it
    PATH = "path"  # in what two callables gave, not in archives


class Why(StrEnum):
    """What lies behind a judgement, for code that goes on from it; its `reason` is for people."""

    PLAIN = ""  # the reason says it all
    REMOVED = "removed"  # FUSED: no kernel of the target computes the op at all
    BLIND = "blind"  # PASS by a rule that other numbers contradict
    VOID = "void"  # no element of either side is finite: PASS, or INCONCLUSIVE where any is NaN
    INTRODUCED = "introduced"  # FAIL: the op did something wrong with what it was given
    GOLDEN = "golden"  # FAIL: golden's op did something wrong with what it was given
    LEAF = "leaf"  # FAIL: a value that no op computed is not the same
    CALL = "call"  # FAIL: the sides call other functions, or with other arguments
    WIRED = "wired"  # FAIL: the target took another value than golden took
    RIGHT = "right"  # PASS, though the sides differ: every op on the way is right
    LEVELS = "levels"  # DTYPE: it was rounded to levels that are declared, and is right for that
    ILL = "ill"  # the same, of what is left after cancellation: it agrees with nothing
    UNASKED = "unasked"  # SKIPPED: one side was not asked to record it
    EFFECT = "effect"  # of what a run leaves behind besides values of its ops
    REPLICAS = "replicas"  # FAIL: ranks that should have one value do not
    TERMS = "terms"  # INCONCLUSIVE: ranks hold terms of a gradient, and who adds them up is open


@quickly_made
@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the sentence that explains it."""

    verdict: Verdict
    reason: str = ""
    limit: float = math.nan  # the rel_l2 that was admissible, where that was the rule
    why: Why = Why.PLAIN
    origin: Origin = Origin.UNKNOWN  # where the difference comes from

    def coming(self, origin: Origin) -> Judgement:
        """The same, where it is known where the difference comes from."""
        return Judgement(self.verdict, self.reason, self.limit, self.why, origin)


@quickly_made
@dataclass(frozen=True, slots=True, repr=False)
class Row:
    """One line of the outcome: a value of either run, paired or not, and what was found."""

    key: Key  # golden's, or the target's where golden has none
    order: int  # golden's execution order, or the target's
    judgement: Judgement
    metrics: Metrics | None = None
    golden_key: Key | None = None
    target_key: Key | None = None
    golden_dtype: str = ""
    target_dtype: str = ""
    golden_shape: tuple[int, ...] | None = None
    target_shape: tuple[int, ...] | None = None
    paired_by: PairedBy = PairedBy.NOTHING
    root: bool = False  # inputs agree and this output does not: the divergence began here
    cause: Key | None = None  # of a row that only inherits: the root that it inherits from
    source: str = ""
    layout: str = ""  # of a partitioned run: how the shards became whole
    by_rank: ByRank = ()
    reference_errors: ReferenceErrors | None = None  # against a run in higher precision
    replay: Replay | None = None  # what running the op again told
    own: Own = ()

    kernel: str = ""  # of a root that a fused kernel stores: that kernel,
    suspects: tuple[str, ...] = ()  # and the ops that it computes besides and does not store

    def __repr__(self) -> str:
        error = f", rel_l2 {self.metrics.rel_l2:.3g}" if self.metrics else ""
        why = f": {shorten(self.reason, _WIDEST_REASON)}" if self.reason else ""
        return f"<Row {self.key} {self.verdict}{error}{why}>"

    def caused_by(self, cause: Key | None) -> Row:
        """The same, where it is known which root it inherits from."""
        values = list(_ROW_VALUES(self))  # `replace` takes three times as long, of every row
        values[_CAUSE_AT] = cause
        return Row(*values)

    @property
    def is_zero(self) -> bool:
        """Whether both sides are zero everywhere, so that their cosine of 1 says little."""
        if self.metrics is None or not self.metrics.num_finite:
            return False
        return self.metrics.golden.norm == 0 == self.metrics.target.norm

    @property
    def verdict(self) -> Verdict:
        """The verdict of the judgement."""
        return self.judgement.verdict

    @property
    def origin(self) -> Origin:
        """Where the difference comes from."""
        return self.judgement.origin

    @property
    def reason(self) -> str:
        """Why the verdict is what it is; of ops in one kernel, how to tell them apart."""
        if not self.suspects:
            return self.judgement.reason
        return f"{self.judgement.reason}; dump with --realize to tell the kernel's ops apart"


_WIDEST_REASON = 120  # characters
_ROW_FIELDS = tuple(one.name for one in fields(Row))
_ROW_VALUES = attrgetter(*_ROW_FIELDS)
_CAUSE_AT = _ROW_FIELDS.index("cause")


def void(rows: Iterable[Row]) -> Iterator[str]:
    """What must be said of rows in which there was no number to compare."""
    found = [row for row in rows if row.judgement.why is Why.VOID]
    if found:
        others = f", and {len(found) - 1} more" if len(found) > 1 else ""
        yield f"{found[0].key}{others}: NaN or Inf everywhere, on both sides"


class Cut(NamedTuple):
    """What of a value the other side's is: some indices along an axis, or one of a stack.

    Where pieces take turns along the axis it is in `groups`, and the part has the same indices of
    each of them: of ``q0 k0 v0 q1 k1 v1`` the first third of either group is q.
    """

    axis: int
    start: int
    stop: int
    stacked: bool = False  # the part has no such axis
    groups: int = 1
    inner: Cut | None = None  # of one of a stack, what of it

    def __str__(self) -> str:
        if self.inner:
            return f"{self.inner} of index {self.start} of dim {self.axis}"
        turns = f" of each of {self.groups} groups" if self.groups > 1 else ""
        return f"{self.start}:{self.stop}{turns} of dim {self.axis}"


DimOrder = tuple[int, ...]  # dims of the target in the order that they have in golden


class Unwritten(StrEnum):
    """How much of a value may be memory that nobody has written."""

    NO = ""
    PARTLY = "partly"
    WHOLLY = "wholly"


@quickly_made
@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A value of golden and its partner, or one of them alone. Each Pair equals itself only."""

    golden: Key | None
    target: Key | None
    by: PairedBy = PairedBy.NOTHING
    inside: str = ""  # of one alone: the kernel of a compiled target that it is a part of
    repeats: Pair | None = None  # the first appearance of a value that both sides had before
    unwritten: Unwritten = Unwritten.NO  # on either side
    golden_part: Cut | None = None  # of a value that the other side has in several
    target_part: Cut | None = None
    turn: DimOrder | None = None  # where dims lie in another order, or some are of one element
    both: bool = field(init=False, repr=False)  # whether both sides have it
    key: Key = field(init=False, repr=False)  # golden's name, where golden has and computed it

    def __post_init__(self) -> None:
        moved = self.by is PairedBy.COLLECTIVE
        key = self.target if moved and self.target else self.golden or self.target
        assert key is not None, "a Pair has at least one side"
        object.__setattr__(self, "both", self.golden is not None and self.target is not None)
        object.__setattr__(self, "key", key)

    def repeating(self, first: Pair) -> Pair:
        """The same, where it is known that it appeared before as `first`."""
        return Pair(
            self.golden, self.target, self.by, self.inside, first, self.unwritten,
            self.golden_part, self.target_part, self.turn,
        )  # fmt: skip


class Trouble(StrEnum):
    """Why a pair has no numbers."""

    UNREADABLE = "unreadable"  # a side is not stored, or its file is damaged
    SHAPE = "shape"  # the sides have different shapes
    LOST = "lost"  # a rank that may have had a share of it is missing
    UNSOLVED = "unsolved"  # no layout makes the ranks' shards a whole value
    LACKING = "lacking"  # some ranks have none, though golden has one for each
    UNCHECKED = "unchecked"  # what a collective should have given is not known
    UNKEPT = "unkept"  # what is kept of the sides cannot be held against each other


@dataclass(frozen=True, slots=True)
class LaidOut:
    """How both sides of a partitioned pair became whole, and what was noticed on the way."""

    note: str = ""  # how the shards became whole
    layout: str = ""  # the target's, as a sentence
    is_solved: bool = False  # nobody stated it
    finding: str = ""  # replicas that differ, or golden's shards too large: whatever ops did
    remark: str = ""  # what a difference looks like, rank by rank
    by_rank: ByRank = ()
    holders: str = ""  # who has it, where not all ranks do
    is_own: bool = False  # integers that some ranks have as golden: others may count their own
    is_by_rank: bool = False  # each rank's value was held against golden's for it, and no whole
    is_replicated: bool = False  # all ranks hold the same bytes


class OpenSum(NamedTuple):
    """What ranks hold of a gradient of a parameter that should be one value on all of them."""

    by: str = ""  # the collective that adds them up; empty where none that was recorded does
    times: float = 1.0  # golden's value, as often as the collective made it


@quickly_made
@dataclass(frozen=True, slots=True)
class Measured:
    """What measuring a pair gave: Metrics, or the trouble and a sentence on it. No opinion."""

    metrics: Metrics | None = None
    trouble: Trouble | None = None
    said: str = ""
    reference: ReferenceErrors | None = None
    laid: LaidOut | None = None
    own: Own = ()
    own_problem: str = ""  # why a metric of the user's gave no number
    terms: OpenSum | None = None
    rank: int | None = None  # of a collective alone: who got what is farthest from what it should


UNMEASURED = Measured()  # one side is alone: there was nothing to measure
