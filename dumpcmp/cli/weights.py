"""``dumpcmp weights``: whether loaded weights are those of their checkpoint."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.report.escaping import visible

_SHOWN = 20  # rows that fail


@click.command()
@click.option("--golden", required=True, type=PLACE,
              help="Checkpoint: a Hugging Face directory, a file or an archive.")  # fmt: skip
@click.option("--my", "mine", required=True, type=PLACE,
              help="Loaded weights: an archive, a directory or a file.")  # fmt: skip
@click.option("--older", type=PLACE, help="Checkpoint before golden, to name weights left behind.")
@click.option("--token", type=int, metavar="N",
              help="Of archives, the weights up to this token.  [default: the last]")  # fmt: skip
@click.option("--allow", multiple=True, metavar="VERDICT",
              help="A difference that is meant, such as transposed.")  # fmt: skip
@click.option("-o", "--out", type=PLACE, help="CSV to write, a line for each weight.")
@with_cache
def command(
    golden: Path, mine: Path, older: Path | None, token: int | None, allow: tuple[str, ...],
    out: Path | None,
) -> int:  # fmt: skip
    """Hold each weight of MY against the checkpoint that it should come from.

    Merged projections, stacked experts, tied heads, shards of ranks, transposed weights, casts and
    weights in fp8 or int8 with scales are recognised. Exit 0: all are golden's, 1: one is not, or
    is missing, 2: trouble, or nothing could be compared.
    """
    from dumpcmp.archive.copies import written_there
    from dumpcmp.weights import compare_weights

    if token is not None and token < 0:
        raise SelectionError(f"--token {token} is no token", hint="tokens are counted from 0")
    report = compare_weights(golden, mine, older=older, step=token, allow=allow)
    click.echo(visible(report.text(_SHOWN), keep="\n"))
    if out:
        with written_there(out) as local:
            local.write_text(report.to_csv())
    return report.exit_code
