"""What ``dumpcmp dump`` is told of exported models: files that ONNX Runtime or torch runs."""

from collections.abc import Callable
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

_FILES = {"onnx": "an .onnx file", "exported": "a .pt2 file", "executorch": "a .pte file"}


@dataclass(frozen=True, slots=True)
class ExportedOptions:
    """What is said of an exported model, before or behind its name."""

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
        of_ort = {
            "--provider": self.providers,
            "--custom-ops": self.custom_ops,
            "--graph-level": self.graph_level != "all",
        }
        said: dict[str, object] = {"--inputs": self.inputs if mode not in _FILES else None}
        said |= of_ort if mode != "onnx" else {}
        said |= {"--option": self.config} if mode in ("exported", "executorch") else {}
        for option, is_said in said.items():
            if is_said:
                hint = "use --mode onnx, exported or executorch"
                hint = hint if option == "--inputs" else "use --mode onnx"
                raise SelectionError(f"{option} says nothing to --mode {mode}", hint=hint)


@click.command(add_help_option=False)
@click.option("--inputs", type=PLACE)
@click.option("--provider", "providers", multiple=True)
@click.option("--graph-level", type=click.Choice(LEVELS))
@click.option("--custom-ops", multiple=True)
@click.option("--option", "config", multiple=True)
def behind_name(**said: Any) -> dict[str, Any]:
    """What may stand behind the name of an exported model."""
    return {word: value for word, value in said.items() if value}


def _told(
    mode: str, words: tuple[str, ...], options: ExportedOptions
) -> tuple[str, ExportedOptions, "list[ModelInputs]"]:
    """The file of the model, all that is said of it, and what it is called with."""
    what = _FILES[mode]
    if not words:
        raise SelectionError(f"--mode {mode} needs a model", hint=f"name {what}")
    if not Path(words[0]).is_file():
        raise SelectionError(f"{words[0]} is not a file", hint=f"name {what}")
    more = behind_name.main(list(words[1:]), standalone_mode=False)
    told = replace(options, **more)
    told.refuse(mode)
    if told.inputs is None:
        raise SelectionError(
            f"--mode {mode} needs what the model is called with",
            hint="add --inputs golden_dump, or --inputs inputs.npz",
        )
    from dumpcmp.dumping.model_inputs import inputs_from

    return words[0], told, inputs_from(told.inputs)


def onnx_run(words: tuple[str, ...], options: ExportedOptions) -> Callable[[], object]:
    """What runs the .onnx file that the command line names."""
    from dumpcmp.taps.onnx.protobufs import check_installed

    check_installed()
    path, told, inputs = _told("onnx", words, options)
    from dumpcmp.dumping.onnx_runs import onnx_program
    from dumpcmp.taps.onnx.sessions import OnnxSettings

    entries = dict(each.partition("=")[::2] for each in told.config)
    settings = OnnxSettings(
        told.providers or OnnxSettings().providers, told.graph_level, entries, told.custom_ops
    )
    return onnx_program(path, inputs, settings)


def program_run(
    mode: str, words: tuple[str, ...], options: ExportedOptions
) -> Callable[[], object]:
    """What runs the program of torch.export or ExecuTorch that the command line names."""
    path, _, inputs = _told(mode, words, options)
    from dumpcmp.dumping.exported_runs import file_program

    return file_program(path, inputs, mode)


RUNS: dict[str, Callable[[tuple[str, ...], ExportedOptions], Callable[[], object]]] = {
    "onnx": onnx_run,
    "exported": partial(program_run, "exported"),
    "executorch": partial(program_run, "executorch"),
}
