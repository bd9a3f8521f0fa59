"""``dumpcmp golden``: a golden run as a small file, and programs held against it."""

from pathlib import Path

import click

from dumpcmp.cli.completion import files
from dumpcmp.cli.places import PLACE
from dumpcmp.nouns.errors import SelectionError


@click.group()
def command() -> None:
    """Keep a golden run as a small file in a repository, and hold programs against it in CI."""


@command.command()
@click.argument("archive", type=PLACE)
@click.argument("fixture", type=PLACE)
@click.option("--keep-full", metavar="GLOB", multiple=True, help="Ops whose tensors stay whole.")
@click.option("--sketch", type=int, default=512, show_default=True,
              help="Size of a Summary's sketch; 0 for none.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace FIXTURE.")
def pack(
    archive: Path, fixture: Path, keep_full: tuple[str, ...], sketch: int, overwrite: bool
) -> None:
    """Write the run at ARCHIVE into one small file, FIXTURE: summaries, and facts of the run."""
    from dumpcmp.golden import pack_golden

    packed = pack_golden(archive, fixture, keep_full=keep_full, sketch=sketch, overwrite=overwrite)
    click.echo(str(packed))


@command.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--path", type=PLACE, help="Keep the dump of the program here.")
@click.option("--output", type=PLACE, help="Directory for the report.")
@click.option("--format", "formats", default="csv,html,markdown", show_default=True,
              metavar="LIST", help="Files of the report, as for compare.")  # fmt: skip
@click.option("--allow", metavar="WORD", multiple=True,
              help="A shortcut in arithmetic that this run takes, as for compare.")  # fmt: skip
@click.option("--model", "factory", metavar="PKG:FUNC",
              help="Call the model that FUNC returns with its inputs.")  # fmt: skip
@click.option("-m", "module", metavar="MODULE", help="Run a module as a program.")
@click.argument("fixture", type=PLACE)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def check(
    path: Path | None, output: Path | None, formats: str, allow: tuple[str, ...],
    factory: str | None, module: str | None, fixture: Path, program: tuple[str, ...],
) -> int:  # fmt: skip
    """Run PROGRAM as the run in FIXTURE was run, and compare. Exits as compare does."""
    from dumpcmp.cli.compare import report
    from dumpcmp.cli.dump import chosen_program
    from dumpcmp.golden import check_golden
    from dumpcmp.report.formats import chosen_forms
    from dumpcmp.report.terminal import Screen, plain

    forms = chosen_forms(formats) if output else ()
    if not (factory or module or program):
        raise SelectionError(
            f"no program is given to compare with {fixture}",
            hint=f"give one as to dump: dumpcmp golden check {fixture} SCRIPT, or -m MODULE or "
            "--model PKG:FUNC before the fixture",
        )
    run = chosen_program(factory, module, program, backward=False)
    checked = check_golden(fixture, run, path=path, allow=allow)
    console = Screen()
    for difference in checked.differences:
        console.print(plain(f"note: {difference}", "yellow"))
    return report(checked.outcome, output or Path(), forms, console)
