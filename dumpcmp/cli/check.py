"""``dumpcmp check``: run a program and check every op of it against itself in float64."""

from typing import Any

import click

from dumpcmp.cli.completion import files
from dumpcmp.cli.dump import chosen_program, show_error
from dumpcmp.report.escaping import visible


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--every", default=1, show_default=True, metavar="N", help="Check each Nth call.")
@click.option("--token", metavar="LIST", help="Tokens (steps) to check, from 0: 0,2,5-8.")
@click.option("--layer", "layers", metavar="GLOB", multiple=True,
              help="Ops to check, such as 'layers.*.attn*'; may be given again.")  # fmt: skip
@click.option("--model", "factory", metavar="PKG:FUNC",
              help="Call the model that FUNC returns with its inputs.")  # fmt: skip
@click.option("-m", "module", metavar="MODULE", help="Run a module as a program.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def command(
    every: int, token: str | None, layers: tuple[str, ...], factory: str | None,
    module: str | None, program: tuple[str, ...], **_: Any,
) -> int:  # fmt: skip
    """Run PROGRAM and name the ops whose kernels do not compute what they should.

    There is no golden run and nothing is written: each op is run again in float64, on its device,
    on what it was given. Exits with 0 where every op is right, 1 where one is not, 2 in trouble or
    where one could not be checked.
    """
    from dumpcmp.checkup import check
    from dumpcmp.dumping.programs import error_of

    run = chosen_program(factory, module, program, backward=False)
    with check(every=every, tokens=token, layers=layers or None) as checkup:
        error = error_of(run)
    if error is not None:
        show_error(error)
    click.echo(visible(checkup.text(), keep="\n"))
    return 2 if error is not None else checkup.exit_code
