"""Another choice is followed to the rows that it touches, and to no others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dumpcmp
from dumpcmp.align.pairing import pair_values
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.flips import Trail, follow_flips, measure_untouched
from dumpcmp.comparing.laying import Task, lay_out
from dumpcmp.comparing.measuring import measure_all
from dumpcmp.comparing.side import archive_at, open_side
from dumpcmp.comparing.ways import Ways
from dumpcmp.execute import executor_for
from dumpcmp.faults import Fault, planted
from dumpcmp.nouns.row import USUAL, Measured, Pair, Unwritten
from dumpcmp.nouns.selection import Tap
from dumpcmp.nouns.value import Value
from tests.comparing.routers import STYLES, router

Tamper = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
EXACT = 1e-11  # float64: what a matmul of other rows beside it may round


def dumped(style: str, path: Path, fault: Fault | None = None) -> Path:
    model, ids = router(style, torch.float64)
    with torch.no_grad():
        if fault is None:
            with dumpcmp.capture(model, path):
                model(ids)
        else:
            with planted(model, fault), dumpcmp.capture(model, path):
                model(ids)
    return path


class Flow:
    """Two archives with all pairs measured and followed."""

    def __init__(self, golden: Path, target: Path) -> None:
        ours, theirs = open_side(golden, Tap()), open_side(target, Tap())
        self.pairs = pair_values(ours.listing, theirs.listing)
        ways = Ways.of(ours.listing, theirs.listing)
        self.work = lay_out(self.pairs, ours, theirs, None, ways, USUAL)
        with executor_for(1) as executor:
            self.work, self.measured = measure_all(self.work, executor)
        flow = DataFlow(self.pairs, ours.listing, theirs.listing)
        self.followed = follow_flips(flow, self.work, self.measured).trails

    def value(self, pair: Pair, is_target: bool) -> Value:
        task = self.work.get(pair) or self.work[pair.repeats or pair]
        assert isinstance(task, Task)
        shares = task.target if is_target else task.golden
        return archive_at(shares.path).load(shares.first)

    def measured_of(self, pair: Pair) -> Measured:
        return self.measured.get(pair) or self.measured[pair.repeats or pair]

    def named(self, op: str, slot: str = "output.0") -> Trail:
        (found,) = (f for p, f in self.followed.items() if (p.key.op, p.key.slot) == (op, slot))
        return found

    def distance(self, pair: Pair) -> float:
        """How far apart the sides are where nothing is touched."""
        followed = self.followed.get(pair)
        if followed is None:
            metrics = self.measured_of(pair).metrics
        else:
            sides = self.value(pair, False), self.value(pair, True)
            metrics = measure_untouched(*sides, followed, USUAL)
            if metrics is None:
                return 0.0
        if metrics is None:
            return torch.inf
        return 0.0 if metrics.equal or not metrics.count else metrics.rel_l2


def second_best(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tokens 5 and 17 take the third expert in place of the second."""
    values, places = func(args[0], 3, *args[2:], **kwargs)
    rows = torch.tensor([5, 17])
    for found in (values, places):
        found[rows, 1] = found[rows, 2]
    return values[:, :2].contiguous(), places[:, :2].contiguous()


def other_side(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tokens 5 and 17 fall on the other side of a threshold."""
    got = func(*args, **kwargs).clone()
    got[[5, 17]] = ~got[[5, 17]]
    return got


PLANTED = dict.fromkeys(STYLES, ("topk", second_best)) | {"gated": ("gt", other_side)}


@pytest.fixture(scope="module", params=list(STYLES))
def flow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Flow:
    style, room = request.param, tmp_path_factory.mktemp(request.param)
    function, tamper = PLANTED[style]
    fault = Fault("flip", "blocks.0.moe", function, tamper)
    return Flow(dumped(style, room / "golden"), dumped(style, room / "target", fault))


def test_what_is_not_touched_is_golden_s(flow: Flow) -> None:
    pairs = [pair for pair in flow.pairs if pair.both and pair.unwritten is not Unwritten.WHOLLY]
    far = {str(pair.key): flow.distance(pair) for pair in pairs}
    assert {name: distance for name, distance in far.items() if distance > EXACT} == {}


def test_only_the_tokens_that_flipped_are_touched_in_their_block(flow: Flow) -> None:
    touched = flow.named("blocks.0.moe", "output.0").counterparts.touched_rows
    assert touched.nonzero()[:, 0].tolist() == [5, 17]


def test_a_causal_mixture_touches_only_later_tokens_of_a_sequence(flow: Flow) -> None:
    touched = flow.named("blocks.1.moe", "input.0").counterparts.touched_rows
    assert touched.nonzero()[:, 0].tolist() == [*range(5, 12), *range(17, 24)]


def test_summaries_do_not_tell_which_rows_another_choice_touched(tmp_path: Path) -> None:
    style, (function, tamper) = next(iter(PLANTED.items()))
    golden = dumped(style, tmp_path / "golden")
    fault = Fault("flip", "blocks.0.moe", function, tamper)
    target = dumped(style, tmp_path / "target", fault)
    assert dumpcmp.compact(target, sketch=64).total.num_values
    outcome = dumpcmp.compare(golden, target)
    first = outcome.first_divergence
    assert first is not None and first.key.op == f"blocks.0.moe/{function}"
