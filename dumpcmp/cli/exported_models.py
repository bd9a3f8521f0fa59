"""What ``dumpcmp dump`` takes for exported models: files that ONNX Runtime or torch runs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dumpcmp.cli.places import PLACE
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.options import LEVELS

if TYPE_CHECKING:
    from dumpcmp.dumping.model_inputs import ModelInputs

_FILES = {
    "onnx": "an .onnx file",
    "openvino": "an .onnx file",
    "exported": "a .pt2 file",
    "executorch": "a .pte file",
}
_COMPILING = ("onnx", "openvino")  # those that have options


@dataclass(frozen=True, slots=True)
class ExportedOptions:
    """The options for an exported model, before or behind its name."""

    inputs: Path | None = None
    providers: tuple[str, ...] = ()
    graph_level: str = "all"
    custom_ops: tuple[str, ...] = ()
    config: tuple[str, ...] = ()

    def refuse(self, mode: str, program: str | None = None) -> None:
        """Refuse what says nothing to `mode`; `program` is one of Python, if that is given."""
        if mode in _FILES and program:
            raise SelectionError(
                f"--mode {mode} runs {_FILES[mode]}", hint="leave --model and -m out"
            )
        options: dict[str, tuple[object, Collection[str]]] = {
            "--inputs": (self.inputs, _FILES),
            "--provider": (self.providers, _COMPILING),
            "--custom-ops": (self.custom_ops, ("onnx",)),
            "--graph-level": (self.graph_level != "all", ("onnx",)),
        }
        if mode in _FILES:
            options["--option"] = self.config, _COMPILING
        for option, (is_given, modes) in options.items():
            if is_given and mode not in modes:
                hint = f"use --mode {' or '.join(modes)}"
                raise SelectionError(f"{option} says nothing to --mode {mode}", hint=hint)


@click.command(add_help_option=False)
@click.option("--inputs", type=PLACE)
@click.option("--provider", "providers", multiple=True)
@click.option("--graph-level", type=click.Choice(LEVELS))
@click.option("--custom-ops", multiple=True)
@click.option("--option", "config", multiple=True)
def behind_name(**given: Any) -> dict[str, Any]:
    """What may stand behind the name of an exported model."""
    return {word: value for word, value in given.items() if value}


def _read(
    mode: str, words: tuple[str, ...], options: ExportedOptions
) -> tuple[str, ExportedOptions, "list[ModelInputs]"]:
    """The file of the model, all its options, and what it is called with."""
    what = _FILES[mode]
    if not words:
        raise SelectionError(f"--mode {mode} needs a model", hint=f"name {what}")
    if not Path(words[0]).is_file():
        raise SelectionError(f"{words[0]} is not a file", hint=f"name {what}")
    more = behind_name.main(list(words[1:]), standalone_mode=False)
    chosen = replace(options, **more)
    chosen.refuse(mode)
    if chosen.inputs is None:
        raise SelectionError(
            f"--mode {mode} needs what the model is called with",
            hint="add --inputs golden_dump, or --inputs inputs.npz",
        )
    from dumpcmp.dumping.model_inputs import inputs_from

    return words[0], chosen, inputs_from(chosen.inputs)


def onnx_run(words: tuple[str, ...], options: ExportedOptions) -> Callable[[], object]:
    """What runs the .onnx file that the command line names."""
    from dumpcmp.taps.onnx.protobufs import check_installed

    check_installed()
    path, chosen, inputs = _read("onnx", words, options)
    from dumpcmp.dumping.onnx_runs import onnx_program
    from dumpcmp.taps.onnx.sessions import OnnxSettings

    entries = dict(each.partition("=")[::2] for each in chosen.config)
    settings = OnnxSettings(
        chosen.providers or OnnxSettings().providers, chosen.graph_level, entries, chosen.custom_ops
    )
    return onnx_program(path, inputs, settings)


def program_run(
    mode: str, words: tuple[str, ...], options: ExportedOptions
) -> Callable[[], object]:
    """What runs the program that the command line names in torch, ExecuTorch or OpenVINO."""
    path, chosen, inputs = _read(mode, words, options)
    from dumpcmp.dumping.exported_runs import file_program
    from dumpcmp.taps.openvino.openvino_model import OpenVinoSettings

    entries = dict(each.partition("=")[::2] for each in chosen.config)
    settings = OpenVinoSettings(",".join(chosen.providers) or "CPU", entries)
    return file_program(path, inputs, mode, settings)


RUNS: dict[str, Callable[[tuple[str, ...], ExportedOptions], Callable[[], object]]] = {
    "onnx": onnx_run,
    "exported": partial(program_run, "exported"),
    "executorch": partial(program_run, "executorch"),
    "openvino": partial(program_run, "openvino"),
}
