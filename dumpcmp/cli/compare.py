"""``dumpcmp compare``: hold a run against golden and say where it first goes wrong."""

import atexit
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dumpcmp.archive.stores.urls import is_url
from dumpcmp.cli.grouping import Grouped
from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.cli.sharing import sharing_options
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.report.formats import FORMS, chosen_forms, free_stem

if TYPE_CHECKING:  # the work is imported when there is some, not for --help
    from rich.console import Console

    from dumpcmp.nouns.outcome import Outcome


_GROUPS = {
    "The runs": (
        "--my-path", "--golden-path", "--before-path", "--reference", "--layer", "--token",
        "--partial", "--follow", "--stop-at-first",
    ),
    "What belongs together": ("--mapping", "--token-offset", "--layout"),
    "What is admissible": (
        "--checker", "--rtol", "--atol", "--pcc", "--cosine", "--allow", "--replay",
        "--verify-digests",
    ),
    "The report": ("--output", "--format", "--open", "--per", "--all-columns", "--metric"),
    "Who does the work": ("--jobs", "--executor", "--device", "--cache"),
}  # fmt: skip


@click.command(cls=Grouped, groups=_GROUPS)
@click.option("--my-path", required=True, type=PLACE,
              help="Archive in question: a path or a URL.")  # fmt: skip
@click.option("--golden-path", required=True, type=PLACE, help="Archive that is right.")
@click.option("--output", default="out", show_default=True, type=PLACE,
              help="Directory for the report.")  # fmt: skip
@click.option("--before-path", type=PLACE,
              help="Archive of mine as it was before: what has changed?")  # fmt: skip
@click.option("--reference", type=PLACE,
              help="Archive of golden in higher precision (dump --dtype).")  # fmt: skip
@click.option("--mapping", type=PLACE,
              help="YAML file: golden's name of an op to my name for it.")  # fmt: skip
@click.option("--layer", "layers", metavar="GLOB", multiple=True,
              help="Ops to compare: 'layers.*.attn*'; may be given again.")  # fmt: skip
@click.option("--token", metavar="LIST", help="Tokens (steps) to compare, from 0: 0,2,5-8.")
@click.option("--token-offset", type=int, metavar="N",
              help="Add N to my tokens; else found from the data.")  # fmt: skip
@click.option("--layout", "layouts", metavar="FILE|OP=...", multiple=True,
              help="How values lie over ranks: a file, or 'OP=b s h[tp]'.")  # fmt: skip
@click.option("--checker", default="auto", show_default=True, metavar="NAME",
              help="auto, allclose, full, pcc, cosine, exact, fp64.")  # fmt: skip
@click.option("--metric", "metrics", metavar="NAME", multiple=True,
              help="One more column: kl_divergence, or PKG.MOD:FUNC.")  # fmt: skip
@click.option("--rtol", type=float, help="Relative tolerance of an element (allclose, full).")
@click.option("--atol", type=float, help="Absolute tolerance of an element (allclose, full).")
@click.option("--pcc", type=float, help="Least correlation (pcc, full).")
@click.option("--cosine", type=float, help="Least cosine (cosine).")
@click.option("--replay", default="auto", show_default=True, metavar="auto|all|off",
              help="Ops to run again in float64; auto: as needed.")  # fmt: skip
@click.option("--allow", metavar="WORD", multiple=True,
              help="My side's shortcut or quantisation: tf32, int8.")  # fmt: skip
@click.option("--partial", is_flag=True,
              help="Accept runs that are not whole: a rank is missing.")  # fmt: skip
@click.option("--verify-digests", is_flag=True,
              help="Read and check values that are equal by digest, too.")  # fmt: skip
@click.option("--follow", is_flag=True,
              help="My run may still go on: compare tokens as they come.")  # fmt: skip
@click.option("--stop-at-first", is_flag=True,
              help="End at the first token in which anything fails.")  # fmt: skip
@with_cache
@sharing_options
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda",
              help="Where to measure, and to run ops again.")  # fmt: skip
@click.option("--format", "formats", default="csv", show_default=True, metavar="LIST",
              help=f"Files to write: {', '.join(FORMS)}.")  # fmt: skip
@click.option("--per", type=click.Choice(["value", "op"]), default="value", show_default=True,
              help="Rows of the CSV: values, or calls by their worst.")  # fmt: skip
