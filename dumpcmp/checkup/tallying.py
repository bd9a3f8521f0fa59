"""What a check found so far: the ops that do not compute what they should, and how many do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dumpcmp.checkup.passing_back import STRAIGHT
from dumpcmp.judge.replaying import bound, wrong
from dumpcmp.nouns.errors import DumpcmpError, SelectionError
from dumpcmp.nouns.key import Op, Site
from dumpcmp.nouns.outcome import Answer, Tally
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Verdict
from dumpcmp.pytorch.nodes import device_of
from dumpcmp.pytorch.trees import Slots
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import NothingToCheck

MOST_ROWS = 1000  # that are kept of each verdict; all are counted
MOST_TOLD = 20  # reasons for which calls were not checked


@dataclass(frozen=True, slots=True)
class CheckedOp:
    """What an op gave out, held against itself in float64."""

    site: Site
    slot: str
    verdict: Verdict
    reason: str = ""
    source: str = ""  # the user's line
    replay: Replay = field(default_factory=Replay)


class Checkup(Answer):
    """What a check found so far: the ops that do not compute what they should.

    It fills while the program runs. Ops that are right are counted and not listed. A call that
    could not be checked is INCONCLUSIVE, and the answer is then UNKNOWN. SKIPPED are calls of which
    there is nothing to check: memory as it was found, numbers that a generator draws by itself,
    gradients that are handed straight through.
    """

    COLUMNS = ("token", "op", "slot", "verdict", "error", "bound", "reason")

    def __init__(self, every: int = 1) -> None:
        if every < 1:
            raise SelectionError(
                f"every {every} is no share of the calls", hint="1 checks them all"
            )
        self.rows: list[CheckedOp] = []
        self._every = every
        self._num_calls = 0
        self._counts: Counter[Verdict] = Counter()
        self._listed: set[tuple[Op, str]] = set()
        self._unchecked: dict[tuple[str, str], CheckedOp] = {}  # the first, by function and reason
        self._num_unchecked: Counter[tuple[str, str]] = Counter()

    @property
    def tally(self) -> Tally:
        """How many values got which verdict."""
        return Tally(dict(self._counts))

    @property
    def failures(self) -> tuple[CheckedOp, ...]:
        """What the ops gave out that they should not."""
        return tuple(row for row in self.rows if row.verdict.fails)

    @property
    def inconclusive(self) -> tuple[CheckedOp, ...]:
        """What could not be checked, each op once for each reason."""
        return tuple(row for row in self.rows if row.verdict is Verdict.INCONCLUSIVE)

    @property
    def exit_code(self) -> int:
        """0 every op is right, 1 one is not, 2 nobody knows of one."""
        if self.failures:
            return 1
        return 0 if self.compared and not self.inconclusive else 2

    @property
    def headline(self) -> str:
        """The first op that is wrong, or that could not be checked, or that none is."""
        if self.failures:
            first = self.failures[0]
            return f"WRONG at {first.site.place}: {first.reason} ({self.tally})"
        if not self.compared and not self.inconclusive:
            return f"UNKNOWN: no op could be checked ({self.tally})"
        if self.inconclusive:
            first, num = self.inconclusive[0], self._counts[Verdict.INCONCLUSIVE]
            values = "value" if num == 1 else "values"
            said = f"{num} {values} could not be checked, the first of {first.site.place}"
            return f"UNKNOWN: {said}: {first.reason} ({self.tally})"
        return f"SAME: every op that was checked computes what it should ({self.tally})"

    @property
    def worst(self) -> tuple[CheckedOp, ...]:
        """What is wrong, or else what could not be checked."""
        return self.failures or self.inconclusive

    @property
    def notable(self) -> Sequence[CheckedOp]:
        """The worst alone: of what there was nothing to check of the remarks tell."""
        return self.worst

    def end(self, remarks: Iterable[str]) -> None:
        """Nothing more will come: note `remarks`, and what was not checked and why."""
        told = []
        for (function, reason), count in self._num_unchecked.most_common(MOST_TOLD):
            first = self._unchecked[function, reason].site.place
            told.append(f"{function} was not checked, {count} x, first at {first}: {reason}")
        if len(self._num_unchecked) > MOST_TOLD:
            told.append(f"and for {len(self._num_unchecked) - MOST_TOLD} more reasons")
        self.remarks = (*remarks, *told)

    def cells(self, row: CheckedOp) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        error, limit = f"{row.replay.introduced:.3g}", f"{bound(row.replay):.3g}"
        known = (error, limit) if row.verdict in (Verdict.PASS, Verdict.FAIL) else ("", "")
        op = f"{row.site.op}#{row.site.call}"
        return str(row.site.step), op, row.slot, row.verdict, *known, row.reason

    def sentence(self, row: CheckedOp) -> str:
        """One row as a line of an error."""
        where = f" at {row.source}" if row.source else ""
        return f"{row.site} {row.slot}{where}: {row.verdict}; {row.reason}"

    def wants_next(self) -> bool:
        """Whether the next call is one that is to be checked."""
        self._num_calls += 1
        return self._num_calls % self._every == 0 or self._every == 1

    def leave_open(self, call: Call, reason: str) -> None:
        """Note that `call` computes something, and that nobody could check it."""
        self._add(CheckedOp(call.site, "", Verdict.INCONCLUSIVE, reason, call.source))

    def check(self, call: Call, given: Mapping[str, Tensor], gave: Slots) -> None:
        """Run `call` again on what it was given, and hold what it gave against that."""
        if not gave:
            self.leave_open(call, "it may write to what it was given, and gives out nothing")
            return
        try:
            again = rerun(call, given, device=device_of(given.values()))
            found = [(slot, hold(again, slot, tensor)) for slot, tensor in gave]
        except DumpcmpError as error:
            is_idle = isinstance(error, NothingToCheck)
            verdict = Verdict.SKIPPED if is_idle else Verdict.INCONCLUSIVE
            reason = "; ".join(filter(None, (error.message, error.hint)))
            self._add(CheckedOp(call.site, "", verdict, reason, call.source))
            return
        self._judge(call, found)

    def check_backward(self, call: Call, held: Iterable[tuple[str, Replay]]) -> None:
        """Judge the gradients that the backward pass of `call` gave."""
        self._judge(call, held)

    def _judge(self, call: Call, held: Iterable[tuple[str, Replay]]) -> None:
        for slot, replay in held:
            reason = replay.unknown or wrong(replay)
            verdict = Verdict.FAIL if reason else Verdict.PASS
            if not replay.is_known:
                verdict = Verdict.SKIPPED if reason == STRAIGHT else Verdict.INCONCLUSIVE
            self._add(CheckedOp(call.site, slot, verdict, reason, call.source, replay))

    def _add(self, row: CheckedOp) -> None:
        self._counts[row.verdict] += 1
        if row.verdict is Verdict.FAIL and self._counts[row.verdict] <= MOST_ROWS:
            self.rows.append(row)
        if row.verdict in (Verdict.PASS, Verdict.FAIL):
            return
        kind = row.site.op.function, row.reason
        self._num_unchecked[kind] += 1
        self._unchecked.setdefault(kind, row)
        if (row.site.op, row.reason) not in self._listed:
            self._listed.add((row.site.op, row.reason))
            self.rows.append(row)
