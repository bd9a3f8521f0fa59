"""verify(): run golden and the target on copies of the same inputs, and report on every value."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dumpcmp.nouns.errors import (
    CheckError,
    NotCallableError,
    VerificationError,
    VerificationWarning,
)
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.row import Judgement, Row, Verdict, void
from dumpcmp.pytorch.names import check_names
from dumpcmp.pytorch.randomness import same_randomness
from dumpcmp.verifying.config import VerifyConfig, given
from dumpcmp.verifying.isolate import Inputs, Subject, called, in_double, isolated, modules_of
from dumpcmp.verifying.keeping import keep
from dumpcmp.verifying.observe import Cotangents, Observation, as_inputs, observe
from dumpcmp.verifying.pairs import Left, Way, paired, row_of, unlike_leaves, without_noise
from dumpcmp.verifying.report import Report
from dumpcmp.verifying.words import Verifiable, asked


def verify(
    inputs: Any,
    golden: Verifiable | None = None,
    target: Verifiable | None = None,
    config: VerifyConfig | None = None,
    with_backward: bool = False,
    *,
    framework_model: Verifiable | None = None,
    compiled_model: Verifiable | None = None,
    verify_cfg: VerifyConfig | None = None,
) -> Report:
    """Hold `target` against `golden` on `inputs`, and raise VerificationError if they differ.

    `inputs` are positional arguments, or a dict of keywords. Both sides run on deep copies, with
    the same random numbers and without grads. Outputs, mutated inputs and state, and with
    `with_backward` the gradients, are compared by path; all failures are collected. The keywords
    are tt-forge's for the same, and a Report unpacks as its result does.

        report = verify([x], model, torch.compile(model))
        golden_outputs, target_outputs = report

    A side that is a path names an exported model, which ONNX Runtime runs:

        verify([x], model, "model.onnx")
    """
    theirs = framework_model, compiled_model, verify_cfg
    asks = asked(golden, target, config, with_backward, *theirs)
    report = report_on(inputs, asks.golden, asks.target, asks.config)
    report.raise_for_status()
    for said in report.doubts:
        warnings.warn(said, VerificationWarning, stacklevel=2)
    return report


def report_on(
    inputs: Any,
    golden: Callable[..., Any],
    target: Callable[..., Any],
    config: VerifyConfig | None = None,
) -> Report:
    """What `verify` reports, without raising for what differs."""
    check_names("verify")
    config = given(config) or VerifyConfig()
    arguments = _checked(inputs, golden, target)
    names = called(golden), called(target)
    if not config.enabled:
        return _unverified(arguments, golden, target, config, names)
    report = hold(arguments, golden, target, config, names, _num_leaves(golden))
    if config.dump_tensors and report.outputs:
        room = keep(config.dump_tensors_path, names[0], arguments, report.outputs)
        report = replace(report, remarks=(*report.remarks, f"inputs and outputs are in {room}"))
    if config.backward and not report.has_grads:
        raise CheckError(
            f"backward=True, but no output of {called(golden)} requires grad",
            hint="let an input or a parameter require grad, or set backward=False",
        )
    return report


def _unverified(
    inputs: Inputs,
    golden: Callable[..., Any],
    target: Callable[..., Any],
    config: VerifyConfig,
    names: tuple[str, str],
) -> Report:
    """What both sides give, held against nothing."""
    config, remarks = replace(config, backward=False), dict[str, None]()
    with same_randomness() as again:
        ours = _observed(golden, inputs, config, remarks)
        again()
        with eager_randomness():
            theirs = _observed(target, inputs, config, remarks)
    return Report(*names, (), config, tuple(remarks), outputs=_given_by(ours, theirs))


def _given_by(golden: Observation, target: Observation) -> tuple[list[Any], list[Any]]:
    return list(golden.outputs.values()), list(target.outputs.values())


def _checked(inputs: Any, golden: Any, target: Any) -> Inputs:
    """The inputs as arguments, if there are some, for two sides that can be called."""
    for side, call in (("golden", golden), ("the target", target)):
        if not callable(call):
            raise NotCallableError(
                f"{side} is a {type(call).__name__}, which cannot be called",
                hint="verify(inputs, golden, target): give the inputs first",
            )
    arguments = as_inputs(inputs)
    if not arguments.args and not arguments.kwargs:
        raise VerificationError("no inputs are given", hint="verify([x], golden, target)")
    for path, tensor in arguments.tensors().items():
        if tensor.is_nested:
            raise CheckError(
                f"input {path} is a nested tensor, which torch cannot copy for each side",
                hint="give its components, and nest them in a function around each model",
            )
    return arguments


def _num_leaves(call: Callable[..., Any]) -> int:
    """How many modules without children `call` works on."""
    modules = [module for owner in modules_of(call).values() for module in owner.modules()]
    return sum(not list(module.children()) for module in modules)


def hold(
    inputs: Inputs,
    golden: Callable[..., Any],
    target: Callable[..., Any],
    config: VerifyConfig,
    names: tuple[str, str],
    depth: int = 0,
) -> Report:
    """Run both sides and report, without raising for what differs.

    `depth` is how many ops golden runs, for checkers whose tolerance grows with it.
    """
    remarks: dict[str, None] = {}
    before = [_left_before(call, inputs) for call in (golden, target)]
    with same_randomness() as again:
        ours = _observed(golden, inputs, config, remarks)
        drawn = again()
        try:
            with eager_randomness():
                theirs = _observed(target, inputs, config, remarks, ours.cotangents)
        except Exception as error:  # whatever the target raises is what it does differently
            raised = _raised(names[0], error)
            return Report(*names, (raised,), config, tuple(remarks), cause=error)
        again()
        truth = None
        if config.wants_reference:
            truth = _observed(golden, inputs, config, remarks, ours.cotangents, wide=True)
    way = Way.of(ours, depth)
    rows = tuple(
        row_of(pair, names[0], order, config, way)
        for order, pair in enumerate(paired(ours, theirs, truth, before))
    )
    if config.forgives_noise:
        rows = tuple(without_noise(rows, config))
    said = *remarks, *unlike_leaves(before), *void(rows), *_advice(rows, config, drawn)
    return Report(*names, rows, config, said, outputs=_given_by(ours, theirs))


def _advice(rows: tuple[Row, ...], config: VerifyConfig, drawn: bool) -> Iterator[str]:
    if drawn and any(row.verdict in config.failing for row in rows):
        yield (
            "golden draws random numbers: a target that draws others differs for that alone; "
            "Inductor draws golden's when it compiles inside verify, or with "
            "torch._inductor.config.fallback_random = True"
        )


def _raised(model: str, error: Exception) -> Row:
    said = f"the target raised {type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return Row(Key(model, 0, ROOT, 0, "output"), 0, Judgement(Verdict.ERROR, said))


def _left_before(call: Callable[..., Any], inputs: Inputs) -> Left:
    """The inputs, buffers and parameters that `call` works on, by the paths of an Observation."""
    return inputs.mutable() | Subject(call, inputs, modules_of(call), copied=False).state()


def _observed(
    call: Callable[..., Any],
    inputs: Inputs,
    config: VerifyConfig,
    remarks: dict[str, None],
    cotangents: Cotangents | None = None,
    wide: bool = False,
) -> Observation:
    """What a copy of `call` gives, in float64 if it is `wide`; `remarks` get what is to be told."""
    subject = isolated(call, inputs)
    if subject.remark:
        remarks[subject.remark] = None
    if wide:
        subject = replace(subject, inputs=in_double(subject.inputs))
    return observe(subject, backward=config.backward, cotangents=cotangents, wide=wide)


@contextmanager
def eager_randomness() -> Iterator[None]:
    """Have Inductor compile random ops, while the block runs, so that they draw eager's numbers."""
    from torch._inductor import config

    with config.patch(fallback_random=True):
        yield
