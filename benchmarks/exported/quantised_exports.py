"""Quantised exports: whether each node is what its definition gives, code for code."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch

import dumpcmp
from benchmarks.exported.running import ExportedSubject, compared, dumped, export
from benchmarks.exported.subjects import SUBJECTS
from benchmarks.tables import Table
from dumpcmp.dumping.model_inputs import inputs_from
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import slots_in
from dumpcmp.replay.choosing import chooses
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable

WAYS = ("dynamic", "QDQ", "QDQ signed by channel", "QOperator")


def table() -> Table:
    """The models that are exported in float32, quantised in several ways."""
    rows = []
    for subject in SUBJECTS:
        if subject.form != "float32":
            continue
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            exported = export(subject, room)
            for way in WAYS:
                try:
                    model = quantised(exported, room / "quantised.onnx", way)
                except Exception as error:  # of the quantiser
                    rows.append([str(subject), way, "", "", "", type(error).__name__])
                    continue
                mine = dumped(exported.golden, model, room / "mine")
                counts = Counter(_answers(dumpcmp.Archive(mine)))
                outcome = compared(exported.golden, mine, "int8")
                rows.append([
                    str(subject), way, str(sum(counts.values())), str(counts["wrong"]),
                    str(counts["unknown"]), outcome.headline.partition(":")[0].partition(" (")[0],
                ])  # fmt: skip
    headings = ["export", "quantised", "nodes", "wrong", "unknown", "compare --allow int8"]
    how = "A node is wrong if it is not what its definition gives for what it took."
    return Table("onnx-quantised", headings, rows, how)


def quantised(exported: ExportedSubject, path: Path, way: str) -> Path:
    """The model of `exported`, quantised as `way` says."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    if way == "dynamic":
        quantize_dynamic(exported.model, path)
        return path
    (given,) = inputs_from(exported.golden)
    names = [each.name for each in onnx.load(exported.model).graph.input]
    tensors = [*given.args, *(given.kwargs or {}).values()]
    feeds = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=False)}
    is_signed = "signed" in way
    quantize_static(
        exported.model, path, _Reader(feeds),
        quant_format=QuantFormat.QOperator if way == "QOperator" else QuantFormat.QDQ,
        per_channel=is_signed,
        activation_type=QuantType.QInt8 if is_signed else QuantType.QUInt8,
    )  # fmt: skip
    return path


class _Reader:
    """Gives a quantiser the inputs that it calibrates with."""

    def __init__(self, feeds: dict[str, Any]) -> None:
        self._feeds = iter([feeds])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _answers(archive: dumpcmp.Archive) -> Iterator[str]:
    for call in archive.calls.values():
        if "::" in call.target:
            yield _answer(archive, call)


def _answer(archive: dumpcmp.Archive, call: Call) -> str:
    """Whether a node is right, wrong, or of no known definition."""

    def tensor(slot: str) -> torch.Tensor:
        return archive.tensor(call.op, step=call.step, call=call.call, slot=slot, model=call.model)

    given = {slot: tensor(slot) for slot in slots_in(call.arguments)}
    try:
        again = rerun(call, given)
        made = hold(again, "output.0", tensor("output.0"))
    except Unreplayable:
        return "unknown"
    if chooses(call, given, again.outputs):
        return "right"
    return "unknown" if made.unknown else "wrong" if wrong(made) else "right"
