"""A torch.compile backend that checks every graph it compiles, forward and backward."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from dumpcmp.nouns.errors import CheckError, VerificationWarning
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.row import Row
from dumpcmp.pytorch.names import check_names
from dumpcmp.verifying.config import VerifyConfig, given
from dumpcmp.verifying.isolate import Inputs
from dumpcmp.verifying.report import Report
from dumpcmp.verifying.run import eager_randomness, hold

OnFailure = Literal["raise", "warn", "record"]
Backend = Callable[..., Callable[..., Any]]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def verifying_backend(
    inner: str | Backend = "inductor",
    config: VerifyConfig | None = None,
    *,
    on_failure: OnFailure = "raise",
    reference: Literal["float64"] | None = None,
) -> Backend:
    """`inner` as a backend for torch.compile that holds each compiled graph against eager.

    Each graph runs twice when it is compiled, on copies of its example inputs and with the same
    random numbers; outputs, mutated inputs and gradients are compared. A difference raises (which
    dynamo shows as BackendCompilerFailed), warns, or is only kept in `reports`. Without a config,
    a value may differ by what rounding in so many ops explains. With one that is not enabled you
    get `inner` itself.

        model = torch.compile(model, backend=dumpcmp.verifying_backend("inductor"))
    """
    check_names("verifying_backend")
    config = configured(config, reference)
    if on_failure not in ("raise", "warn", "record"):
        raise CheckError(f"on_failure is {on_failure!r}", hint="say 'raise', 'warn' or 'record'")
    backend = torch._dynamo.lookup_backend(inner) if isinstance(inner, str) else inner
    return VerifyingBackend(backend, config, on_failure) if config.enabled else backend


def configured(config: VerifyConfig | None, reference: Literal["float64"] | None) -> VerifyConfig:
    """`config`, or one that compares gradients too; with the `reference`."""
    config = given(config) or VerifyConfig(backward=True)
    return replace(config, reference=reference) if reference else config


@dataclass(eq=False, repr=False)
class VerifyingBackend:
    """What `verifying_backend` gives: a backend with the `reports` of the graphs it has seen."""

    inner: Backend
    config: VerifyConfig
    on_failure: OnFailure = "raise"
    reports: list[Report] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"verifying_backend({_name(self.inner)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> VerifyingBackend:
        return self  # a copy would be another backend to dynamo, which would compile again

    def __call__(
        self, graph: fx.GraphModule, examples: Sequence[Any], **options: Any
    ) -> Callable[..., Any]:
        """Compile `graph` with the inner backend and check what it made of it."""
        golden = copy.deepcopy(graph)  # the inner backend may change the graph that it is given
        name = f"graph {torch._guards.CompileContext.current_compile_id() or len(self.reports)}"
        with eager_randomness(), _backward_at_once():
            candidate = self.inner(graph, examples, **options)
        if candidate is None:  # the backend declines, and eager runs the graph
            return graph.forward if graph.code == golden.code else golden.forward
        if _any_fake(examples):
            return _CheckedOnce(self, name, golden, candidate)
        with torch._guards.tracing(None):
            self.check(name, golden, candidate, examples)
        return candidate

    def check(
        self,
        name: str,
        golden: fx.GraphModule,
        candidate: Callable[..., Any],
        examples: Sequence[Any],
    ) -> None:
        """Run both sides on copies of `examples`, and raise, warn or record what differs."""
        inputs = Inputs(tuple(map(_concrete, examples)))
        config = replace(self.config, backward=self.config.backward and torch.is_grad_enabled())
        names = name, _name(self.inner)
        depth = sum(node.op.startswith("call") for node in golden.graph.nodes)
        report = _located(hold(inputs, golden, candidate, config, names, depth), golden)
        report = replace(report, outputs=None)  # reports are kept; what a graph gave need not be
        self.reports.append(report)
        for said in report.doubts:
            warnings.warn(f"{name}: {said}", VerificationWarning, stacklevel=2)
        if report.passed or self.on_failure == "record":
            return
        if self.on_failure == "raise":
            report.raise_for_status()
        warnings.warn(report.message(), VerificationWarning, stacklevel=2)


@contextmanager
def _backward_at_once() -> Iterator[None]:
    """Have AOTAutograd compile backward graphs with their forward, not at the first backward."""
    from torch._functorch import config

    with config.patch(force_non_lazy_backward_lowering=True):
        yield


@dataclass
class _CheckedOnce:
    """A compiled graph whose examples had no values: it is checked when it first gets some."""

    backend: VerifyingBackend
    name: str
    golden: fx.GraphModule | None
    candidate: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        if self.golden is not None and not _any_fake(args):
            golden, self.golden = self.golden, None
            self.backend.check(self.name, golden, self.candidate, args)
        return self.candidate(*args)


def _any_fake(examples: Sequence[Any]) -> bool:
    return any(isinstance(example, FakeTensor) for example in examples)


def _concrete(example: Any) -> Any:
    """An example as a value: dynamo gives dynamic sizes as symbols, whose hint is the size."""
    return example.node.hint if isinstance(example, torch.SymInt | torch.SymFloat) else example


def _name(backend: Backend) -> str:
    return str(getattr(backend, "compiler_name", getattr(backend, "__name__", backend)))


def _located(report: Report, graph: fx.GraphModule) -> Report:
    """`report` with the nodes of `graph` that its rows are about, and their source lines."""
    results = _result_nodes(graph)
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return replace(report, rows=tuple(_placed(row, results, places) for row in report.rows))


def _result_nodes(graph: fx.GraphModule) -> list[Any]:
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    results = output.args[0]
    return list(results) if isinstance(results, list | tuple) else [results]


def _placed(row: Row, results: list[Any], places: list[fx.Node]) -> Row:
    """The row with its node as op: the output's, or the input's that was mutated or got a grad."""
    nodes = {"output": results, "grad_input": places, "mutated": places}.get(row.key.slot.kind, [])
    index = row.key.slot.name
    node = nodes[int(index)] if nodes and index.isdigit() else None
    if not isinstance(node, fx.Node):
        return row
    return replace(row, key=replace(row.key, op=Op(node.name)), source=_source(node))


def _source(node: fx.Node) -> str:
    """The user's line that made `node`: "model.py:31"."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return f"{PurePath(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
