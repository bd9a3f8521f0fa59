"""``dumpcmp verify-graph``: verify every op of a graph in every legal partition."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dumpcmp.cli.places import PathOrUrl
from dumpcmp.cli.sharing import sharing_options
from dumpcmp.cli.verify_op import partition_options
from dumpcmp.report.escaping import visible

if TYPE_CHECKING:
    from dumpcmp.partitioning.findings import Finding


@click.command("verify-graph")
@click.option("--graph", required=True,
              type=PathOrUrl(exists=True, dir_okay=False, path_type=Path),
              help="A torch.export program (.pt2) or an nnScaler graph (graph.ckp).")  # fmt: skip
@click.option("--outdir", required=True, type=PathOrUrl(file_okay=False, path_type=Path),
              help="For results.csv and summary.txt, and what has passed.")  # fmt: skip
@partition_options
@click.option("--partial", is_flag=True,
              help="Nodes that cannot be verified are known, and no trouble.")  # fmt: skip
@sharing_options
def command(graph: Path, outdir: Path, **options: Any) -> int:
    """Verify every op of a graph: alone, and in every legal partition, forward and backward.

    A second run with the same OUTDIR skips the ops that passed. Exit 0: no partition differs,
    1: one does, 2: trouble, or a node that computes something could not be verified.
    """
    from rich.markup import escape
    from rich.progress import Progress

    from dumpcmp.partitioning import verify_graph
    from dumpcmp.report.terminal import Screen

    console = Screen(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("verifying", total=None)

        def show(done: int, total: int, rows: "list[Finding]") -> None:
            name = escape(visible(rows[0].op)) if rows else ""
            bar.update(task, completed=done, total=total, description=name)

        findings = verify_graph(graph, outdir, progress=show, **options)
    click.echo(visible(findings.summary(), keep="\n"), nl=False)
    click.echo(f"results: {outdir / 'results.csv'}")
    return findings.exit_code
