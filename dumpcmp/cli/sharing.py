"""The options that say who does the work of a command: processes here, or an engine's workers."""

from collections.abc import Callable

import click


def sharing_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give `command` the options ``--jobs`` and ``--executor``."""
    jobs = click.option("-j", "--jobs", type=click.IntRange(1), metavar="N", default=1,
                        show_default=True, help="Processes that share the work.")  # fmt: skip
    engine = click.option("--executor", metavar="ENGINE",
                          help="Workers: local:4, dask:ADDRESS, ray or mpi.")  # fmt: skip
    return jobs(engine(command))
