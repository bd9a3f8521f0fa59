"""``dumpcmp graft``: what would be if the guilty ops were right."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.nouns.errors import SelectionError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--all", "every", is_flag=True,
              help="MINE GOLDEN: measure every root on the archives, without a run.")  # fmt: skip
@click.option("--golden-path", type=PLACE, help="Golden's archive, whose values are put in.")
@click.option("--at", metavar="KEY[,KEY]", multiple=True,
              help="Ops or values to replace, as for explain; may be given again.")  # fmt: skip
@click.option("--rows", metavar="LIST", help="Only these indices of the first dim: 0,2-5.")
@click.option("--float64", "in_float64", is_flag=True,
              help="Put in what the op itself gives in float64, not golden's.")  # fmt: skip
@click.option("--path", type=PLACE, help="Archive to write.")
@click.option("--mode", default="eager", show_default=True, help="eager, fx, aten or compiled.")
@click.option("--token", metavar="LIST", help="Tokens to replace values in, from 0: 0,2,5-8.")
@click.option("--backward", is_flag=True, help="Record gradients too.")
@click.option("--weights", is_flag=True, help="Keep parameters and buffers whole.")
@click.option("--seed", type=int, help="Seed Python, numpy and torch, for a repeatable run.")
@click.option("--mapping", type=PLACE,
              help="--all: YAML file: golden's name of an op to my name for it.")  # fmt: skip
@click.option("--allow", metavar="WORD", multiple=True,
              help="--all: a shortcut in arithmetic that mine took, as for compare.")  # fmt: skip
@click.option("--by-layer", is_flag=True,
              help="--all: put right all that differs in a module at once; so it is where --allow "
              "declares levels.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what PATH holds.")
@click.option("--model", "factory", metavar="PKG:FUNC",
              help="Call the model that FUNC returns with its inputs.")  # fmt: skip
@click.option("-m", "module", metavar="MODULE", help="Run a module as a program.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@with_cache
def command(
    every: bool, golden_path: Path | None, at: tuple[str, ...], rows: str | None,
    in_float64: bool, path: Path | None, mode: str, token: str | None, backward: bool,
    weights: bool, seed: int | None, mapping: Path | None, allow: tuple[str, ...],
    by_layer: bool, overwrite: bool, factory: str | None, module: str | None,
    program: tuple[str, ...],
) -> int:  # fmt: skip
    """Say what would be if guilty ops were right.

    With --all MINE GOLDEN are two archives: each root is put right in float64, and its share of
    the effects' difference is told, and what is left. Otherwise PROGRAM runs once more while
    golden's values stand in place of what the ops --at gave, and the run is recorded in PATH. Exits
    as compare does, or as dump does.
    """
    if every:
        return graft_archives(program, mapping, token, allow, by_layer)
    from dumpcmp.cli.dump import chosen_program, report
    from dumpcmp.grafting import graft

    if golden_path is None or path is None or not at:
        raise SelectionError(
            "graft needs --golden-path, --at and --path, and a program",
            hint="or: dumpcmp graft --all MINE GOLDEN",
        )
    run = chosen_program(factory, module, program, backward)
    made = graft(
        run, golden_path, [name for one in at for name in one.split(",")], path=path, rows=rows,
        steps=token, in_float64=in_float64, mode=mode, backward=backward, weights=weights,
        seed=seed, overwrite=overwrite,
    )  # fmt: skip
    click.echo(made.text)
    return report(made.dumped, str(path))


def graft_archives(
    places: tuple[str, ...],
    mapping: Path | None,
    token: str | None,
    allow: tuple[str, ...],
    by_layer: bool,
) -> int:
    """Print what each root of two archives costs."""
    from dumpcmp.grafting import graft_all

    if len(places) != 2:
        raise SelectionError(
            f"--all takes two archives, and there are {len(places)}",
            hint="dumpcmp graft --all MINE GOLDEN",
        )
    mine, golden = (PLACE.convert(each, None, None) for each in places)
    found = graft_all(
        mine, golden, mapping=mapping, tokens=token, allow=allow, by_layer=by_layer or None
    )
    click.echo(found.text)
    return found.exit_code
