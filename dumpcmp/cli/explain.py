"""``dumpcmp explain``: all that is known of one value of two runs, in words."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE, with_cache


@click.command()
@click.argument("my_path", metavar="MINE", type=PLACE)
@click.argument("golden_path", metavar="GOLDEN", type=PLACE)
@click.argument("key", metavar="[KEY]", default="")
@click.option("--mapping", type=PLACE,
              help="YAML file: golden's name of an op to my name for it.")  # fmt: skip
@click.option("--token", metavar="LIST", help="Tokens (steps) to look at, from 0: 0,2,5-8.")
@click.option("--allow", metavar="WORD", multiple=True,
              help="A shortcut in arithmetic that my side took, as for compare.")  # fmt: skip
@with_cache
def command(
    my_path: Path, golden_path: Path, key: str, mapping: Path | None, token: str | None,
    allow: tuple[str, ...],
) -> int:  # fmt: skip
    """Say of a value of MINE and GOLDEN what it took in, what it gave, and what the difference is.

    KEY is an op or a glob over ops (`layers.3.*`), or a value (`layers.3/add#0 output.0`). Without
    it the first divergence is meant. Exits as compare does.
    """
    from dumpcmp.comparing import compare
    from dumpcmp.report.advice import fault_commands
    from dumpcmp.report.telling import meant, words_of
    from dumpcmp.report.terminal import Hanging, Screen, plain

    outcome = compare(
        golden_path, my_path, mapping=mapping, tokens=token, allow=allow, closely=key or 1
    )
    console = Screen()
    console.print(plain(outcome.word, "bold"))
    for place in meant(outcome, key):
        console.print()
        for line in words_of(outcome, place):
            console.print(Hanging(plain(line)))
    commands = [] if key else list(fault_commands(outcome))
    if commands:
        console.print()
    for command, why in commands:
        console.print(plain(f"{why}: {command}"), soft_wrap=True)
    return outcome.exit_code
