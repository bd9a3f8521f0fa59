"""``dumpcmp invariance``: whether rows have the same bits in any batch, order or schedule."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.report.escaping import visible


@click.command()
@click.argument("program", metavar="PKG:FUNC")
@click.option("--vary", default="batch,order,padding,chunk,decode,threads,repeat",
              show_default=True, metavar="LIST", help="What to vary.")  # fmt: skip
@click.option("--layer", "layers", metavar="GLOB", multiple=True,
              help="Ops to look at, such as 'layers.0.*'; may be given again.")  # fmt: skip
@click.option("--path", type=PLACE, help="Keep the archives of all runs here.")
def command(program: str, vary: str, layers: tuple[str, ...], path: Path | None) -> int:
    """Run a model by other schedules, and name the first op that gives equal rows other bits.

    FUNC returns the model and its inputs, of which one is a batch of token ids. There is no golden
    run: rows are paired by sequence and position. Exit 0: all bits are the same, 1: some differ,
    2: trouble, or no rows could be paired.
    """
    from dumpcmp.invariance import check_invariance
    from dumpcmp.nouns.options import load

    if ":" not in program:
        raise SelectionError(
            f"{program!r} names no function", hint="write PKG:FUNC, which returns (model, inputs)"
        )
    made = load("PROGRAM", program)()
    if not isinstance(made, tuple) or len(made) != 2:
        raise SelectionError(f"{program} returned no pair", hint="return (model, inputs)")
    report = check_invariance(*made, vary=vary, layers=layers or None, path=path)
    click.echo(visible(report.text(), keep="\n"))
    return report.exit_code
