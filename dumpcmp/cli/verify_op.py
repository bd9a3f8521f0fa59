"""``dumpcmp verify-op``: verify all partition configurations of a Python file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dumpcmp.cli.places import PLACE, PathOrUrl
from dumpcmp.report.escaping import visible

_OPTIONS = (
    click.option("--backend", type=click.Choice(["inprocess", "gloo", "nccl"]), default="inprocess",
                 show_default=True, help="Where the parts run: in this process, or on ranks."),
    click.option("--num", default=2, show_default=True, help="Parts, where none are given."),
    click.option("--seed", default=0, show_default=True, help="Seed of the inputs."),
    click.option("--device", default="cpu", show_default=True, help="Device of the ops."),
    click.option("--timeout", default=300.0, show_default=True, help="Seconds per task."),
)  # fmt: skip


def partition_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give `command` the options that say how partitions are run."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("verify-op")
@click.argument("file", type=PathOrUrl(exists=True, dir_okay=False, path_type=Path))
@partition_options
@click.option("-o", "--out", type=PLACE, help="CSV to write.")
def command(file: Path, out: Path | None, **options: Any) -> int:
    """Run FILE, and verify every PartitionConfig in it: those it verifies itself, and the others.

    FILE is your own Python code and runs as such. Exit 0: every partition is the same as the op
    alone, 1: one is different or not allowed, 2: trouble, or a partition that cannot be judged.
    """
    from dumpcmp.archive.copies import written_there
    from dumpcmp.archive.stores.urls import here
    from dumpcmp.partitioning.asked import verify_file

    findings = verify_file(here(file, "run"), **options)
    for row in findings.rows:
        click.echo(visible(str(row)))
    click.echo(visible(findings.summary(), keep="\n"), nl=False)
    if out:
        with written_there(out) as local:
            local.write_text(findings.to_csv())
    return findings.exit_code
