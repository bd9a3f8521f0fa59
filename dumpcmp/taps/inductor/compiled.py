"""Captures compiled runs: the values that Inductor's kernels leave, fusion as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.pytorch.inductor_options import inductor_with
from dumpcmp.pytorch.names import private
from dumpcmp.taps.inductor.generated import Tapping
from dumpcmp.taps.inductor.hidden_mode import mode_hidden_from_dynamo
from dumpcmp.taps.inductor.provenance import Provenance
from dumpcmp.taps.modes.around import RunPlan, hidden_callback
from dumpcmp.taps.modes.callables import is_compile_wrapper, is_inlined
from dumpcmp.taps.modes.function_mode import TracedFunctionMode
from dumpcmp.taps.modes.graph import UNTRACED, GraphBackend, calling, tracing_undisturbed
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step


class CompiledCapture(ModuleCapture):
    """Runs what the program compiles as it is, and records what its kernels compute.

    A program that compiles nothing is compiled at its root module. What dynamo leaves outside
    of its graphs runs as it would, and is recorded as in eager mode. `way` says how Inductor
    compiles and is tapped, as `Provenance` takes it, and `config` has options of Inductor.
    """

    traces = True
    stands_for_eager = False

    def __init__(
        self,
        recorder: Recorder,
        roots: Collection[nn.Module] = (),
        config: Mapping[str, Any] = MappingProxyType({}),
        **way: Any,
    ) -> None:
        super().__init__(recorder, roots, mode=TracedFunctionMode)
        self._config = config
        self._provenance = Provenance(self._where, self.quietly, **way)
        self.tapping = Tapping(lambda: self.step, self._provenance.known)
        self._compiled: dict[int, Callable[..., Any]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Tap what is compiled while the block runs; nothing that was tapped outlives it."""
        self.compiles = True
        self._provenance.grafts = self.tapping.grafts = self.grafts
        torch._dynamo.reset()
        try:
            with (
                inductor_with(self._config),
                super().running(),
                self._provenance.watching(),
                self.tapping.running(),
                tracing_undisturbed(),
                mode_hidden_from_dynamo(),
            ):
                skip = private("torch._dynamo.eval_frame:skip_code")
                for ours in UNTRACED:
                    skip(ours.__code__)
                yield
        except Exception as error:
            raise unwrapped(error) from None
        finally:
            self._compiled.clear()
            torch._dynamo.reset()

    def _intercept(
        self,
        module: nn.Module,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> RunPlan:
        """Stand before what torch.compile made of a module of torch, whose call is traced too."""
        step = self.step
        outermost = step is None or step.is_function
        if outermost and is_compile_wrapper(module) and is_inlined(module):
            module = module._orig_mod  # type: ignore[assignment]
        return super()._intercept(module, run, args, kwargs)

    def _where(self) -> tuple[Model, str] | None:
        step = self.step
        return None if step is None else (step.model, step.scopes.here.path)

    def root_run(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[..., Any]:
        """What runs `module` as the program compiled it, or compiled as a whole."""
        del args, kwargs
        if not is_compile_wrapper(getattr(run, "__self__", module)) and not self._is_compiled(
            module
        ):
            if id(module) not in self._compiled:
                self._compiled[id(module)] = torch.compile(calling(module))
            run = self._compiled[id(module)]
        return run

    def _is_compiled(self, module: nn.Module) -> bool:
        """Whether it runs inside of something that torch.compile made, or holds such a thing."""
        if callable(hidden_callback()):
            return True
        inner = module.modules()
        return any(is_compile_wrapper(m) or m.__dict__.get("_compiled_call_impl") for m in inner)

    def facts(self) -> dict[str, Any]:
        facts = {**super().facts(), **self.tapping.facts()}
        if other := self.tapping.witnesses.other:
            facts["unseen_replays"] = facts.get("unseen_replays", 0) + other
        return facts

    def remarks(self) -> list[str]:
        return [*super().remarks(), *self.tapping.remarks()]


class CompiledBackend(GraphBackend):
    """Inductor as a torch.compile backend of its own: tapped until it is closed."""

    def __init__(
        self,
        recorder: Recorder,
        config: Mapping[str, Any] = MappingProxyType({}),
        **way: Any,
    ) -> None:
        super().__init__(recorder)
        self._config = config
        self._compiling = False
        provenance = Provenance(self._where, lambda run: run, **way)
        self.tapping = Tapping(self._step_in_scope, provenance.known)
        self._ends = ExitStack()
        self._ends.enter_context(provenance.watching())
        self._ends.enter_context(self.tapping.running())

    def __call__(self, graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self._compiling = True
        try:
            compile_fx: Callable[..., Any] = private("torch._inductor.compile_fx:compile_fx")
            with inductor_with(self._config):
                compiled: Callable[..., Any] = compile_fx(graph, example_inputs)
        finally:
            self._compiling = False
        return compiled

    def facts(self) -> dict[str, Any]:
        return self.tapping.facts()

    def close(self) -> None:
        super().close()
        self._ends.close()

    def _where(self) -> tuple[Model, str] | None:
        return self._model_and_base() if self._compiling else None

    def _step_in_scope(self) -> Step | None:
        """The step of the outermost call of what was compiled."""
        step = self._step()
        if step is not None:
            step.stand_in(self._scope(step))
        return step


def unwrapped(error: BaseException) -> BaseException:
    """Our own error out of the one that dynamo wraps around what its backend raises."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, CaptureError) else error
