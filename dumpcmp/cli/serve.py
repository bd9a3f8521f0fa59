"""``dumpcmp serve``: a comparison as a live page, on this machine alone."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.cli.sharing import sharing_options


@click.command()
@click.argument("golden", type=PLACE)
@click.argument("mine", type=PLACE)
@click.option("--mapping", type=PLACE,
              help="YAML file: golden's name of an op to my name for it.")  # fmt: skip
@click.option("--layer", "layers", metavar="GLOB", multiple=True,
              help="Ops to compare: 'layers.*.attn*'; may be given again.")  # fmt: skip
@click.option("--token", "tokens", metavar="LIST", help="Tokens (steps) to compare: 0,2,5-8.")
@click.option("--follow", is_flag=True,
              help="My run may still go on: the page grows by its tokens.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N",
              help="Port of this machine; else one that is free.")  # fmt: skip
@click.option("--open", "shows", is_flag=True, help="Show the page in the browser.")
@with_cache
@sharing_options
def command(golden: Path, mine: Path, shows: bool, **options: Any) -> int:
    """Compare GOLDEN and MINE, and serve a live page of all rows until Ctrl-C.

    The page fetches rows as you scroll, so archives may be of any size. Only who knows the printed
    address can see it, and only on this machine. Exits with 0 at Ctrl-C, whatever the verdict.
    """
    from dumpcmp.live_server import serve

    with TemporaryDirectory(prefix="dumpcmp-") as room:  # nobody else may look into it
        serve(golden, mine, tell=_told(Path(room) if shows else None), **options)
    return 0


def _told(room: Path | None) -> Callable[[str], None]:
    """What prints the address of the page, and opens it by a file in `room`."""

    def tell(address: str) -> None:
        click.echo(f"dumpcmp: {address}\ndumpcmp: Ctrl-C ends it")
        if room is not None:
            from dumpcmp.cli.compare import opened

            # Others on this machine see what a browser is started with, so that names a file.
            page = room / "open.html"
            page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
            opened([page])

    return tell
