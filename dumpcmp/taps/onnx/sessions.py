"""Sessions of ONNX Runtime: the graph that it really runs, and that graph with values tapped.

A value that becomes an output of a graph may keep ORT from fusing what computes it. So ORT
optimises the model as it is and saves what it will run. That graph is run once more, tapped, with
optimisation turned off: nothing is left to be fused, or not to be. What is tapped is certified: the
outputs are those of the untapped session bit for bit, and its nodes are the untapped one's. Where
they are not, values are tapped in turns of fewer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dumpcmp.nouns.errors import CaptureError, SelectionError
from dumpcmp.nouns.options import LEVELS
from dumpcmp.pytorch.tensor_bits import same_bits
from dumpcmp.taps.onnx.protobufs import graphs_of
from dumpcmp.taps.onnx.tensors import dtype_of, from_ort, to_ort

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_WEIGHTS = "weights.bin"
_NOT_SPINNING = {"session.intra_op.allow_spinning": "0"}  # threads would take cores from dumpcmp
_AS_IT_IS = {"session.disable_quant_qdq": "1"}  # else it copies nodes for pairs of Q and DQ
_QUIET = 4  # ORT logs what is fatal alone; the rest comes as exceptions


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """How ONNX Runtime is to run a model."""

    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    level: str = "all"  # of its graph optimisation
    options: Mapping[str, str] = field(default_factory=dict)  # entries of its session config
    libraries: tuple[str, ...] = ()  # of custom ops: code, which runs
    threads: int = 0  # within an op; 0: ORT's own choice

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SelectionError(
                f"graph optimisation {self.level!r} is not known",
                hint=f"valid: {', '.join(LEVELS)}",
            )

    def facts(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {
            "providers": list(self.providers),
            "graph_optimisation": self.level,
            "session_options": dict(self.options),
            "custom_ops": [Path(each).name for each in self.libraries],
        }


def check_providers(settings: OnnxSettings) -> None:
    """Refuse execution providers that this ORT has not."""
    import onnxruntime

    known = onnxruntime.get_available_providers()
    for name in settings.providers:
        if name not in known:
            raise SelectionError(
                f"this ONNX Runtime has no {name}", hint=f"it has: {', '.join(known)}"
            )


def open_session(
    path: Path, settings: OnnxSettings, saved: Path | None, optimises: bool = True
) -> Any:
    """A session of the model at `path`; the graph that it runs is written to `saved`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.graph_optimization_level = _level(settings.level if optimises else "off")
    entries = {**_NOT_SPINNING, **settings.options, **({} if optimises else _AS_IT_IS)}
    if saved is not None:
        options.optimized_model_filepath = str(saved)
        entries = {
            "session.optimized_model_external_initializers_file_name": f"{saved.stem}-{_WEIGHTS}",
            "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
            **entries,
        }
    try:
        for name, value in entries.items():
            options.add_session_config_entry(name, value)
        options.intra_op_num_threads = settings.threads
        for library in settings.libraries:
            options.register_custom_ops_library(str(Path(library).absolute()))
        return onnxruntime.InferenceSession(str(path), options, providers=list(settings.providers))
    except Exception as error:  # its own classes, of which there are a dozen
        raise CaptureError(
            f"ONNX Runtime cannot load {path}: {_said(error)}", hint=_hint(str(error))
        ) from None


def _said(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:400]


def _hint(said: str) -> str:
    if "is not a registered function" in said or "domain" in said:
        return "a library of custom ops is given by name: --custom-ops lib.so, and is run"
    return "see if onnxruntime.InferenceSession takes it without dumpcmp"


def _level(name: str) -> Any:
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    found = {
        "all": levels.ORT_ENABLE_ALL,
        "layout": getattr(levels, "ORT_ENABLE_LAYOUT", levels.ORT_ENABLE_ALL),
        "extended": levels.ORT_ENABLE_EXTENDED,
        "basic": levels.ORT_ENABLE_BASIC,
        "off": levels.ORT_DISABLE_ALL,
    }
    return found[name]


