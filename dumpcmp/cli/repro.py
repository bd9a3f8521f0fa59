"""``dumpcmp repro``: the guilty op of two runs, alone, as a folder to attach to a ticket."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE, with_cache


@click.command()
@click.argument("my_path", metavar="MINE", type=PLACE)
@click.argument("golden_path", metavar="GOLDEN", type=PLACE)
@click.argument("key", metavar="[KEY]", default="")
@click.option("--path", required=True, type=PLACE, help="Folder to write, on this machine.")
@click.option("--no-values", is_flag=True,
              help="Random numbers in place of the run's, if the fault stays.")  # fmt: skip
@click.option("--mapping", type=PLACE,
              help="YAML file: golden's name of an op to my name for it.")  # fmt: skip
@click.option("--token", metavar="LIST", help="Tokens (steps) to look at, from 0: 0,2,5-8.")
@click.option("--overwrite", is_flag=True, help="Replace the folder.")
@with_cache
def command(
    my_path: Path, golden_path: Path, key: str, path: Path, no_values: bool,
    mapping: Path | None, token: str | None, overwrite: bool,
) -> int:  # fmt: skip
    """Cut the guilty op of MINE out into a folder that shows the fault alone.

    KEY is an op or a value, as for explain; without it the first divergence is meant. The folder
    has a script that needs torch and numpy only, the op's inputs, and what is right. Exits with 0
    where it was written, 2 where the fault cannot be shown alone.
    """
    from dumpcmp.reproducing import repro

    made = repro(
        my_path, golden_path, key, path=path, values=not no_values, overwrite=overwrite,
        mapping=mapping, tokens=token,
    )  # fmt: skip
    click.echo(made.text)
    click.echo(f"{made.command} fails; with --right it passes")
    return 0
