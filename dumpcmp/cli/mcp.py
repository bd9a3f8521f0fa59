"""``dumpcmp mcp``: compare, explain, show, tensor and repro as tools for an assistant."""

from pathlib import Path

import click

from dumpcmp.archive.stores.urls import is_url
from dumpcmp.cli.places import PathOrUrl
from dumpcmp.nouns.errors import SelectionError


@click.command()
@click.option("--dir", "here", type=PathOrUrl(exists=True, file_okay=False, path_type=Path),
              help="Directory that paths of archives are relative to.")  # fmt: skip
def command(here: Path | None) -> None:
    """Serve the tools compare, explain, show, tensor and repro by the Model Context Protocol.

    It speaks on stdin and stdout, so a client starts it: `dumpcmp mcp --dir /where/my/dumps/are`.
    It runs no program of yours. Needs the extra mcp: pip install 'dumpcmp[mcp]'.
    """
    from dumpcmp.mcp_server import serve

    if is_url(here or ""):
        raise SelectionError(f"--dir {here} is no directory of this machine")
    serve(here)
