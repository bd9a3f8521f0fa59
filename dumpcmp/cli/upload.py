"""``dumpcmp upload``: copy an archive into a store, or go on with that."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.options import parse_nbytes, readable
from dumpcmp.nouns.spoken import counted
from dumpcmp.report.escaping import visible


@click.command()
@click.argument("path", type=PLACE)
@click.argument("url", type=PLACE)
@click.option("--follow", is_flag=True, help="Go on until the run that writes PATH has ended.")
@click.option("--rank", type=int, metavar="N", help="Of several ranks, this one alone.")
@click.option("--spool-limit", metavar="SIZE",
              callback=lambda _ctx, _option, size: parse_nbytes(size) if size else None,
              help="Remove parts here that are in the store while the others take more than "
              "SIZE.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the run that URL holds.")
def command(
    path: Path, url: Path, follow: bool, rank: int | None, spool_limit: int | None, overwrite: bool
) -> int:
    """Upload the archive at PATH to URL, part by part, each read back and held against its digest.

    PATH may be a URL as well, of which a copy comes here.

    What an earlier upload of the same run has done is not done again. Exits with 0 where all of it
    is in the store, else with 2.
    """
    from dumpcmp.archive.copies import copied_here
    from dumpcmp.archive.stores.urls import here
    from dumpcmp.archive.upload import upload

    if follow or spool_limit is not None:
        here(path, "written, or makes room,")
    with copied_here(path) as local:
        done = upload(
            local, url, follow=follow, rank=rank, spool_limit=spool_limit, overwrite=overwrite
        )
    parts = counted(done.num_removed, "part was", "parts were")
    removed = f"; {parts} removed here" if done.num_removed else ""
    files = counted(done.num_files, "file")
    told = f"{files}, {readable(done.nbytes)}, uploaded to {done.url}{removed}"
    click.echo(visible(told), err=True)
    if not done.is_whole:
        raise ArchiveError(
            f"{done.url} is not whole: {'; '.join(done.left[:3])}",
            hint="dumpcmp audit --repair seals what a crash left; then upload it again",
        )
    return 0
