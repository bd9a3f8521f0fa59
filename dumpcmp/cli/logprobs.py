"""``dumpcmp logprobs``: where two engines give other log probabilities, and why."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.report.escaping import visible

_SHOWN = 10  # samples


@click.command()
@click.option("--golden-path", required=True, type=PLACE,
              help="Log probabilities that are right: the trainer's, say.")  # fmt: skip
@click.option("--my-path", required=True, type=PLACE, help="Those in question: the rollout's.")
@click.option("--golden-field", metavar="NAME", help="Field that golden has them in.")
@click.option("--my-field", metavar="NAME", help="Field that mine has them in.")
@click.option("-o", "--out", type=PLACE, help="CSV to write, a line for each token.")
@with_cache
def command(
    golden_path: Path, my_path: Path, golden_field: str | None, my_field: str | None,
    out: Path | None,
) -> int:  # fmt: skip
    """Compare the log probabilities that two sides give the same tokens, and say why they differ.

    A side is an archive, or JSON lines or .pt of slime, miles or NeMo-RL, or answers in OpenAI's
    form. Samples are aligned by step, index and token ids. Exit 0: the same but for rounding, 1:
    different, 2: trouble, or no token in common.
    """
    from dumpcmp.archive.copies import written_there
    from dumpcmp.logprobs import compare_logprobs

    report = compare_logprobs(golden_path, my_path, golden_field=golden_field, my_field=my_field)
    click.echo(visible(report.text(_SHOWN), keep="\n"))
    if out:
        with written_there(out) as local:
            report.to_pandas().to_csv(local, index=False)
    return report.exit_code
