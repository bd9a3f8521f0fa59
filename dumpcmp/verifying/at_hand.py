"""same(): holds results that are at hand against each other, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import Judgement, Row, Verdict, void
from dumpcmp.nouns.spoken import counted
from dumpcmp.verifying.config import VerifyConfig, given
from dumpcmp.verifying.isolate import Inputs
from dumpcmp.verifying.leniency import Leniency, Lenient
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
    log_error: Callable[..., None] | None = None,
    **leniency: Unpack[Leniency],
) -> Report:
    """Hold `target` against `golden`, results of whatever ran; the Report is true if they agree.

    They are tensors and numbers, nested as you like, and are paired by path. `fp64_ref` is the same
    result in float64, which then decides. Without it rounding does, given how many ops lie before
    the results: `depth`, or what autograd remembers of golden. The other keywords are those of
    torch's own ``same``, such as ``tol=1e-4``; none of them is on unless it is given. `log_error`
    is called with a line for each failure.

        assert dumpcmp.same(expected, actual, fp64_ref=in_float64)
    """
    lenient = Lenient(**leniency)
    config = lenient.change(given(config) or VerifyConfig(), with_reference=fp64_ref is not None)
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
    rows = tuple(_row(pair, order, config, way, lenient) for order, pair in pairs)
    said = *void(rows), *_once(rows), *_advice(rows, config, known)
    report = Report("golden", "target", rows, config, said)
    for row in report.failures if log_error is not None else ():
        log_error("%s", report.sentence(row))  # type: ignore[misc]
    return report


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


def _row(pair: Sides, order: int, config: VerifyConfig, way: Way, lenient: Lenient) -> Row:
    row = row_of(lenient.forgiven(pair), "golden", order, config, way)
    if (judgement := lenient.judged(pair, row)) is not None:
        return replace(row, judgement=judgement)
    if pair.golden is pair.target is not ABSENT and isinstance(pair.golden, torch.Tensor):
        if _may_be_gradient(pair.golden):
            return replace(row, judgement=replace(row.judgement, reason=_BY_VALUE))
        said = "golden and the target are one tensor, so that nothing was compared"
        return replace(row, judgement=Judgement(Verdict.INCONCLUSIVE, said))
    return row


def _may_be_gradient(tensor: torch.Tensor) -> bool:
    """Whether it may be the ``grad`` of a parameter, which each backward pass adds to in place."""
    return tensor.grad_fn is None and not tensor.requires_grad and tensor.is_floating_point()


_BY_VALUE = "golden and the target are one tensor, as gradients are that both runs add up in"


def _once(rows: Sequence[Row]) -> Iterator[str]:
    """What must be said of values that are one tensor: they are the same by their values alone."""
    if num := sum(row.reason == _BY_VALUE for row in rows):
        yield (
            f"{counted(num, 'value is', 'values are')} one tensor on both sides, and the same for "
            "that: copy gradients before the other side runs, or set them to None, to compare them"
        )


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
