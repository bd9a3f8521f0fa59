"""``dumpcmp compact``: replace the tensors of an archive by Summaries."""

import os
import sys
from pathlib import Path

import click

from dumpcmp.cli.places import PathOrUrl
from dumpcmp.cli.sharing import sharing_options
from dumpcmp.compacting import Compacted, compact
from dumpcmp.nouns.options import parse_nbytes
from dumpcmp.report.escaping import visible
from dumpcmp.summary.sketch import SIZES


@click.command()
@click.argument("path", type=PathOrUrl(file_okay=False, path_type=Path))
@click.option("--watch", is_flag=True, help="Go on until the run that writes PATH has ended.")
@click.option(
    "--sketch", type=click.Choice([str(size) for size in (0, *SIZES)]), default="512",
    show_default=True, help="Buckets of the sketch; 0 keeps none.",
)  # fmt: skip
@click.option(
    "--hashes", type=click.IntRange(1, 8), default=1, show_default=True,
    help="Sketches a tensor; 3 find the place of the largest difference.",
)  # fmt: skip
@click.option(
    "--segments", type=click.IntRange(0, 256), default=0, show_default=True,
    help="Ranges of tokens with small sketches of their own, which tell where tensors differ.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, help="Seed of the sketches; the same on both sides.")
@click.option("--min-max-only", is_flag=True, help="Keep extremes, moments and counts, no sketch.")
@click.option("--keep-full", multiple=True, metavar="GLOB", help="Ops whose tensors stay whole.")
@click.option("--reduce", metavar="PKG.MOD:FUNCTION", help="Your own numbers of each tensor.")
@click.option("--disk-budget", metavar="SIZE", help="Compact the oldest parts down to SIZE (20G).")
@sharing_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.pass_obj
def command(
    is_own_process: bool,
    path: Path, watch: bool, sketch: str, hashes: int, segments: int, seed: int,
    min_max_only: bool, keep_full: tuple[str, ...], reduce: str | None, disk_budget: str | None,
    jobs: int, executor: str | None, quiet: bool,
) -> int:  # fmt: skip
    """Replace the tensors in PATH by Summaries that still tell how far two runs differ.

    A part is replaced only after its draft was checked. Stop it at any time: what is done stays.
    """
    if watch and is_own_process:
        os.nice(10)  # the run beside comes first
    done = compact(
        path, watch=watch, sketch=int(sketch), hashes=hashes, segments=segments, seed=seed,
        keep_full=keep_full, min_max_only=min_max_only, reduce=reduce,
        disk_budget=parse_nbytes(disk_budget) if disk_budget else None,
        jobs=jobs, executor=executor, progress=None if quiet else _show,
    )  # fmt: skip
    if not quiet:
        click.echo(f"\r\033[K{done}" if sys.stderr.isatty() else str(done))
    for problem in done.problems:
        click.echo(visible(f"dumpcmp: {problem}"), err=True)
    return 2 if done.problems else 0


def _show(so_far: Compacted) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{so_far}", nl=False, err=True)
