"""Names the models of a capture and numbers their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import fx, nn

from dumpcmp.nouns.record import Sink
from dumpcmp.nouns.selection import Tap
from dumpcmp.pytorch.graph_text import graph_text
from dumpcmp.pytorch.module_trees import ByModule, has_state
from dumpcmp.taps.recording.last_look import LastLook
from dumpcmp.taps.recording.models import FunctionModel, Model
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.step_kinds import FunctionStep
from dumpcmp.taps.recording.values import Outlet, Weights
from dumpcmp.taps.recording.weighing import weights_of


class Reeling(Protocol):
    """What takes the place of the Sink while a CUDA graph is captured."""

    def take(self, model: Model, number: int, part: str) -> None:
        """The step `number` of `model`, or of the `part` at that path, has begun meanwhile."""


class Recorder(Outlet):
    """What all steps of a capture share: where values go, and how models are named."""

    def __init__(self, sink: Sink, tap: Tap, rank: int = 0) -> None:
        super().__init__(sink, tap, rank)
        self.num_steps = 0  # of the model that ran most
        self._models = ByModule[Model]()
        self._latest = ByModule[Step]()
        self.last_look: LastLook | None = None  # at models that go before the run ends
        self._stateless: dict[type | str, Model] = {}
        self._taken: dict[str, int] = {}
        self._unfinished: dict[str, int] = {}  # by model: a step that is over, but for its effects
        self._outside: Step | None = None
        self.reel: Reeling | None = None  # while a CUDA graph is captured
        self.active: Callable[[], Step | None] = lambda: None  # on the thread that asks
        self.is_open: Callable[[], bool] = lambda: True  # a step begins only where this says so

    @property
    def is_taped(self) -> bool:
        return self.reel is not None

    def begin(self, root: nn.Module, part: nn.Module | None = None) -> Step | None:
        """A new step of `root`, or of a `part` of it alone; None where it is not selected.

        Calls while the recorder is not open are not counted: warm-ups shift no numbers.
        """
        with self.lock:
            model = self.model_of(root)
            if self.reel is None and not self.is_open():
                return None
            number = model.next_step()
            self.num_steps = max(self.num_steps, model.num_steps)
            self._finish_before(model.name)
            if self.reel is None and not self.tap.selects_step(number):
                return None
            self.counts.steps += 1
            step = Step(self, model, number)
            self._latest.set(root, step)
            if self.reel is not None:
                self.reel.take(model, number, "" if part is None else model.path_of(part, ""))
            else:
                self._weigh(model, root, step)
                if self.last_look is not None:
                    self.last_look.watch(root, step)
            return step

    def _weigh(self, model: Model, root: nn.Module, step: Step, in_brief: bool = False) -> None:
        """Have `step` record the parameters and buffers of `root` that it has not recorded yet."""
        if self.weights is not Weights.NOTHING and not model.is_unchanged(root):
            step.weighing.hold(model.changed(weights_of(root, model)), in_brief)

    def latest_steps(self) -> list[tuple[nn.Module, Step]]:
        """The root modules that have run and still live, each with its step of late."""
        return self._latest.items()

    def known_models(self) -> list[Model]:
        """Those that have run, and still live."""
        return self._models.values()

    def begin_replay(self, model: Model) -> Step | None:
        """A new step of `model`, which a CUDA graph computes; None where it is not selected."""
        if not self.is_open():
            return None
        number = model.next_step()
        self.num_steps = max(self.num_steps, model.num_steps)
        if not self.tap.selects_step(number):
            return None
        self.counts.steps += 1
        step = Step(self, model, number)
        if (root := model.root) is not None:
            self._latest.set(root, step)
            self._weigh(model, root, step, in_brief=model.is_weighed)
            if self.last_look is not None:
                self.last_look.watch(root, step)
        return step

    def begin_function(
        self, name: str, wanted: bool, begin: Callable[[nn.Module], Step | None]
    ) -> Step:
        """A new step of a compiled function; if it is not `wanted`, only its modules are named.

        `begin` begins the steps of modules that the function calls.
        """
        with self.lock:
            model = self.function_model(name)
            number = model.next_step()
            is_silent = not (wanted and self.tap.selects_step(number) and self.is_open())
            if not is_silent:
                self.num_steps = max(self.num_steps, model.num_steps)
                self.counts.steps += 1
            return FunctionStep(self, model, number, begin, is_silent)

    def function_model(self, name: str) -> Model:
        return self._sharing(name, lambda: FunctionModel(self._unique(name), self.model_of))

    def model_of(self, root: nn.Module) -> Model:
        """The model that `root` is. Instances without state, such as losses, share one."""
        known = self._models.get(root)
        if known is None:
            kind = type(root)

            def new() -> Model:
                return Model(self._unique(kind.__name__))

            known = new() if has_state(root) else self._sharing(kind, new)
            self._models.set(root, known)
            known.learn(root)
        return known

    def _sharing(self, kind: type | str, new: Callable[[], Model]) -> Model:
        if kind not in self._stateless:
            self._stateless[kind] = new()
        return self._stateless[kind]

    def keep_graph(self, model: Model, graph: fx.GraphModule) -> None:
        """Hand `graph`, which runs as a part of `model`, to the Sink as text."""
        self.sink.text(model.name, f"graph-{next(model.graphs)}.txt", graph_text(graph))

    def finish(self, step: Step, later: bool = False) -> None:
        """Tell a Sink that wants to know that nothing more of `step` will come.

        `later`: when the next one of its model begins, since an optimizer may follow.
        """
        finish_step = getattr(self.sink, "finish_step", None)
        if finish_step is None:
            return
        self._finish_before(step.model.name)
        if later:
            self._unfinished[step.model.name] = step.number
        else:
            finish_step(step.model.name, step.number)

    def _finish_before(self, model: str) -> None:
        """Finish the step of `model` before this one, if it was left for later."""
        number = self._unfinished.pop(model, None)
        finish_step = getattr(self.sink, "finish_step", None)
        if number is not None and finish_step is not None:
            finish_step(model, number)

    def outside(self) -> Step:
        """The step for values that the program saves outside of any model."""
        with self.lock:
            if self._outside is None:
                self._outside = Step(self, Model(self._unique("saved")), 0)
            return self._outside

    def step_with(self, module: nn.Module) -> Step | None:
        """The latest step of a model that `module` is a part of."""
        steps = reversed(self._latest.values())
        return next((step for step in steps if id(module) in step.model.paths), None)

    def _unique(self, name: str) -> str:
        number = self._taken.get(name, 0)
        self._taken[name] = number + 1
        return f"{name}-{number}" if number else name
