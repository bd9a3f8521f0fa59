"""``dumpcmp report``: one HTML page of a report that was written as JSON."""

from pathlib import Path

import click

from dumpcmp.archive.stores.urls import is_url
from dumpcmp.cli.places import PLACE
from dumpcmp.nouns.errors import SelectionError


@click.command()
@click.argument("out", type=PLACE)
@click.option("--to", type=PLACE,
              help="File to write; the default lies beside the JSON.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace a page that is there.")
@click.option("--open", "shows", is_flag=True, help="Show the page in the browser.")
def command(out: Path, to: Path | None, overwrite: bool, shows: bool) -> None:
    """Make one HTML page of the report in OUT: a directory of `compare --format json`, or the file.

    The page has everything in it: it opens from disk, and can be attached to an issue.
    """
    from dumpcmp.cli.compare import opened
    from dumpcmp.report.reading import newest_json, read_json, write_page

    if shows and is_url(to):
        raise SelectionError("--open shows a page of this machine", hint="--to is a URL")
    if is_url(out) and not out.is_file():
        hint = "name the file: a store does not tell reliably which of several is the newest"
        raise SelectionError(f"{out} is no report", hint=hint)
    source = newest_json(out)
    beside = source.with_suffix(".html")
    to = to or (Path(beside.name) if is_url(out) else beside)  # not unasked into a store
    page = write_page(read_json(source), to, overwrite=overwrite)
    click.echo(f"report: {page}")
    if shows:
        opened([page])
