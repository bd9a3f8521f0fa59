"""``dumpcmp audit``: check an archive against itself, and mend it."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from dumpcmp.archive.integrity import Audit, Flaw, audit


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--repair", is_flag=True, help="Recover what a crash left, and clear leftovers away.")
def command(path: Path, repair: bool) -> None:
    """Check the archive at PATH: schema, digests, torn records, missing ranks and tokens.

    Exit 0: it is sound, or sound again; 1: it is not; 2: it is no archive.
    """
    found = audit(path, repair=repair)
    _print(found, Console(soft_wrap=True), repair)
    sys.exit(found.exit_code)


def _print(found: Audit, console: Console, repair: bool) -> None:
    for finding in found.findings:
        console.print(f"{_mark(finding)} {escape(str(finding.place))}: {escape(finding.problem)}")
        if finding.repair:
            console.print(f"  [green]{escape(finding.repair)}[/]")
    checked = f"{found.num_records} records in {found.num_parts} parts, {found.nbytes:,} bytes"
    verdict = "[green]sound[/]" if found.sound else "[red]not sound[/]"
    console.print(f"{verdict}: {checked} checked")
    if not found.sound and not repair:
        console.print("  dumpcmp audit --repair recovers what can be recovered")


def _mark(finding: Flaw) -> str:
    return "[yellow]note[/]" if not finding.stands else "[red]wrong[/]"
