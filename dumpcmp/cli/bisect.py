"""``dumpcmp bisect``: the step in which two programs part, and in it the op, in one command."""

from pathlib import Path
from typing import Any

import click

from dumpcmp.cli.completion import files
from dumpcmp.cli.places import PLACE


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--golden", required=True, metavar="PROGRAM2",
              help="The program that is right, with its arguments, in quotes.")  # fmt: skip
@click.option("--path", default="bisected", show_default=True, type=PLACE,
              help="Empty directory for the archives.")  # fmt: skip
@click.option("--output", type=PLACE, help="Directory for the report.  [default: PATH/report]")
@click.option("--format", "formats", default="csv,html", show_default=True, metavar="LIST",
              help="Files of the report, as for compare.")  # fmt: skip
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Look at each Nth token first, then between.")  # fmt: skip
@click.option("--seed", type=int, help="Seed both programs, for runs that repeat.")
@click.option("--backward/--no-backward", default=True, show_default=True,
              help="Record gradients, too.")  # fmt: skip
@click.option("--allow", metavar="WORD", multiple=True,
              help="A shortcut in arithmetic that mine takes, as for compare.")  # fmt: skip
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=files)
def command(
    golden: str, path: Path, output: Path | None, formats: str, allow: tuple[str, ...],
    program: tuple[str, ...], **options: Any,
) -> int:  # fmt: skip
    """Run PROGRAM and PROGRAM2, find the first token in which they part, and compare it whole.

    Both run twice: first with Summaries of all tokens, which take little room, then with all values
    of that token and the one before. Where a setting of training differs, once is enough. A program
    is a script with its arguments, or -m and a module. Exits as compare does.
    """
    from dumpcmp.bisecting import bisect, parsed
    from dumpcmp.cli.compare import report
    from dumpcmp.comparing.showing import USUAL_CLOSE_UPS
    from dumpcmp.report.escaping import visible
    from dumpcmp.report.formats import chosen_forms
    from dumpcmp.report.terminal import Screen

    forms = chosen_forms(formats)

    def say(text: str) -> None:
        click.echo(visible(f"dumpcmp: {text}"), err=True)

    mine = parsed(program[0], "PROGRAM") if len(program) == 1 else program
    both = parsed(golden, "--golden"), mine
    found = bisect(*both, path, say=say, allow=allow, closely=USUAL_CLOSE_UPS, **options)
    if found.step is not None:
        where = f"{found.golden} and {found.mine}"
        say(f"token {found.step} is the first in which anything fails; {where} have it")
    return report(found.outcome, output or path / "report", forms, Screen())
