"""same(): holds results that are at hand against each other, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import Judgement, Row, Verdict, void
from dumpcmp.verifying.config import VerifyConfig, given
from dumpcmp.verifying.isolate import Inputs
from dumpcmp.verifying.observe import Observation, named_outputs
from dumpcmp.verifying.pairs import ABSENT, Sides, Way, paired, row_of
from dumpcmp.verifying.report import Report
from dumpcmp.verifying.run import report_on


def same(
    golden: Any,
    target: Any,
    fp64_ref: Any = None,
    config: VerifyConfig | None = None,
    *,
    depth: int | None = None,
) -> Report:
    """Hold `target` against `golden`, results of whatever ran; the Report is true if they agree.

    They are tensors and numbers, nested as you like, and are paired by path. `fp64_ref` is the same
    result in float64, which then decides. Without it rounding does, given how many ops lie before
    the results: `depth`, or what autograd remembers of golden.

        assert dumpcmp.same(expected, actual, fp64_ref=in_float64)
    """
    config = given(config) or VerifyConfig()
    if fp64_ref is not None:
        config = replace(config, reference="float64")
    elif config.wants_reference:
        raise CheckError(
            "the rule refers both sides to float64, and no such result is given",
            hint="same(golden, target, fp64_ref=...)",
        )
    ours, theirs = _at_hand(golden), _at_hand(target)
    known = _remembered(ours) if depth is None else depth
    way = Way.of(ours, known or 0)
    truth = None if fp64_ref is None else _at_hand(fp64_ref)
    pairs = enumerate(paired(ours, theirs, truth, ({}, {})))
    rows = tuple(_row(pair, order, config, way) for order, pair in pairs)
    said = *void(rows), *_advice(rows, config, known)
    return Report("golden", "target", rows, config, said)


def run_and_compare(
    golden: Callable[..., Any],
    target: Callable[..., Any],
    *args: Any,
    config: VerifyConfig | None = None,
    **kwargs: Any,
) -> Report:
    """Call both with these arguments, each with copies of its own; true if the results agree.

    What `verify` raises, this Report tells.

        assert dumpcmp.run_and_compare(f, torch.compile(f), x, y)
    """
    return report_on(Inputs(args, kwargs), golden, target, config)


def _at_hand(result: Any) -> Observation:
    return Observation(named_outputs(result), {}, {}, {})


def _row(pair: Sides, order: int, config: VerifyConfig, way: Way) -> Row:
    row = row_of(pair, "golden", order, config, way)
    if pair.golden is pair.target is not ABSENT and isinstance(pair.golden, torch.Tensor):
        said = "golden and the target are one tensor, so that nothing was compared"
        return replace(row, judgement=Judgement(Verdict.INCONCLUSIVE, said))
    return row


def _remembered(golden: Observation) -> int | None:
    """How many ops autograd remembers behind golden's results; None where it saw none."""
    tensors = (leaf for leaf in golden.outputs.values() if isinstance(leaf, torch.Tensor))
    ahead = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(ahead)
    while ahead:
        found = {before for before, _ in ahead.pop().next_functions if before is not None} - seen
        seen |= found
        ahead += found
    return len(seen) or None


def _advice(rows: tuple[Row, ...], config: VerifyConfig, depth: int | None) -> Iterator[str]:
    if (
        depth is None
        and not config.wants_reference
        and any(r.verdict is Verdict.FAIL for r in rows)
    ):
        yield (
            "how many ops lie before these results is not known, so one was assumed: say depth=, "
            "or give the same result in float64 as fp64_ref="
        )
