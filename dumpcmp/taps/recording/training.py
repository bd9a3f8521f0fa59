"""Records what steers training, and what optimizers and generators are at the end of a run."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.effects import CLIPPING, TARGET, Effect
from dumpcmp.pytorch.names import (
    DisableTorchDispatch,
    DisableTorchFunction,
    Patch,
    is_there,
    patched,
    standing_in,
)
from dumpcmp.taps.recording.data_position import DataPositions
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.returned import records_effects
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.written_trees import Tree, TreeWriter, kind_of, written

# Settings of an optimizer that say how it computes and not what.
_WAYS = frozenset(("params", "foreach", "fused", "capturable", "differentiable"))
_CLIP = "torch.nn.utils.clip_grad:_clip_grads_with_norm_"
_SCALE = "torch.amp.grad_scaler:GradScaler.update"


class Training:
    """Hears of optimizers, clipped gradients and loss scales while a capture runs."""

    def __init__(
        self,
        recorder: Recorder,
        is_traced: Callable[[], bool],
        num_ranks: int = 1,
        is_on_all_ranks: Callable[[Tensor], bool] = lambda _: True,
    ) -> None:
        self._recorder, self._is_traced = recorder, is_traced
        self._optimizers: list[_LastStep] = []  # of each, in the order in which they came
        self._numbers: dict[tuple[str, int], int] = {}  # of what steered a step so far
        self._before: dict[int, dict[str, Any]] = {}  # what optimizers that step now had kept
        self._began = _generators()
        self._has_begun = False
        self._num_ranks = num_ranks
        self._positions = DataPositions(num_ranks, self._put_positions)
        self._positioned: tuple[str, int] | None = None  # the latest step that has them
        self._is_on_all_ranks = is_on_all_ranks
        self._has_data = False
        self._has_optimizers = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear of it while the block runs; no hook stays behind."""
        ours: dict[str, Callable[..., Any]] = {_CLIP: self._clip, _SCALE: self._scale}
        patches: list[Patch] = [standing_in(p, f) for p, f in ours.items() if is_there(p)]
        handles = (
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._stepped),
        )
        try:
            with patched(*patches), self._positions.watched():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def begin(self) -> None:
        """A step begins. What was drawn before the first one, as for weights, is not of the run."""
        if not (self._has_begun or self._recorder.is_taped):
            with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
                self._began, self._has_begun = _generators(), True

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json says of how the run began and ended, for what effects do not tell."""
        steps = (step for _, step in self._recorder.latest_steps())
        look = self._recorder.last_look
        last = {} if look is None else dict(look.ended)
        last |= {step.model.name: step.model.num_steps - 1 for step in steps}
        return {"generators": self._began, "last_steps": last}

    @property
    def more_effects(self) -> list[Effect]:
        """The effects that this run records, of those that not every run can."""
        found = [Effect.DATA] if self._has_data else []
        return [*found, Effect.OPTIMIZER] if self._has_optimizers else found

    def put_end(self) -> None:
        """Record optimizers and generators as they are now."""
        with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
            latest = self._latest()
            if latest is None or not records_effects(latest):
                return
            known = [(n, one) for n, each in enumerate(self._optimizers) if (one := each.ref())]
            self._has_optimizers = all(self._is_whole(one) for _, one in known)
            for number, optimizer in known if self._has_optimizers else ():
                step = self._step_of(optimizer) or latest
                self._put(step, Effect.OPTIMIZER, number, _optimizer(optimizer, self._names()))
            drawn = {name: {"dict": told} for name, told in _generators().items()
                     if told["state"] != self._began.get(name, {}).get("state")}  # fmt: skip
            if drawn:
                self._put(latest, Effect.GENERATORS, 0, {"object": "generators", "parts": drawn})
        self._put_positions()

    def _is_whole(self, optimizer: Optimizer) -> bool:
        """Whether each rank has it for all parameters of its model.

        Where ranks share them out, by pipelines or by sharding what optimizers keep, no rank
        tells what the others have.
        """
        own = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        if not all(map(self._is_on_all_ranks, own.values())):
            return False
        roots = [root for root, _ in self._recorder.latest_steps()]
        mine = [root for root in roots if any(id(p) in own for p in root.parameters())]
        trained = (p for root in mine for p in root.parameters() if p.requires_grad)
        return self._num_ranks == 1 or all(id(p) in own for p in trained)

    def _put_positions(self) -> None:
        """Record how far loaders are with the step that ran last, once for each step."""
        with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
            latest = self._latest()
            if latest is None or not records_effects(latest):
                return
            place = latest.model.name, latest.number
            if place == self._positioned or latest.number != latest.model.num_steps - 1:
                return
            self._positioned = place
            for number, parts in self._positions.told():
                self._has_data = True
                self._put(latest, Effect.DATA, number, _Told("data loader", parts))

    def _steps(self, optimizer: Optimizer, *_: Any) -> None:
        """Before each step of any optimizer."""
        if not self._is_traced():
            with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
                self._before[id(optimizer)] = _kept_before(optimizer)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """After each step of any optimizer."""
        if self._is_traced():
            return
        with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
            step = self._step_of(optimizer)
            if self._num_ranks == 1:
                self._last_step_of(optimizer).keep(optimizer, step, self._names)
            else:
                self._last_step_of(optimizer)
            parts: dict[str, Any] = self._before.pop(id(optimizer), {})
            parts["groups"] = [_settings(group) for group in optimizer.param_groups]
            self._steered(step, kind_of(optimizer), parts)

    def _last_step_of(self, optimizer: Optimizer) -> _LastStep:
        for known in self._optimizers:
            if known.ref() is optimizer:
                return known
        number = len(self._optimizers)
        for place, known in enumerate(self._optimizers):
            if known.is_followed_by(optimizer):  # a run that goes on from what was saved
                number = place
        one = _LastStep(optimizer, lambda _: self._put_gone(number, one))
        self._optimizers[number : number + 1] = [one]
        return one

    def _put_gone(self, number: int, known: _LastStep) -> None:
        """Record an optimizer that goes before the run ends, if all of it is still there."""
        if HOLD.depth:
            return
        with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
            told, step = known.told(), known.step
            is_quiet = self._recorder.active() is None and not self._is_traced()
            if told is not None and step is not None and is_quiet and records_effects(step):
                self._put(step, Effect.OPTIMIZER, number, told)

    def _clip(self, clip: Any, parameters: Any, max_norm: Any, total_norm: Any, *rest: Any) -> Any:
        """When gradients are clipped to a norm."""
        if not self._is_traced():
            with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
                told = {"max_norm": max_norm, "total_norm": total_norm}
                self._steered(self._latest(), CLIPPING, told)
        return clip(parameters, max_norm, total_norm, *rest)

    def _scale(self, update: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        """When the scale of losses is made anew."""
        kept: list[Tensor] = []
        if not self._is_traced():
            with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
                states = getattr(scaler, "_per_optimizer_states", {}).values()
                found = [one for state in states for one in state["found_inf_per_device"].values()]
                kept = [one.detach().clone() for one in found]  # which the update adds up in place
        result = update(scaler, *args, **kwargs)
        if not self._is_traced() and getattr(scaler, "_scale", None) is not None:
            with HOLD, self._recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
                told = {"scale": scaler._scale, "found_inf": kept}
                self._steered(self._latest(), "GradScaler", told)
        return result

    def _steered(self, step: Step | None, kind: str, parts: dict[str, Any]) -> None:
        """Record what steers training in `step`, if that is the last that ran."""
        if step is None or not records_effects(step) or step.number != step.model.num_steps - 1:
            return
        place = step.model.name, step.number
        number = self._numbers[place] = self._numbers.get(place, -1) + 1
        self._put(step, Effect.TRAINING, number, _Told(kind, parts))

    def _put(self, step: Step, effect: Effect, number: int, told: Any) -> None:
        writer = _NumberWriter()
        tree = writer.told(told) if isinstance(told, _Told) else told
        call = step.call(effect.op, number, TARGET, written(tree), "")
        step.put_effect(call, writer.found, late=True)

    def _latest(self) -> Step | None:
        """The step that ran last, of whatever model."""
        steps, look = self._recorder.latest_steps(), self._recorder.last_look
        return steps[-1][1] if steps else None if look is None else look.step

    def _step_of(self, optimizer: Optimizer) -> Step | None:
        """The latest step of the model whose parameters it has; else of the one that ran last."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for root, step in reversed(self._recorder.latest_steps()):
            if any(id(parameter) in own for parameter in root.parameters()):
                return step
        return self._latest()

    def _names(self) -> dict[int, str]:
        """What models call their parameters."""
        roots: list[nn.Module] = [root for root, _ in self._recorder.latest_steps()]
        return {id(p): name for root in reversed(roots) for name, p in root.named_parameters()}


