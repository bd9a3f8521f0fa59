"""Records at the end of a run what parameters and buffers are that have changed since they were."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.effects import TARGET, Effect
from dumpcmp.nouns.key import ROOT
from dumpcmp.pytorch.names import DisableTorchDispatch, DisableTorchFunction
from dumpcmp.pytorch.trees import Slots
from dumpcmp.taps.recording.models import Model
from dumpcmp.taps.recording.plain import plain_of
from dumpcmp.taps.recording.recorder import Recorder
from dumpcmp.taps.recording.sources import digest_of
from dumpcmp.taps.recording.step import Step
from dumpcmp.taps.recording.values import Weights
from dumpcmp.taps.recording.weighing import weights_of
from dumpcmp.taps.recording.written_trees import written

_MOST_BYTES = 4 << 30  # that are digested to find writes that torch did not count


def put_state(recorder: Recorder) -> None:
    """Record of each model that ran what it has become since its last step was recorded."""
    if recorder.is_inert or recorder.is_taped or recorder.weights is Weights.NOTHING:
        return
    with HOLD, recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
        for root, step in recorder.latest_steps():
            if step.model.is_weighed:
                _put(step, weights_of(root, step.model))


def put_state_of(recorder: Recorder, step: Step, weights: Mapping[str, Slots]) -> None:
    """Record what the model of `step`, which goes now, has become since it was recorded."""
    if recorder.is_inert or recorder.weights is Weights.NOTHING or not step.model.is_weighed:
        return
    with HOLD, recorder.sparing(), DisableTorchFunction(), DisableTorchDispatch():
        _put(step, weights)


def _put(step: Step, weights: Mapping[str, Slots]) -> None:
    model = step.model
    changed = _changed(model, weights)
    slots = {f"{slot.partition('.')[0]}.{f'{path}.' if path else ''}{slot.partition('.')[2]}": one
             for path, some in changed.items() if step.tap.selects_op(path or ROOT)
             for slot, one in some}  # fmt: skip
    if slots:
        tree = {"object": "state", "parts": {slot: {"slot": slot} for slot in slots}}
        call = step.call(Effect.STATE.op, 0, TARGET, written(tree), "")
        step.put_late_weights(call, list(slots.items()))


def _changed(model: Model, weights: Mapping[str, Slots]) -> dict[str, Slots]:
    """Those that were written to since they were recorded, by torch's count or by their bytes."""
    counted = model.changed(weights)
    left = _MOST_BYTES
    found: dict[str, Slots] = {}
    for path, slots in weights.items():
        known = {slot for slot, _ in counted.get(path, ())}
        for slot, tensor in slots:
            is_new = slot in known
            digest = model.digests.get((path, slot), "")
            if not is_new and digest and left > 0:
                now = _digest(tensor)
                left -= tensor.nbytes
                is_new = bool(now) and now != digest
            elif is_new and digest:  # written to with what was there before, say
                is_new = _digest(tensor) != digest
            if is_new:
                found.setdefault(path, []).append((slot, tensor))
    return found


def _digest(tensor: Tensor) -> str:
    """Of the elements of a tensor in the host's memory; empty of others."""
    plain = plain_of(tensor)
    is_here = not plain.problem and plain.tensor.is_cpu
    return digest_of(plain.tensor) if is_here else ""
