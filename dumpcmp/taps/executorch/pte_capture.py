"""Captures programs of ExecuTorch: each kernel is a call of its op, each delegate one call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.spoken import counted
from dumpcmp.pytorch.tensor_bits import same_bits
from dumpcmp.taps.executorch.pte_model import PteModel, PteRun
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.functions import Function
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.step import Step


class PteCapture(ModuleCapture):
    """Captures calls of PteModels, and certifies each: its outputs are those without a log."""

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots, mode=None)
        self._num_calls = self._num_outputs = 0
        self._problems: list[str] = []
        self._delegates: set[str] = set()

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Nothing is compiled in here."""
        yield

    def _is_root(self, module: nn.Module) -> bool:
        return isinstance(module, PteModel) and super()._is_root(module)

    def root_run(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[..., Any]:
        """What runs a PteModel, plainly and logged, and records its calls."""
        if not isinstance(module, PteModel):
            return super().root_run(module, run, args, kwargs)
        return partial(self._run, module)

    def _run(self, model: PteModel, *args: Any, **kwargs: Any) -> Any:
        given = model.given(args, kwargs)
        plain = model.forward(*given)
        outputs, runs = model.logged(given)
        self._compare(list(plain) if isinstance(plain, tuple) else [plain], outputs)
        values = {id(tensor): tensor for run in runs for tensor in run.outputs}
        outputs = [_logged_as(each, list(values.values())) for each in outputs]
        step = self.step
        if step is not None:
            with HOLD:
                try:
                    for run in runs:
                        _record(step, run)
                except Exception as error:
                    self.recorder.give_up(error)
        self._num_calls = model.program.num_calls
        words = (run.call.name for run in runs)
        self._delegates |= {word for word in words if word.startswith("executorch.")}
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _compare(self, plain: list[Tensor], logged: list[Tensor]) -> None:
        self._num_outputs += len(plain)
        for at, (one, other) in enumerate(zip(plain, logged, strict=True)):
            if not same_bits(one, other):
                self._problems.append(f"output {at} is not that of a run without a log")

    def facts(self) -> dict[str, Any]:
        """What run.json says: its values are those of aten mode, and the certificate."""
        compared = {"call": self._num_calls, "output": self._num_outputs}
        if self._problems or not self._num_outputs:
            why = self._problems[0] if self._problems else "nothing ran"
            text = f"not certified: {why}"
        else:
            calls, outputs = (counted(count, word) for word, count in compared.items())
            text = f"certified: {outputs} of {calls} as in a run without a log"
        certificate = {"holds": not text.startswith("not"), "text": text, "compared": compared}
        return {
            **super().facts(), "mode": "aten", "program": "executorch", "certificate": certificate,
            "delegates": sorted(self._delegates),
        }  # fmt: skip


def _logged_as(output: Tensor, values: list[Tensor | None]) -> Tensor:
    """The value that was logged last with the bits of an output: it is that value."""
    found = (each for each in reversed(values) if each is not None and same_bits(each, output))
    return next(found, output)


def _record(step: Step, run: PteRun) -> None:
    call = step.function(Function(run.call.name, run.call.target), run.args, run.kwargs)
    if call is None or not step.tap.outputs:
        return
    found = [(f"output.{at}", made) for at, made in enumerate(run.outputs) if made is not None]
    step.store(call, found)
