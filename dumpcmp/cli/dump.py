"""``dumpcmp dump``: run a program and record what every op of its models takes in and gives out."""

import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dumpcmp.cli.completion import files
from dumpcmp.cli.exported_models import RUNS, ExportedOptions
from dumpcmp.cli.grouping import Grouped
from dumpcmp.cli.places import PLACE, PathOrUrl
from dumpcmp.nouns.errors import DumpcmpError, SelectionError
from dumpcmp.nouns.options import LEVELS, parse_nbytes
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.report.escaping import visible

if TYPE_CHECKING:  # torch is imported when there is something to run, not for --help
    from dumpcmp.dumping.capturing import Capture
    from dumpcmp.dumping.programs import Dumped
    from dumpcmp.taps.recording.values import Counts


_GROUPS = {
    "What is run": ("--model", "-m", "--seed", "--dtype"),
    "What is recorded": (
        "--path", "--overwrite", "--mode", "--token", "--every", "--layer", "--io", "--level",
        "--backward", "--weights",
    ),
    "How much is kept": (
        "--keep", "--keep-full", "--sample-rows", "--compact", "--disk-budget", "--sketch",
        "--hashes", "--segments", "--checksum", "--reduce", "--spool-limit",
    ),
    "Memory": ("--buffer", "--graph-budget"),
    "Compiled and other backends": (
        "--certify", "--twin", "--realize", "--fusion", "--fusion-off", "--fusion-switch",
        "--option", "--backend",
    ),
    "Exported programs": ("--inputs", "--provider", "--graph-level", "--custom-ops"),
}  # fmt: skip


@click.command(
    cls=Grouped, groups=_GROUPS,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)  # fmt: skip
@click.option("--mode", default="eager", show_default=True,
              help="eager, fx, aten, compiled, boundary, onnx, openvino, exported or "
              "executorch.")  # fmt: skip
@click.option("--path", default="dump", show_default=True, type=PLACE,
              help="Archive to write: a path, or a URL such as s3://...")  # fmt: skip
@click.option("--spool-limit", metavar="SIZE",
              callback=lambda _ctx, _option, size: parse_nbytes(size) if size else None,
              help="With a URL: keep at most so much here once uploaded.")  # fmt: skip
@click.option("--token", metavar="LIST", help="Tokens (steps) to record, from 0: 0,2,5-8.")
@click.option("--every", type=int, default=1, show_default=True, metavar="N",
              help="Of the tokens, record each Nth, from 0.")  # fmt: skip
@click.option("--layer", "layers", metavar="GLOB", multiple=True,
              help="Ops to record: 'layers.*.attn*', Add; may be given again.")  # fmt: skip
@click.option("--io", default="all", show_default=True, help="input, output or all.")
@click.option("--level", default="functions", show_default=True,
              help="modules, or functions inside them, too.")  # fmt: skip
@click.option("--backward", is_flag=True, help="Record gradients too.")
@click.option("--weights", is_flag=True, help="Keep parameters and buffers whole.")
@click.option("--dtype", help="Run in this precision instead, such as float64.")
@click.option("--fusion", type=click.Choice(["on", "off"]), default="on", show_default=True,
              callback=lambda _ctx, _option, word: word == "on",
              help="off gives every op a kernel of its own.")  # fmt: skip
@click.option("--fusion-switch", metavar="FILE",
              type=PathOrUrl(exists=True, dir_okay=False, path_type=Path),
              help="JSON file that turns single fusions off.")  # fmt: skip
@click.option("--fusion-off", metavar="NAME", multiple=True,
              help="Turn this fusion off, or ALL; see dumpcmp fusions.")  # fmt: skip
@click.option("--option", "config", metavar="NAME=VALUE", multiple=True,
              help="An option of the backend: max_autotune=true.")  # fmt: skip
@click.option("--realize", is_flag=True, help="Have every op store its result.")
@click.option("--twin/--no-twin", default=True, show_default=True,
              help="Run each graph again to see inside of kernels.")  # fmt: skip
@click.option("--certify", is_flag=True,
              help="Run without dumpcmp too, and say if all is the same.")  # fmt: skip
@click.option("--backend", metavar="NAME", help="boundary: the torch.compile backend.")
@click.option("--inputs", metavar="FILE", type=PLACE,
              help="Of an exported model: an .npz, or a golden dump.")  # fmt: skip
@click.option("--provider", "providers", metavar="NAME", multiple=True,
              help="onnx, openvino: what runs it, in order; else the CPU.")  # fmt: skip