@click.option("--all-columns", is_flag=True, help="Columns of the CSV that are empty, too.")
@click.option("--open", "shows", is_flag=True, help="Write the HTML page and show it in a browser.")
def command(
    my_path: Path, golden_path: Path, output: Path, layers: tuple[str, ...], token: str | None,
    checker: str, rtol: float | None, atol: float | None, pcc: float | None,
    cosine: float | None, formats: str, shows: bool, follow: bool, stop_at_first: bool,
    per: str, all_columns: bool, before_path: Path | None, **options: Any,
) -> int:  # fmt: skip
    """Compare MY run with GOLDEN, value by value, and name the op where it first goes wrong.

    Exits with 0 where they are the same, 1 where they differ, 2 where there was trouble.
    """
    # A block is too small to share: threads of numpy's BLAS would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dumpcmp.execute import rarely_collecting

    click.get_current_context().with_resource(rarely_collecting())
    atexit.register(gc.freeze)  # a process that ends need not look for circles once more
    from dumpcmp.comparing import compare
    from dumpcmp.comparing.showing import USUAL_CLOSE_UPS
    from dumpcmp.judge import checker_named
    from dumpcmp.report.terminal import Screen

    tolerances = {"rtol": rtol, "atol": atol, "pcc": pcc, "cosine": cosine}
    chosen = checker_named(checker, tolerances)
    forms = chosen_forms(formats)
    if shows and is_url(output):
        raise SelectionError("--open shows a page of this machine", hint="--output is a URL")
    forms = (*forms, "html") if shows and "html" not in forms else forms
    closely = USUAL_CLOSE_UPS if any(FORMS[form].looks_closely for form in forms) else 0
    options |= {"layers": layers, "tokens": token, "checker": chosen, "closely": closely}
    with progress_bar() as progress:
        if follow or stop_at_first:
            from dumpcmp.comparing.watching import compare_by_steps

            outcome = compare_by_steps(
                golden_path, my_path, follow=follow, stop_at_first=stop_at_first,
                tell=_tell_of_token, progress=progress, **options,
            )  # fmt: skip
        else:
            outcome = compare(golden_path, my_path, progress=progress, **options)
        before = None
        if before_path is not None:
            from dumpcmp.report.earlier import Earlier

            before = compare(golden_path, before_path, progress=progress, **options)
            remark = Earlier(before, outcome).remark
            outcome = replace(outcome, remarks=(remark, *outcome.remarks))
    more = {
        "csv": {"per_op": per == "op", "all_columns": all_columns},
        "html": {"before": before},
    }
    return report(outcome, output, forms, Screen(), shows=shows, more=more)


def _tell_of_token(steps: list[int], outcome: "Outcome") -> None:
    """One line for each token that was compared while the others were not there yet."""
    from dumpcmp.report.escaping import visible

    tokens = ", ".join(map(str, steps))
    click.echo(visible(f"dumpcmp: token {tokens}: {outcome.word}"), err=True)


def report(
    outcome: "Outcome", output: Path, forms: tuple[str, ...], console: "Console",
    shows: bool = False, more: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:  # fmt: skip
    """Write the files, print the summary, and give the exit code."""
    files: list[Path] = []
    try:
        with writing():
            for path in written(outcome, output, forms, more or {"csv": {"all_columns": False}}):
                files.append(path)
    finally:  # a report that cannot be written is trouble, but what was found is not lost
        from dumpcmp.report.terminal import show

        show(outcome, console, [str(path) for path in files])
        if shows:
            opened(path for path in files if path.suffix == ".html")
    return outcome.exit_code


def written(
    outcome: "Outcome", output: Path, forms: tuple[str, ...],
    more: Mapping[str, Mapping[str, Any]],
) -> Iterator[Path]:  # fmt: skip
    """Write the report in each of `forms`, under a name that nothing in `output` has yet.

    `more` says, for a form, how it is written.
    """
    stem = free_stem(output)
    for name in forms:
        place = output / f"{stem}{FORMS[name].suffix}"
        yield FORMS[name].write(outcome, place, **more.get(name, {}))


@contextmanager
def writing() -> Iterator[None]:
    """Say on a terminal that the report is being written, as long as it is."""
    from dumpcmp.report.terminal import Screen

    console = Screen(stderr=True)
    with console.status("writing the report") if console.is_terminal else nullcontext():
        yield


def opened(pages: Iterable[Path]) -> None:
    """Show the pages in the browser."""
    import webbrowser

    for path in pages:
        webbrowser.open(path.resolve().as_uri())


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal that names what is being done and vanishes at the end; else nothing."""
    from dumpcmp.report.terminal import Screen

    console = Screen(stderr=True)
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(READING, total=None)

        def tell(done: int, total: int) -> None:
            phase, whole = phase_at(done, total)
            bar.update(task, completed=done, total=whole, description=phase)

        yield tell


READING, MEASURING, JUDGING = "reading what there is", "measuring", "running ops again, judging"


def phase_at(done: int, total: int) -> tuple[str, int | None]:
    """What a comparison does when so many bytes are measured, and what its bar goes up to.

    What comes after the last byte takes its own time, of which nobody knows how long it will be.
    """
    return (MEASURING, total) if done < total else (JUDGING, None)
