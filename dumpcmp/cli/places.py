"""Paths on the command line: of this machine or URLs, and what is kept of what lies behind them."""

import os
from pathlib import Path
from typing import Any

import click

from dumpcmp.archive.stores.urls import is_url, place
from dumpcmp.nouns.errors import SelectionError


class PathOrUrl(click.Path):
    """A path, or the URL of a store: s3://, gs://, hf://, http(s)://, memory://, file://."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (value.startswith("file://") or is_url(value)):
            return place(value)
        return super().convert(value, param, ctx)


PLACE = PathOrUrl(path_type=Path)


def _use(_ctx: click.Context, _option: click.Parameter, text: str | None) -> None:
    """Set the variable that all processes of the command read."""
    if text:
        from dumpcmp.archive.stores.kept import CACHE, parse_cache

        if is_url(text):
            raise SelectionError(f"--cache {text} is no directory of this machine")
        directory, nbytes = parse_cache(text)
        os.environ[CACHE] = f"{directory}:{nbytes}"


with_cache = click.option(
    "--cache", metavar="DIR[:SIZE]", callback=_use, expose_value=False,
    help="Keep what is read from stores; 10G without SIZE.",
)  # fmt: skip