@click.option("--graph-level", type=click.Choice(LEVELS), default="all", show_default=True,
              help="onnx: how far ONNX Runtime optimises the graph.")  # fmt: skip
@click.option("--custom-ops", metavar="FILE", multiple=True,
              help="onnx: library of custom ops. It is code, and runs.")  # fmt: skip
@click.option("--keep", type=click.Choice(["full", "summary"]), default="full", show_default=True,
              help="Tensors, or only Summaries of them.")  # fmt: skip
@click.option("--compact", is_flag=True,
              help="Replace finished tensors by Summaries as it runs.")  # fmt: skip
@click.option("--disk-budget", metavar="SIZE",
              callback=lambda _ctx, _option, size: parse_nbytes(size) if size else None,
              help="Compact the oldest tensors to stay under SIZE: 20G.")  # fmt: skip
@click.option("--buffer", metavar="SIZE",
              callback=lambda _ctx, _option, size: parse_nbytes(size) if size else None,
              help="Memory for what the disk has not taken yet: 16G.")  # fmt: skip
@click.option("--graph-budget", metavar="SIZE",
              callback=lambda _ctx, _option, size: parse_nbytes(size) if size else None,
              help="GPU memory for values inside of CUDA graphs: 4G.")  # fmt: skip
@click.option("--sample-rows", type=int, metavar="N",
              help="Of a tensor with more rows keep N, evenly spread.")  # fmt: skip
@click.option(
    "--keep-full",
    metavar="GLOB",
    multiple=True,
    help="Ops whose tensors stay whole; may be given again.",
)
@click.option("--sketch", type=int, default=512, show_default=True,
              help="Size of a Summary's sketch; 0 for none.")  # fmt: skip
@click.option("--hashes", type=int, default=1, show_default=True,
              help="Sketches a Summary; 3 find the largest difference.")  # fmt: skip
@click.option("--segments", type=int, default=0, show_default=True,
              help="Ranges of tokens with sketches of their own.")  # fmt: skip
@click.option("--checksum", is_flag=True,
              help="Summaries tell whether values are equal to the bit.")  # fmt: skip
@click.option("--reduce", metavar="PKG.MOD:FUNC", help="Your own numbers in each Summary.")
@click.option("--seed", type=int, help="Seed Python, numpy and torch, for a repeatable run.")
@click.option("--overwrite", is_flag=True, help="Replace what PATH holds.")
@click.option("--model", "factory", metavar="PKG:FUNC",
              help="Call the model that FUNC returns with its inputs.")  # fmt: skip
@click.option("-m", "module", metavar="MODULE", help="Run a module as a program.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def command(
    path: Path, token: str | None, mode: str, fusion: bool, fusion_switch: Path | None,
    realize: bool, twin: bool, fusion_off: tuple[str, ...], config: tuple[str, ...],
    backend: str | None, keep: str, compact: bool, keep_full: tuple[str, ...], sketch: int,
    reduce: str | None, disk_budget: int | None, hashes: int, segments: int, buffer: int | None,
    graph_budget: int | None, checksum: bool, spool_limit: int | None,
    sample_rows: int | None, factory: str | None, inputs: Path | None,
    providers: tuple[str, ...], graph_level: str, custom_ops: tuple[str, ...],
    module: str | None, program: tuple[str, ...], **options: Any,
) -> int:  # fmt: skip
    """Run PROGRAM, a script with its arguments, and record what every op takes in and gives out.

    Without a program, a small decoder that comes with dumpcmp generates four tokens.
    """
    from dumpcmp.dumping.modes import mode_with
    from dumpcmp.dumping.programs import dump
    from dumpcmp.dumping.retention import Retention
    from dumpcmp.pytorch.inductor_options import parse_options

    exported = ExportedOptions(inputs, providers, graph_level, custom_ops, config)
    if mode in RUNS:
        exported.refuse(mode, factory or module)
        run, given = RUNS[mode](program, exported), {}
    else:
        exported.refuse(mode)
        run = chosen_program(factory, module, program, options["backward"])
        given = parse_options(config)
    how = mode_with(mode, fusion, realize, twin, backend, fusion_switch, fusion_off, given)
    kept = Retention(keep, compact, keep_full, sketch, reduce, disk_budget, hashes, segments,
                     buffer, graph_budget, checksum, spool_limit, sample_rows)  # fmt: skip
    with live_line() as watch:
        dumped = dump(run, path, mode=how, keep=kept, watch=watch, tokens=token, **options)
    return report(dumped, str(path))