class _Told:
    """What is to be written of an object: its kind and its parts."""

    def __init__(self, kind: str, parts: dict[str, Any]) -> None:
        self.kind, self.parts = kind, parts


class _LastStep:
    """An optimizer as it last stepped, by weak references: nothing of it lives longer for it."""

    def __init__(self, optimizer: Optimizer, gone: Callable[[Any], None]) -> None:
        self.ref = weakref.ref(optimizer, gone)
        self.step: Step | None = None
        self._kind, self._parts = kind_of(optimizer), dict[str, Any]()
        self._names: dict[int, str] = {}
        self._met: set[int] = set()  # parameters, by identity

    def keep(
        self, optimizer: Optimizer, step: Step | None, names: Callable[[], dict[int, str]]
    ) -> None:
        """Know what `optimizer` keeps now; `names` are asked for what it has not met."""
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if own != self._met:
            self._names, self._met = names(), own
        self.step, told = step, _optimizer(optimizer, self._names)
        self._parts = {
            "groups": told.parts["groups"],
            "state": {
                name: {word: _weakly(value) for word, value in held.items()}
                for name, held in told.parts["state"].items()
            },
        }

    def is_followed_by(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer`, a later one, is of the same parameters."""
        return self._met == {id(p) for group in optimizer.param_groups for p in group["params"]}

    def told(self) -> _Told | None:
        """What it kept when it stepped last; None where some of it is gone."""
        state = {
            name: {word: _strongly(value) for word, value in held.items()}
            for name, held in self._parts.get("state", {}).items()
        }
        if self.step is None or any(v is _GONE for held in state.values() for v in held.values()):
            return None
        return _Told(self._kind, {**self._parts, "state": state})


_GONE = object()  # stands for a tensor that lives no longer


def _weakly(value: Any) -> Any:
    return weakref.ref(value) if isinstance(value, Tensor) else value


def _strongly(value: Any) -> Any:
    found = value() if isinstance(value, weakref.ref) else value
    return _GONE if found is None and isinstance(value, weakref.ref) else found


class _NumberWriter(TreeWriter):
    """Writes single numbers of the host by value; other tensors are recorded."""

    def told(self, told: _Told) -> Tree:
        parts = {name: self._part(value, name) for name, value in told.parts.items()}
        return {"object": told.kind, "parts": parts}

    def _part(self, value: Any, name: str) -> Tree:
        return self.told(value) if isinstance(value, _Told) else self.tree(value, f"output.{name}")

    def _tensor(self, tensor: Tensor, name: str, seen_by_slots: bool) -> Tree:
        if type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu and tensor.numel() == 1:
            return self._tree(tensor.item(), name, seen_by_slots)
        return super()._tensor(tensor, name, seen_by_slots)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer is told to do with a group of parameters."""
    return {word: value for word, value in group.items() if word not in _WAYS}


def _kept_before(optimizer: Optimizer) -> dict[str, Any]:
    """What an optimizer keeps of parameters before it steps, by name, and how often it stepped.

    A run that was resumed without it begins with nothing.
    """
    listed = (p for group in optimizer.param_groups for p in group["params"])
    held = next((dict(optimizer.state[p]) for p in listed if optimizer.state.get(p)), {})
    told: dict[str, Any] = {"state_before": ", ".join(sorted(map(str, held))) or "nothing"}
    number = held.get("step")
    if type(number) is Tensor and number.is_cpu and number.numel() == 1:
        number = number.item()  # of a tensor, which the step is about to change
    if isinstance(number, int | float):
        told["steps_before"] = float(number)
    return told


def _optimizer(optimizer: Optimizer, names: dict[int, str]) -> _Told:
    """An optimizer by its settings and by what it keeps of each parameter."""
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        names.get(id(parameter), f"parameter {number}"): dict(optimizer.state[parameter])
        for number, parameter in enumerate(listed)
        if parameter in optimizer.state
    }
    groups = [_settings(group) for group in optimizer.param_groups]
    return _Told(kind_of(optimizer), {"groups": groups, "state": state})


def _generators() -> dict[str, dict[str, Tree]]:
    """The states of torch's generators, by digest; those of CUDA where it is used."""
    found = {"cpu": torch.default_generator}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found |= {f"cuda:{n}": one for n, one in enumerate(torch.cuda.default_generators)}
    return {
        name: {"seed": one.initial_seed(), "state": _digest(one.get_state())}
        for name, one in found.items()
    }


def _digest(state: Tensor) -> str:
    return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).hexdigest()
