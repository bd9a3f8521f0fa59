"""Captures compiled runs: the values that Inductor's kernels leave, fusion as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dumpcmp.capture import tapped
from dumpcmp.capture.graph import UNTRACED
from dumpcmp.capture.inductor_names import (
    Options,
    compilation_watched,
    inside_compiled_callable,
    refuse_cpp_wrapper,
    skip_code,
)
from dumpcmp.capture.modules import ModuleCapture, is_compile_wrapper
from dumpcmp.capture.provenance import SCHEMA, Provenance, Traced
from dumpcmp.capture.recorder import Recorder, Step
from dumpcmp.capture.tapped import TappedGraph


class CompiledCapture(ModuleCapture):
    """Runs what the program compiles as it is, and records what its kernels compute.

    A program that compiles nothing is compiled at its root module. What dynamo leaves outside
    of its graphs runs as it would, and is not recorded.
    """

    def __init__(
        self,
        recorder: Recorder,
        roots: Collection[nn.Module] = (),
        *,
        fusion: bool = True,
        realize: bool = False,
    ) -> None:
        super().__init__(recorder, roots, mode=None)
        self.enter = torch.compiler.disable(self.enter)
        self.exit = torch.compiler.disable(self.exit)
        self._provenance = Provenance(lambda: self.step, unfused=not fusion, realize=realize)
        self._compiled: dict[int, Callable[..., Any]] = {}
        self._texts: set[str] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Tap what is compiled while the block runs; nothing that was tapped outlives it."""
        skip_code(UNTRACED)
        refuse_cpp_wrapper()
        watch = self._provenance
        tag = f"dumpcmp-{SCHEMA}-{watch.unfused:d}{watch.realize:d}{watch.tapped:d}"
        options = Options(
            tag, watch.identity, watch.realized, watch.unfused, watch.unfused or watch.realize
        )
        self._eager = True  # no stance: what is compiled must run compiled
        torch._dynamo.reset()
        tapped.set_capture(self)
        try:
            with super().running(), compilation_watched(watch, options):
                yield
        finally:
            tapped.set_capture(None)
            torch._dynamo.reset()

    def run_root(
        self, step: Step, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run `module` as the program compiled it, or compiled as a whole."""
        if not self._is_compiled(module):
            if id(module) not in self._compiled:
                self._compiled[id(module)] = torch.compile(module._call_impl)
            run = self._compiled[id(module)]
        return super().run_root(step, module, run, args, kwargs)

    def _is_compiled(self, module: nn.Module) -> bool:
        if inside_compiled_callable():
            return True
        return any(
            "_compiled_call_impl" in m.__dict__
            and m.__dict__["_compiled_call_impl"] is not None
            or is_compile_wrapper(m)
            for m in module.modules()
        )

    # What generated code tells

    def traced(self, digest: str) -> Traced | None:
        """The graph of dynamo that generated code refers to."""
        return self._provenance.known.get(digest)

    def loaded(self, graph: TappedGraph, step: Step) -> None:
        """Keep the code of `graph`, and the graph that it was generated from, as text."""
        code = graph.path.read_text()
        name = graph.path.stem
        if name in self._texts:
            return
        self._texts.add(name)
        number = len(self._texts) - 1
        phase = "backward" if graph.backward else "forward"
        sink = self.recorder.sink
        sink.text(step.model.name, f"graph-{number}-{phase}.txt", graph.table["text"])
        sink.text(step.model.name, f"code-{number}-{phase}.txt", code)

    def finished(self, graph: TappedGraph, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Nothing to do: the values were recorded as they were computed."""