def chosen_program(
    factory: str | None, module: str | None, program: tuple[str, ...], backward: bool
) -> Callable[[], object]:
    """What the command line asks to run."""
    from dumpcmp import demo
    from dumpcmp.dumping import programs
    from dumpcmp.dumping.certifying import CertifiedProgram

    if factory and (module or program):
        raise SelectionError("--model and a program exclude each other", hint="give one of them")
    if factory:
        return programs.factory_program(factory, backward)
    if module and not programs.has_module(module):
        hint = "it is looked for here, and where Python finds packages; a file is given without -m"
        raise SelectionError(f"there is no module {module}", hint=hint)
    if module:
        return programs.module_program(module, program)
    if program and not Path(program[0]).is_file():
        hint = "options come before the script, which gets all that follows it"
        raise SelectionError(f"{program[0]} is not a file", hint=hint)
    if program:
        return programs.script_program(program[0], program[1:])
    return CertifiedProgram(demo.main, ("--kind", "script", str(demo.__file__)))


@contextmanager
def live_line() -> Iterator["Callable[[Capture], None]"]:
    """Show how far the dump has come, on a terminal; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.live import Live

    from dumpcmp.report.terminal import Screen

    shown: list[Capture] = []

    def render() -> str:
        return line_of(shown[0]) if shown else ""

    with Live(console=Screen(stderr=True), get_renderable=render, transient=True):
        yield shown.append


def line_of(now: "Capture") -> str:
    """The live line: how much there is, how fast it comes, what is queued, and what it cost."""
    counts, progress = now.counts, now.progress
    speed = progress.nbytes / max(now.seconds, 1e-9) / 1e6
    return (
        f"{_taken(counts)}, "
        f"{progress.nbytes / 1e6:.1f} MB, {speed:.0f} MB/s, {progress.queued / 1e6:.1f} MB queued, "
        f"waited {progress.seconds_waited:.1f} s for the disk"
    )


def _taken(counts: "Counts") -> str:
    words = ("token", counts.steps), ("op", counts.calls), ("value", counts.values)
    return ", ".join(counted(number, word) for word, number in words)


def report(dumped: "Dumped", path: str) -> int:
    """Say what the dump came to; the exit code."""
    if dumped.error is not None:
        show_error(dumped.error)
    counts = dumped.counts
    size = (counts.nbytes - dumped.nbytes_shared) / 1e6
    ending = "" if dumped.error is None else ", up to where the program stopped"
    click.echo(
        f"dumpcmp: {_taken(counts)} "
        f"({counts.links} of them {plural(counts.links, 'a link', 'links')}), "
        f"{size:.1f} MB in {path}{ending}",
        err=True,
    )
    if dumped.problem:
        values = counted(dumped.num_lost, "value of these is", "values of these are")
        lost = f"; {values} not in the archive" if dumped.num_lost else ""
        click.echo(visible(f"dumpcmp: trouble: {dumped.problem}{lost}", keep="\n"), err=True)
    warnings = (f"warning: {remark}" for remark in dumped.remarks)
    for said in filter(
        None, (dumped.cost, dumped.compacted, dumped.twins, dumped.certificate, *warnings)
    ):
        click.echo(visible(f"dumpcmp: {said}", keep="\n"), err=True)
    if dumped.is_empty:
        click.echo("dumpcmp: nothing was recorded", err=True)
    else:
        here = visible(shlex.quote(path))
        click.echo(f"  look inside: dumpcmp show {here}", err=True)
        click.echo(f"  compare:     dumpcmp compare --golden-path {here} --my-path ...", err=True)
    failed = dumped.error is not None or dumped.is_empty or dumped.problem
    return 2 if failed or dumped.certified is False else 0


_OURS = (str(Path(__file__).parents[1]), runpy.__file__, "<frozen runpy>")


def show_error(error: BaseException) -> None:
    """Print the program's own exception as Python would, without the frames of the capture."""
    if isinstance(error, DumpcmpError):
        click.echo(visible(f"dumpcmp: {error}", keep="\n"), err=True)
        return
    if isinstance(error, SystemExit):
        click.echo(f"dumpcmp: the program exited with {error.code}", err=True)
        return
    trace = traceback.TracebackException.from_exception(error)
    trace.stack = traceback.StackSummary.from_list(
        [frame for frame in trace.stack if not frame.filename.startswith(_OURS)]
    )
    click.echo("".join(trace.format()), err=True, nl=False)
