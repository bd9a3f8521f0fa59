"""``dumpcmp map``: propose a mapping between two implementations of a model."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.nouns.spoken import counted
from dumpcmp.report.escaping import visible


@click.command()
@click.argument("golden", type=PLACE)
@click.argument("target", metavar="MY", type=PLACE)
@click.option("-o", "--output", default="mapping.yaml", show_default=True, type=PLACE,
              help="File to write; - is standard output. One that is there is kept.")  # fmt: skip
@with_cache
def command(golden: Path, target: Path, output: Path) -> int:
    """Propose a mapping file from the archives GOLDEN and MY of two implementations of a model.

    Above each line stands what speaks for it: weights and values that are the same, their shapes,
    how pieces lie. Exits with 0, or with 2 where nothing is found or the file is there already.
    """
    from dumpcmp.comparing import propose_mapping

    proposal = propose_mapping(golden, target)
    if not proposal.lines and proposal.num_same:
        same = counted(proposal.num_same, "module has the same name", "modules have the same names")
        click.echo(f"no mapping is needed: {same}")
        return 0
    proposal.raise_if_empty()
    if str(output) == "-":
        click.echo(visible(proposal.text(), keep="\n"), nl=False)
        return 0
    path = proposal.write(output)
    click.echo(visible(f"{path}: {counted(len(proposal.lines), 'line')}. Look through it, then"))
    click.echo(visible(f"  dumpcmp compare --golden-path {golden} --my-path {target} "
                       f"--mapping {path}"))  # fmt: skip
    return 0
