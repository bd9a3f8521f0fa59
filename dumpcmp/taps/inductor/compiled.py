"""Captures compiled runs: the values that Inductor's kernels leave, fusion as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from dumpcmp.nouns.record import Call, Record, Source
from dumpcmp.nouns.selection import Tap
from dumpcmp.taps.inductor import generated
from dumpcmp.taps.inductor.certificate import Evidence, digest_of_all
from dumpcmp.taps.inductor.generated import TappedGraph
from dumpcmp.taps.inductor.patches import (
    Options,
    compilation_watched,
    compiled_by_inductor,
    inside_compiled_callable,
    refuse_cpp_wrapper,
    skip_code,
    unwrapped,
)
from dumpcmp.taps.inductor.tables import ENDING, SCHEMA
from dumpcmp.taps.inductor.traced import Traced
from dumpcmp.taps.inductor.tracking import Provenance
from dumpcmp.taps.inductor.twin import Tally
from dumpcmp.taps.modes.graph import UNTRACED, calling, untraced, untraced_mode
from dumpcmp.taps.modes.graph_backend import GraphBackend
from dumpcmp.taps.modes.modules import ModuleCapture, is_compile_wrapper
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.recorder import Recorder, Step


class CompiledCapture(ModuleCapture):
    """Runs what the program compiles as it is, and records what its kernels compute.

    A program that compiles nothing is compiled at its root module. What dynamo leaves outside
    of its graphs runs as it would, and is recorded as in eager mode.
    """

    def __init__(
        self,
        recorder: Recorder,
        roots: Collection[nn.Module] = (),
        *,
        fusion: bool = True,
        realize: bool = False,
        twin: bool = False,
        tapped: bool = True,
        evidence: Evidence | None = None,
    ) -> None:
        inner = [getattr(root, "_orig_mod", root) for root in roots]  # of what torch.compile gave
        super().__init__(recorder, inner, mode=untraced_mode if tapped else None)
        self.enter = untraced(self.enter)
        self.exit = untraced(self.exit)
        self.begin = untraced(self.begin)
        self.evidence = evidence
        self._provenance = Provenance(
            self._where,
            tapped=tapped,
            unfused=not fusion,
            realize=realize,
            twin=twin,
        )
        self._provenance.quietly = self.quietly
        self.twins = Tally()
        self._compiled: dict[int, Callable[..., Any]] = {}
        self.texts = Texts()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Tap what is compiled while the block runs; nothing that was tapped outlives it."""
        ours = CompiledCapture.run_root, CompiledCapture._is_compiled, inside_compiled_callable
        skip_code((*UNTRACED, *ours))
        self.compiles = True
        torch._dynamo.reset()
        try:
            with super().running(), tapping(self, self._provenance):
                yield
        except Exception as error:
            raise unwrapped(error) from None
        finally:
            torch._dynamo.reset()

    def _where(self) -> tuple[Model, str] | None:
        step = self.step
        return None if step is None else (step.model, step.scope.path)

    def run_root(
        self, step: Step, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run `module` as the program compiled it, or compiled as a whole."""
        if not self._is_compiled(module):
            if id(module) not in self._compiled:
                self._compiled[id(module)] = torch.compile(calling(module))
            run = self._compiled[id(module)]
        return super().run_root(step, module, run, args, kwargs)

    def _is_compiled(self, module: nn.Module) -> bool:
        if inside_compiled_callable():
            return True
        inner = module.modules()
        return any(is_compile_wrapper(m) or m.__dict__.get("_compiled_call_impl") for m in inner)

    def facts(self) -> dict[str, Any]:
        """What came of the twins."""
        return {"twins": self.twins.to_json()}

    def remarks(self) -> list[str]:
        """Which graphs ran without a twin."""
        return self.twins.remarks()

    def traced(self, digest: str) -> Traced | None:
        """The graph of dynamo that generated code refers to."""
        return self._provenance.known.get(digest)

    def loaded(self, graph: TappedGraph, step: Step) -> None:
        """Keep the code of `graph`, and the graph that it was generated from."""
        self.texts.keep(graph, step)

    def starting(self, inputs: Sequence[Any]) -> str:
        """The digest of what compiled code is given, where evidence is gathered."""
        return "" if self.evidence is None else digest_of_all(inputs)

    def finished(self, graph: TappedGraph, started: str, outputs: Sequence[Any]) -> None:
        """Note what compiled code gave, where evidence is gathered."""
        if self.evidence is not None:
            spared = graph.table["unwritten"]
            kept = [value for i, value in enumerate(outputs) if i not in spared]
            self.evidence.add(graph.table["digest"], started, kept)


@contextmanager
def tapping(capture: generated.Capture, watch: Provenance) -> Iterator[None]:
    """Tap what is compiled while the block runs, and send what is read to `capture`."""
    refuse_cpp_wrapper()
    tag = f"dumpcmp-{SCHEMA}-{watch.unfused:d}{watch.realize:d}{watch.tapped:d}{watch.twin:d}"
    options = Options(
        tag,
        watch.identity,
        watch.rewriting,
        watch.realized,
        unfused=watch.unfused,
        materialized=watch.unfused or watch.realize,
    )
    generated.set_capture(capture)
    try:
        with compilation_watched(watch, options):
            yield
    finally:
        generated.set_capture(None)


class Texts:
    """Keeps each piece of generated code, and the graph that it came from, once."""

    def __init__(self) -> None:
        self._kept: set[tuple[str, str]] = set()
        self.num_computed = 0  # nodes of the post-grad graphs that compute a tensor
        self.num_captured = 0  # those of them whose value a kernel stores

    def keep(self, graph: TappedGraph, step: Step) -> None:
        """Hand both texts of `graph` to the Sink, unless it has them."""
        name = step.model.name, graph.path.stem
        if name in self._kept:
            return
        number = sum(model == step.model.name for model, _ in self._kept)
        self._kept.add(name)
        captured, computed = graph.table["computed"]
        self.num_captured += captured
        self.num_computed += computed
        phase = "backward" if graph.backward else "forward"
        sink = step.recorder.sink
        sink.text(step.model.name, f"graph-{number}-{phase}.txt", graph.table["text"])
        code = graph.path.read_text().partition(ENDING)[0]
        sink.text(step.model.name, f"code-{number}-{phase}.txt", code)


class CompiledBackend(GraphBackend):
    """Inductor as a torch.compile backend of its own: tapped until it is closed."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        fusion: bool = True,
        realize: bool = False,
        twin: bool = False,
    ) -> None:
        super().__init__(recorder)
        self.twins = Tally()
        self._compiling = False
        self.texts = Texts()
        self._provenance = Provenance(self._where, unfused=not fusion, realize=realize, twin=twin)
        self._ends = ExitStack()
        self._ends.enter_context(tapping(self, self._provenance))

    def __call__(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Compile `graph` with Inductor."""
        self._compiling = True
        try:
            return compiled_by_inductor(graph, example_inputs)
        finally:
            self._compiling = False

    def facts(self) -> dict[str, Any]:
        """What came of the twins."""
        return {"twins": self.twins.to_json()}

    def close(self) -> None:
        """Tap nothing from now on."""
        super().close()
        self._ends.close()

    def _where(self) -> tuple[Model, str] | None:
        return self._model_and_base() if self._compiling else None

    @property
    def step(self) -> Step | None:
        """The step of the outermost call of what was compiled."""
        step = self._step()
        if step is not None:
            step.scope = self._scope(step)
        return step

    def traced(self, digest: str) -> Traced | None:
        """The graph of dynamo that generated code refers to."""
        return self._provenance.known.get(digest)

    def loaded(self, graph: TappedGraph, step: Step) -> None:
        """Keep the code of `graph`, and the graph that it was generated from."""
        self.texts.keep(graph, step)

    def starting(self, inputs: Sequence[Any]) -> str:  # noqa: ARG002
        """No evidence is gathered here."""
        return ""

    def finished(self, graph: TappedGraph, started: str, outputs: Sequence[Any]) -> None:
        """No evidence is gathered here."""


class Randomness:
    """The state of all random generators, to begin a run with again."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Put the generators back to where they were."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


def untapped_evidence(program: Callable[[], object]) -> tuple[Evidence, Evidence]:
    """Run `program` twice, compiled as it would be, with no tap, from the same random state."""
    start, runs = Randomness(), (Evidence(), Evidence())
    capture = CompiledCapture(Recorder(_Nowhere(), Tap()), tapped=False)
    with capture.running():
        for evidence in runs:
            capture.evidence = evidence
            # What goes wrong here goes wrong in the recorded run, too, and is told of there.
            with suppress(Exception, SystemExit):
                program()
            start.restore()
    return runs


class _Nowhere:
    """A Sink for a run of which nothing is kept."""

    def call(self, call: Call) -> None:
        """Forget it."""

    def put(self, record: Record, source: Source | None) -> None:
        """Forget it."""

    def text(self, model: str, name: str, text: str) -> None:
        """Forget it."""
