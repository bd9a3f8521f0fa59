"""What a check found so far: the ops that do not compute what they should, and how many do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

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

MOST_ROWS = 1000  # that are kept of each verdict; all are counted


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

    It fills while the program runs. Ops that are right are counted and not listed.
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
        self._skipped: set[tuple[Op, str]] = set()

    @property
    def tally(self) -> Tally:
        """How many values got which verdict."""
        return Tally(dict(self._counts))

    @property
    def failures(self) -> tuple[CheckedOp, ...]:
        """What the ops gave out that they should not."""
        return tuple(row for row in self.rows if row.verdict.fails)

    @property
    def headline(self) -> str:
        """The first op that is wrong, or that none is."""
        if not self.compared:
            return f"UNKNOWN: no op could be checked ({self.tally})"
        if not self.failures:
            return f"SAME: every op that was checked computes what it should ({self.tally})"
        first = self.failures[0]
        return f"WRONG at {first.site.place}: {first.reason} ({self.tally})"

    def cells(self, row: CheckedOp) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        error, limit = f"{row.replay.introduced:.3g}", f"{bound(row.replay):.3g}"
        known = (error, limit) if row.verdict is not Verdict.SKIPPED else ("", "")
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

    def check(self, call: Call, given: Mapping[str, Tensor], gave: Slots) -> None:
        """Run `call` again on what it was given, and hold what it gave against that."""
        try:
            again = rerun(call, given, device=device_of(given.values()))
            found = [(slot, hold(again, slot, tensor)) for slot, tensor in gave]
        except DumpcmpError as error:
            self._add(CheckedOp(call.site, "", Verdict.SKIPPED, error.message, call.source))
            return
        self._judge(call, found)

    def check_backward(self, call: Call, held: Iterable[tuple[str, Replay]]) -> None:
        """Judge the gradients that the backward pass of `call` gave."""
        self._judge(call, held)

    def _judge(self, call: Call, held: Iterable[tuple[str, Replay]]) -> None:
        for slot, replay in held:
            reason = replay.unknown or wrong(replay)
            verdict = Verdict.FAIL if reason else Verdict.PASS
            verdict = verdict if replay.is_known else Verdict.SKIPPED
            self._add(CheckedOp(call.site, slot, verdict, reason, call.source, replay))

    def _add(self, row: CheckedOp) -> None:
        self._counts[row.verdict] += 1
        if row.verdict is Verdict.FAIL and self._counts[row.verdict] <= MOST_ROWS:
            self.rows.append(row)
        elif row.verdict is Verdict.SKIPPED and (row.site.op, row.reason) not in self._skipped:
            self._skipped.add((row.site.op, row.reason))
            self.rows.append(row)
