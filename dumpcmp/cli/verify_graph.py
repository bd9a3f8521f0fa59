"""``dumpcmp verify-graph``: verify every op of a graph in every legal partition."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dumpcmp.partitioning.findings import Finding


@click.command("verify-graph")
@click.option(
    "--graph",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A torch.export program (.pt2) or an nnScaler graph (graph.ckp).",
)
@click.option(
    "--outdir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results.csv and summary.txt go, and what passed is remembered.",
)
@click.option(
    "--backend",
    type=click.Choice(["inprocess", "gloo", "nccl"]),
    default="inprocess",
    show_default=True,
    help="Where the parts run: in this process, or on real ranks.",
)
@click.option("--num", type=int, default=2, show_default=True, help="Parts of each partition.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs.")
@click.option("--device", default="cpu", show_default=True, help="Device of the ops.")
@click.option("-j", "--jobs", type=int, default=1, show_default=True, help="Processes to use.")
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds per task.")
def command(
    graph: Path,
    outdir: Path,
    backend: str,
    num: int,
    seed: int,
    device: str,
    jobs: int,
    timeout: float,
) -> None:
    """Verify every op of a graph: alone, and in every legal partition, forward and backward.

    A second run with the same OUTDIR skips the ops that passed. Exit 0: no partition differs,
    1: one does, 2: trouble, or nothing could be verified.
    """
    from rich.console import Console
    from rich.progress import Progress

    from dumpcmp.partitioning import verify_graph

    with Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("verifying", total=None)

        def show(done: int, total: int, rows: "list[Finding]") -> None:
            bar.update(task, completed=done, total=total, description=rows[0].op if rows else "")

        findings = verify_graph(
            graph,
            outdir,
            backend=backend,
            num=num,
            seed=seed,
            device=device,
            jobs=jobs,
            timeout=timeout,
            progress=show,
        )
    click.echo(findings.summary(), nl=False)
    click.echo(f"results: {outdir / 'results.csv'}")
    sys.exit(findings.exit_code)