def run_session(session: Any, names: Sequence[str], feeds: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a session gives for `feeds`, by name."""
    try:
        given = session.run_with_ort_values(list(names), dict(feeds))
    except Exception as error:
        raise CaptureError(f"ONNX Runtime stopped: {_said(error)}") from None
    found = zip(names, given, strict=True)
    return {name: from_ort(value) for name, value in found if value.is_tensor()}


@dataclass(eq=False)
class Turn:
    """One tapped session, and the values that it gives besides the outputs."""

    session: Any
    values: tuple[str, ...]


@dataclass(eq=False)
class GraphTapping:
    """Sessions that together give the values of the graph that `plain` runs.

    The first run settles in how many turns.
    """

    plain: Any
    graph: ModelProto  # that it runs, without external data
    room: Path
    settings: OnnxSettings
    turns: list[Turn] | None = None
    untapped: dict[str, str] = field(default_factory=dict)  # values, and why none has them
    num_sessions: int = 0
    problems: list[str] = field(default_factory=list)  # why it is not certified
    num_outputs: int = 0

    @property
    def outputs(self) -> list[str]:
        return [each.name for each in self.plain.get_outputs()]

    @property
    def values(self) -> list[str]:
        """All that nodes of the graph give, but for its outputs."""
        known = set(self.outputs)
        return [
            name for node in self.graph.graph.node for name in node.output
            if name and name not in known
        ]  # fmt: skip

    def run(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The outputs of the untapped session, and all values that are tapped."""
        feeds = {name: to_ort(tensor) for name, tensor in inputs.items()}
        outputs = run_session(self.plain, self.outputs, feeds)
        self.num_outputs += len(outputs)
        if self.turns is None:
            return outputs, self._settle(outputs, feeds)
        found: dict[str, Tensor] = {}
        for turn in self.turns:
            given = run_session(turn.session, [*self.outputs, *turn.values], feeds)
            self._hold(outputs, given)
            found |= given
        return outputs, found

    def _settle(self, outputs: Mapping[str, Tensor], feeds: Mapping[str, Any]) -> dict[str, Tensor]:
        """Tap all values at once, or those that disturb the run in turns of half as many."""
        self.turns, found = [], dict[str, Tensor]()
        waiting: list[list[str]] = [self.values]
        while waiting:
            names = waiting.pop(0)
            turn, why = self._turn(names)
            given: dict[str, Tensor] = {}
            if turn is not None and not why:
                given = run_session(turn.session, [*self.outputs, *turn.values], feeds)
                others = _differing(outputs, given)
                why = f"with it tapped, {others[0]} is another" if others else ""
            if not why and turn is not None:
                self.turns.append(turn)
                found |= given
            elif len(names) > 1:
                waiting += [names[: len(names) // 2], names[len(names) // 2 :]]
            elif names:
                self.untapped[names[0]] = why
            else:
                self._blame_program(outputs, feeds, why)
        return found

    def _blame_program(
        self, outputs: Mapping[str, Tensor], feeds: Mapping[str, Any], why: str
    ) -> None:
        """Not even without a tap the run is the same: see if it ever is."""
        again = run_session(self.plain, self.outputs, feeds)
        varies = bool(_differing(outputs, again))
        self.problems.append("two runs of the untapped session differ" if varies else why)

    def _hold(self, outputs: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
        for name in _differing(outputs, given):
            self.problems.append(f"output {name} is not that of the untapped session")

    def _turn(self, names: Sequence[str]) -> tuple[Turn | None, str]:
        """A session with `names` tapped; or why there is none."""
        import onnx

        self.num_sessions += 1
        at = self.room / f"tapped-{self.num_sessions}.onnx"
        saved = self.room / f"tapped-{self.num_sessions}-saved.onnx"
        weights = saved.with_name(f"{saved.stem}-{_WEIGHTS}")
        if os.name == "posix":  # only its nodes are read: its weights need no disk
            weights.symlink_to(os.devnull)
        tapped = onnx.ModelProto()
        tapped.CopyFrom(self.graph)
        tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        at.write_bytes(tapped.SerializeToString())
        try:
            session = open_session(at, self.settings, saved, optimises=False)
        except CaptureError as error:
            return None, error.message
        kinds = {each.name: each.type for each in session.get_outputs()}
        taken = [name for name in names if dtype_of(kinds.get(name, ""))]
        self.untapped |= {
            name: f"it is {kinds.get(name, 'nothing')}" for name in names if name not in taken
        }
        ran = onnx.ModelProto()
        ran.ParseFromString(saved.read_bytes())
        for path in (saved, weights):
            path.unlink(missing_ok=True)
        other = first_other_node(self.graph.graph.node, ran.graph.node)
        return Turn(session, tuple(taken)), f"with it tapped, {other}" if other else ""


def _differing(outputs: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    return [
        name for name, tensor in outputs.items()
        if name not in given or not same_bits(tensor, given[name])
    ]  # fmt: skip


def first_other_node(one: Sequence[NodeProto], other: Sequence[NodeProto]) -> str:
    """In what the nodes of two graphs differ; empty where they are the same."""
    ours, theirs = ({_node_words(node) for node in nodes} for nodes in (one, other))
    for words in sorted(ours ^ theirs):
        return f"node {words[1]} {words[0]!r} is {'gone' if words in ours else 'new'}"
    return "" if len(one) == len(other) else f"it has {len(other)} nodes in place of {len(one)}"


def _node_words(node: NodeProto) -> tuple[str, str, str]:
    """All that a node computes, as words that can be compared."""
    attributes = sorted(each.SerializeToString(deterministic=True) for each in node.attribute)
    told = repr((node.domain, list(node.input), list(node.output), attributes))
    return node.name, node.op_type, told


def tapping(path: Path, settings: OnnxSettings, room: Path) -> GraphTapping:
    """The sessions of the model at `path`, whose files lie in `room`."""
    import onnx

    check_providers(settings)
    saved = room / "optimised.onnx"
    plain = open_session(path, settings, saved)
    graph = onnx.ModelProto()
    graph.ParseFromString(saved.read_bytes())
    for body, depth in graphs_of(graph):
        if not body.name:  # as ORT writes them from its own format, and does not read them
            body.name = f"body_{depth}"
    return GraphTapping(plain, graph, room, settings)
