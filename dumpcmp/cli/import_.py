"""``dumpcmp import``: turn what another tool has dumped into an archive."""

import sys
from pathlib import Path

import click

from dumpcmp.cli.places import PLACE
from dumpcmp.cli.sharing import sharing_options
from dumpcmp.importing.gathering import FORMATS
from dumpcmp.nouns.spoken import counted
from dumpcmp.report.escaping import visible

MOST_TOLD = 5  # files and problems that are named


@click.command()
@click.argument("source", type=PLACE)
@click.option("--path", required=True, type=PLACE,
              help="Archive to write: a path, or a URL such as s3://...")  # fmt: skip
@click.option("--format", type=click.Choice(list(FORMATS)), default="auto", show_default=True,
              help="What wrote the files; auto goes by their names.")  # fmt: skip
@click.option("--pattern", metavar="REGEX",
              help="How names are read: groups op, slot, step, rank, call and order, such as "
              "'step(?P<step>\\d+)/(?P<op>.+)\\.(?P<slot>(in|out)put\\.\\d+)'.")  # fmt: skip
@click.option("--files", metavar="GLOB", multiple=True,
              help="Of SOURCE, only files whose path below it fits; may be given "
              "again.")  # fmt: skip
@click.option("--model", default="Model", show_default=True, metavar="NAME",
              help="What the model is called in the archive.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what PATH holds.")
@sharing_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but trouble.")
def command(
    source: Path, path: Path, format: str, pattern: str | None, files: tuple[str, ...], model: str,
    overwrite: bool, jobs: int, executor: str | None, quiet: bool,
) -> int:  # fmt: skip
    """Turn the files at SOURCE, which another tool has dumped, into an archive at PATH.

    SOURCE is a directory, a file or a URL: .safetensors, .npy, .npz, .pt files of tensors, a dump
    of msProbe (step*/rank*/dump.json), of torchair or msit (worldsize1_global_rank0/graph/0/*.npy,
    or GE's files), or of SGLang's dumper (step=0___rank=0___name=...). What it holds is then
    compared as any run: dumpcmp compare --golden-path d1 --my-path PATH.

    A value is called as its file, and its name in the file. step3, iter_3, pass3 or token3 in a
    path is the token, rank1 the rank, input.0, output.0 or param.weight at the end of a name the
    slot, and #2 before that the call; all else is the op. Where names are made otherwise, give
    --pattern, which must fit the whole of a name.

    Nothing is unpickled but tensors, and dicts and lists of them. Exit 0: imported; 2: trouble.
    """
    from dumpcmp.importing.bringing import import_dump

    done = import_dump(
        source, path, format=format, pattern=pattern, files=files, model=model,
        overwrite=overwrite, jobs=jobs, executor=executor, progress=None if quiet else _show,
    )  # fmt: skip
    if not quiet:
        told = visible(str(done))
        click.echo(f"\r\033[K{told}" if sys.stderr.isatty() else told)
    _warn("nothing was taken of", done.left_out, "file")
    _warn("no elements could be had of", done.problems, "value")
    return 0


def _show(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{done} of {counted(total, 'part')}", nl=False, err=True)


def _warn(what: str, names: tuple[str, ...], kind: str) -> None:
    for name in names[:MOST_TOLD]:
        click.echo(visible(f"dumpcmp: warning: {what} {name}"), err=True)
    if len(names) > MOST_TOLD:
        left = counted(len(names) - MOST_TOLD, f"more {kind}")
        click.echo(f"dumpcmp: warning: and {left}", err=True)
