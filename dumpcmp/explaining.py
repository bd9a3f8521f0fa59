"""From "different" to "this op": dump both sides of a verification, and compare the dumps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from dumpcmp.comparing import compare
from dumpcmp.dumping.capturing import capture
from dumpcmp.dumping.modes import Boundary, Compiled, PlainMode
from dumpcmp.judge import Checker
from dumpcmp.nouns.errors import CaptureWarning, SelectionError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.pytorch.names import check_names
from dumpcmp.pytorch.randomness import same_randomness
from dumpcmp.verifying.isolate import Subject, isolated, put_back
from dumpcmp.verifying.observe import Cotangents, as_inputs, named_outputs, send_back
from dumpcmp.verifying.run import eager_randomness


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Where the target first goes wrong: the `first_divergence`, and the comparison behind it."""

    outcome: Outcome
    mode: str  # how the target was dumped
    path: Path | None = None  # where the dumps are, if they were to be kept

    @property
    def first_divergence(self) -> Row | None:
        """The first op whose inputs agree and whose output does not."""
        return self.outcome.first_divergence

    @property
    def op(self) -> str:
        """The name of that op; empty if every op agrees."""
        return self.first_divergence.key.op if self.first_divergence else ""

    @property
    def headline(self) -> str:
        """The first divergence in one line: which op, where in the code, how far off, and why."""
        row = self.first_divergence
        if row is None:
            return "no op diverges"
        what = f"{row.key.op} is the first op that differs: {row.key.slot}, {row.verdict}"
        where = f"computed at {row.source}" if row.source else ""
        return "; ".join(filter(None, (what, row.judgement.reason, where)))

    def __repr__(self) -> str:
        lines = [self.headline, f"  values: {self.outcome.tally}"]
        lines += [f"  also began at: {other.key.op}" for other in self.outcome.roots[1:4]]
        return "\n".join([*lines, *(f"  note: {remark}" for remark in self.outcome.remarks)])


def explain(
    inputs: Any,
    golden: Callable[..., Any],
    target: Callable[..., Any] | None = None,
    *,
    backward: bool = False,
    checker: Checker | None = None,
    path: str | Path | None = None,
) -> Explanation:
    """Dump `golden` and `target` as they run on `inputs`, and name the op that first differs.

    A target that Inductor compiled is dumped kernel by kernel, and where several ops share the
    kernel once more with each of them stored; one of another backend at the boundaries of its
    graphs; anything else op by op. The dumps are kept only if a `path` is given.

        try:
            verify([x], model, compiled)
        except VerificationError:
            print(explain([x], model, compiled))
    """
    if target is None:
        raise SelectionError(
            "explain runs a golden and a target model on inputs, and was given no target",
            hint="of two dumps: dumpcmp.compare(golden, mine), or dumpcmp explain MINE GOLDEN",
        )
    check_names("verify", "verify --explain")
    arguments = as_inputs(inputs)
    way = _way_of(target)
    # A compiled graph has no weights but those it reads, so they are compared op by op only.
    weights = way == _EAGER
    with ExitStack() as stack:
        room = Path(path) if path else Path(stack.enter_context(TemporaryDirectory()))
        again = stack.enter_context(same_randomness())
        side = isolated(golden, arguments)
        sent = _dumped(side, room / "golden", _EAGER, backward, weights)

        def held(name: str, way: PlainMode) -> Outcome:
            again()
            with eager_randomness():
                entered = _entered(isolated(target, arguments), way)
                _dumped(entered, room / name, way, backward, weights, sent)
            return compare(room / "golden", room / name, checker=checker)

        outcome = held("target", way)
        if isinstance(way, Compiled) and _is_fused(outcome.first_divergence):
            apart = held("realized", Compiled(realize=True))  # every op stores its result
            first = apart.first_divergence
            outcome = apart if first and not first.key.slot.is_input else outcome
    return Explanation(outcome, way.name, room if path else None)


def _is_fused(row: Row | None) -> bool:
    """Whether several ops may be meant, since one kernel computes them together."""
    return row is not None and bool(row.suspects)


_EAGER = PlainMode("eager")


def _way_of(call: Callable[..., Any]) -> PlainMode:
    """How `call` is to be dumped."""
    if not isinstance(call, torch._dynamo.OptimizedModule):
        return _EAGER
    backend: Any = call.dynamo_ctx.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    if getattr(backend, "compiler_name", "") == "inductor":
        return Compiled()
    return Boundary(getattr(backend, "compiler_fn", backend))


def _entered(subject: Subject, way: PlainMode) -> Subject:
    """`subject` without torch.compile around it, where the capture compiles it itself."""
    return subject if way == _EAGER else replace(subject, call=subject.modules[""])


def _dumped(
    subject: Subject,
    path: Path,
    way: PlainMode,
    backward: bool,
    weights: bool,
    sent: Cotangents | None = None,
) -> Cotangents:
    """Run `subject` once under a capture; return what was sent back into its outputs."""
    model = subject.call if isinstance(subject.call, nn.Module) else None
    dumping = capture(model, path, mode=way, backward=backward, weights=weights)
    with warnings.catch_warnings(), put_back(subject), dumping:
        warnings.simplefilter("ignore", CaptureWarning)  # run.json has the remarks
        result = subject.call(*subject.inputs.args, **subject.inputs.kwargs)
        return send_back(named_outputs(result), sent) if backward else {}
