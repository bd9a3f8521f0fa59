"""How a capture watches a program: the modes, with the options that belong to each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from dumpcmp.archive.stores.urls import place
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.selection import Tap
from dumpcmp.pytorch.inductor_options import check_inductor
from dumpcmp.pytorch.names import check_names
from dumpcmp.taps.inductor.switches import Switches, read_switches, switched_off
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.recorder import Recorder

NOT_CERTIFIED = "not certified: nobody checked that the kernels are the program's own (--certify)"

_HOMES = {  # of the mode's capture: it is imported once the names of torch that it needs are there
    "eager": "dumpcmp.taps.modes.modules:ModuleCapture",
    "fx": "dumpcmp.taps.modes.graph:GraphCapture",
    "aten": "dumpcmp.taps.modes.aten:AtenCapture",
    "compiled": "dumpcmp.taps.inductor.compiled:CompiledCapture",
    "boundary": "dumpcmp.taps.modes.boundary:BoundaryCapture",
    "onnx": "dumpcmp.taps.onnx.capture:OnnxCapture",
    "exported": "dumpcmp.taps.exported.exported_capture:ExportedCapture",
    "openvino": "dumpcmp.taps.openvino.openvino_capture:OpenVinoCapture",
    "executorch": "dumpcmp.taps.executorch.pte_capture:PteCapture",
}


@dataclass(frozen=True, slots=True)
class PlainMode:
    """A mode without options: eager, fx or aten."""

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """What the capture is made with."""
        return {}

    @property
    def certifies_itself(self) -> bool:
        """Whether each of its runs says if it is what it is without a capture."""
        return self.name in ("onnx", "openvino", "exported", "executorch")

    def facts(self) -> dict[str, Any]:
        """What run.json says of the mode, besides its name."""
        return self.options


@dataclass(frozen=True, slots=True)
class Compiled(PlainMode):
    """Inductor, its kernels tapped.

    `fusion` off gives every op a kernel of its own, `realize` has every op store its result, and
    `twin` runs each graph again to see inside of fused kernels. `fusion_switch` is a file that
    turns single fusions off, and `fusion_off` names such; ``dumpcmp fusions`` lists them. `config`
    has options of Inductor, as torch.compile takes them.
    """

    name: str = field(default="compiled", init=False)
    fusion: bool = True
    realize: bool = False
    twin: bool = True
    fusion_switch: str | Path | None = None
    fusion_off: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        switches = self._switches()
        fusion = self.fusion and (switches is None or switches.kernels)
        twin = self.twin and fusion and not self.realize  # else no kernel hides anything
        given: dict[str, Any] = {"fusion": fusion, "realize": self.realize, "twin": twin}
        given |= {"switches": switches} if switches else {}
        if self.config:
            check_inductor(self.config)
            given["config"] = dict(self.config)
        return given

    def _switches(self) -> Switches | None:
        read = None if self.fusion_switch is None else read_switches(place(self.fusion_switch))
        return switched_off(self.fusion_off, read or Switches()) if self.fusion_off else read

    def facts(self) -> dict[str, Any]:
        told = self.options
        if "switches" in told:
            told["switches"] = told["switches"].words
        return {**told, "certificate": {"text": NOT_CERTIFIED}}


@dataclass(frozen=True, slots=True)
class Boundary(PlainMode):
    """Any torch.compile backend, by name, as ``pkg.mod:function`` or itself: what graphs give."""

    name: str = field(default="boundary", init=False)
    backend: str | Callable[..., Any]
    config: Mapping[str, Any] = field(default_factory=dict)  # as torch.compile's `options`

    @property
    def options(self) -> dict[str, Any]:
        return {"backend": self.backend} | ({"config": dict(self.config)} if self.config else {})


def parse_mode(mode: str | PlainMode) -> PlainMode:
    """Read a mode as users write it in Python: its name, or itself with options."""
    return mode_with(mode) if isinstance(mode, str) else mode


def mode_with(
    name: str,
    fusion: bool = True,
    realize: bool = False,
    twin: bool = True,
    backend: str | None = None,
    fusion_switch: Path | None = None,
    fusion_off: tuple[str, ...] = (),
    config: Mapping[str, Any] | None = None,
) -> PlainMode:
    """The mode called `name` with its options; those of other modes must have been left alone."""
    if name not in _HOMES:
        valid = ", ".join(_HOMES)
        raise SelectionError(f"--mode {name!r} is not known", hint=f"valid are: {valid}")
    if name != "compiled" and (realize or not fusion or not twin or fusion_switch or fusion_off):
        option = "--realize" if realize else "--no-twin" if fusion else "--fusion off"
        option = "--fusion-switch" if fusion_switch else "--fusion-off" if fusion_off else option
        raise SelectionError(f"{option} says nothing to --mode {name}", hint="use --mode compiled")
    if name != "boundary" and backend is not None:
        raise SelectionError("--backend is for --mode boundary", hint="use --mode boundary")
    if name == "compiled":
        return Compiled(fusion, realize, twin, fusion_switch, fusion_off, config or {})
    if config and name != "boundary":
        hint = "use --mode compiled or boundary"
        raise SelectionError(f"--option says nothing to --mode {name}", hint=hint)
    if name != "boundary":
        return PlainMode(name)
    if backend is None:
        hint = "add --backend aot_eager; in Python, mode=dumpcmp.Boundary('aot_eager')"
        raise SelectionError("--mode boundary needs a backend", hint=hint)
    return Boundary(backend, config or {})


def check_mode(mode: PlainMode, tap: Tap, dtype: str | None) -> list[str]:
    """Refuse where this torch lacks what the capture needs; else what will be missing."""
    asked = {"--backward": tap.backward, "--dtype": dtype is not None}
    users = [user for user, is_asked in asked.items() if is_asked]
    return check_names("every mode", f"--mode {mode.name}", *users)


def watching(mode: PlainMode, recorder: Recorder, roots: Sequence[nn.Module]) -> ModuleCapture:
    """What watches the program in `mode`: all models, or those of `roots`."""
    module, _, name = _HOMES[mode.name].partition(":")
    kind: Callable[..., ModuleCapture] = getattr(import_module(module), name)
    return kind(recorder, roots, **mode.options)
