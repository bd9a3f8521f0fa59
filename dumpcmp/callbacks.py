"""Captures of training in one line: callbacks of Hugging Face's Trainer, Lightning and Accelerate.

    trainer = Trainer(..., callbacks=[dumpcmp.callbacks.hf_trainer("d1", every=100)])

Each records every Nth optimizer step, forward and backward, of the model that is trained, and no
evaluation. `budget` is the disk that the archive may take, such as ``"20G"``: the oldest tensors
become Summaries. With `stop_at_nan` the loss of each step is looked at; where it is not finite,
training ends, and a warning names the first op that gave such a value. All else is as for
`dumpcmp.capture`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dumpcmp.dumping.capturing import capturing
from dumpcmp.dumping.modes import parse_mode
from dumpcmp.dumping.retention import Retention
from dumpcmp.handlers import HOLD
from dumpcmp.nonfinite import first_nonfinite
from dumpcmp.nouns.errors import SelectionError, warn_of
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.options import parse_nbytes
from dumpcmp.nouns.selection import make_tap


class TrainingCapture:
    """A capture that follows a training loop: which steps are recorded, and when it ends."""

    def __init__(
        self,
        path: str | Path,
        *,
        every: int = 1,
        budget: str | int | None = None,
        stop_at_nan: bool = False,
        layers: str | Sequence[str] | None = None,
        io: str = "all",
        backward: bool = True,
        level: str = "functions",
        mode: str = "eager",
        keep: str | Retention = "full",
        overwrite: bool = False,
    ) -> None:
        if every < 1:
            raise SelectionError(f"every={every} selects no step", hint="give 1 or more")
        self.path, self.every = Path(path), every
        self.stop_at_nan = stop_at_nan
        self.should_stop = False  # a loss was not finite, and that step is recorded
        self.first_nan: Key | None = None  # the first value that is not finite, once it has ended
        self._tap = make_tap(None, layers, io, backward, False, level)
        self._mode, self._overwrite = mode, overwrite
        self._retention = _within(keep, budget)
        self._trains: Callable[[], bool] = lambda: True
        self._is_on = False
        self._is_awaited = False  # a loss was not finite in a step that is not recorded
        self._lifetime = ExitStack()
        self._is_running = False

    def begin(self, *roots: nn.Module, trains: Callable[[], bool] = lambda: True) -> None:
        """Begin to capture `roots`; nothing is recorded until a step begins, and while `trains`."""
        if self._is_running:
            return
        self._trains = trains
        taken = capturing(
            roots, self.path, self._tap, parse_mode(self._mode), self._retention,
            overwrite=self._overwrite,
        )  # fmt: skip
        self._lifetime.enter_context(taken).record_if(lambda: self._is_on and self._trains())
        self._is_running = True
        atexit.register(self.end)  # a loop that raises ends nothing

    def step_begins(self, number: int) -> None:
        """The optimizer step `number` begins: say whether it is recorded."""
        self._is_on = not self.should_stop and (self._is_awaited or number % self.every == 0)

    def look_at(self, loss: Any) -> None:
        """See whether a loss, or whatever a model returned, is finite."""
        if not self.stop_at_nan or self.should_stop or _is_finite(loss):
            return
        if self._is_on:
            self.should_stop = True
        else:
            self._is_awaited = True  # the next step is recorded, and then training ends

    def step_ends(self) -> None:
        """The step is over: what runs until the next is not recorded, such as an evaluation."""
        self._is_on = False

    def end(self) -> None:
        """Close the archive; if training was stopped, name the first value that is not finite."""
        if not self._is_running:
            return
        self._is_running = False
        atexit.unregister(self.end)
        self._lifetime.close()
        if self.should_stop:
            self.first_nan = first_nonfinite(self.path)
            where = f"it begins at {self.first_nan}" if self.first_nan else "no recorded value is"
            warn_of(f"training was stopped: the loss is not finite; {where}", 2)


def _within(keep: str | Retention, budget: str | int | None) -> Retention:
    kept = keep if isinstance(keep, Retention) else Retention(keep)
    if budget is None:
        return kept
    nbytes = parse_nbytes(budget) if isinstance(budget, str) else budget
    if kept != Retention():
        raise SelectionError(
            "budget= and keep= exclude each other", hint="give keep=Retention(disk_budget=...)"
        )
    return Retention(disk_budget=nbytes)


def _is_finite(loss: Any) -> bool:
    with HOLD, torch.no_grad():
        told = getattr(loss, "loss", None) if not isinstance(loss, dict) else loss.get("loss")
        leaves = tree_leaves(loss if told is None else told)
        floats = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        return all(bool(leaf.detach().isfinite().all()) for leaf in floats)


def hf_trainer(path: str | Path, **options: Any) -> Any:
    """A callback of `transformers.Trainer`; `options` are those of `TrainingCapture`."""
    from transformers import TrainerCallback

    taken = TrainingCapture(path, **options)

    class DumpcmpTrainerCallback(TrainerCallback):  # type: ignore[misc]
        """Records steps of a `transformers.Trainer`."""

        capture = taken
        _hook: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, state, control
            model = kwargs["model"]
            taken.begin(model)
            if taken.stop_at_nan:
                self._hook = model.register_forward_hook(lambda *called: taken.look_at(called[-1]))

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, control, kwargs
            taken.step_begins(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            del args, state, kwargs
            taken.step_ends()
            control.should_training_stop = control.should_training_stop or taken.should_stop
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            del args, state, control, kwargs
            if self._hook is not None:
                self._hook.remove()
            taken.end()

    return DumpcmpTrainerCallback()


def lightning(path: str | Path, **options: Any) -> Any:
    """A callback of Lightning's Trainer; `options` are those of `TrainingCapture`."""
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback

    taken = TrainingCapture(path, **options)

    class DumpcmpLightningCallback(Callback):  # type: ignore[misc]
        """Records steps of a Lightning Trainer."""

        capture = taken

        def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
            del trainer  # which calls training_step, and no forward, of the module
            taken.begin(pl_module, *pl_module.children())

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            taken.step_begins(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
            del pl_module
            taken.look_at(outputs)
            taken.step_ends()
            trainer.should_stop = trainer.should_stop or taken.should_stop

        def on_train_end(self, *_: Any) -> None:
            taken.end()

        def on_exception(self, *_: Any) -> None:
            taken.end()

    return DumpcmpLightningCallback()


@contextmanager
def accelerate(
    accelerator: Any, model: nn.Module, path: str | Path, **options: Any
) -> Iterator[TrainingCapture]:
    """Record the loop of an `Accelerator` while the block runs.

        with dumpcmp.callbacks.accelerate(accelerator, model, "d1", every=100) as capture:
            for batch in loader:
                ...
                if capture.should_stop:
                    break

    A step ends with the backward pass after which gradients are in sync. What runs in eval mode is
    not recorded.
    """
    taken = TrainingCapture(path, **options)
    inner = accelerator.unwrap_model(model)
    backward: Callable[..., Any] = accelerator.backward
    number = 0

    def watched(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal number
        found = backward(loss, *args, **kwargs)
        taken.look_at(loss)
        if accelerator.sync_gradients:
            number += 1
            taken.step_begins(number)
        return found

    taken.begin(inner, trains=lambda: inner.training)
    taken.step_begins(0)
    accelerator.backward = watched
    try:
        yield taken
    finally:
        del accelerator.backward
        taken.end()
