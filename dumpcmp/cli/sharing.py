"""The options that say who does the work of a command: processes here, or an engine's workers."""

from collections.abc import Callable

import click

from dumpcmp.engines.engine import FORMS


def sharing_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give `command` the options ``--jobs`` and ``--executor``."""
    jobs = click.option("-j", "--jobs", type=click.IntRange(1), default=1, show_default=True,
                        help="Processes that share the work.")  # fmt: skip
    engine = click.option("--executor", metavar=FORMS,
                          help="Who shares the work: processes here (local:4 is --jobs 4), or "
                          "workers of Dask, Ray or MPI.")  # fmt: skip
    return jobs(engine(command))
