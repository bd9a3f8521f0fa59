"""``dumpcmp audit``: check an archive against itself, and mend it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import Progress
from rich.text import Text

from dumpcmp.archive.integrity import Audit, StepsTold, audit
from dumpcmp.archive.soundness import Flaw
from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.cli.sharing import sharing_options
from dumpcmp.nouns.spoken import counted
from dumpcmp.report.terminal import Screen, plain


@click.command()
@click.argument("path", type=PLACE)
@click.option("--repair", is_flag=True, help="Recover what a crash left, and clear leftovers away.")
@with_cache
@sharing_options
def command(path: Path, repair: bool, jobs: int, executor: str | None) -> int:
    """Check the archive at PATH: schema, digests, torn records, missing ranks and tokens.

    Exit 0: nothing is wrong, or nothing any more; 1: something is; 2: it is no archive.
    """
    with _bar() as tell:
        found = audit(path, repair=repair, jobs=jobs, executor=executor, progress=tell)
    _print(found, Screen(soft_wrap=True), repair)
    return found.exit_code


@contextmanager
def _bar() -> Iterator[StepsTold]:
    """A bar over steps on a terminal, which vanishes at the end; nothing elsewhere."""
    console = Screen(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("checking", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(found: Audit, console: Screen, repair: bool) -> None:
    for finding in found.findings:
        told = plain(f" {finding.place}: {finding.problem}")
        console.print(Text.assemble(_mark(finding), told))
        if finding.repair:
            console.print(plain(f"  {finding.repair}", "green"))
    parts = counted(found.num_parts, "part")
    checked = f"{counted(found.num_records, 'record')} in {parts}, {found.nbytes:,} bytes"
    console.print(Text.assemble(_verdict(found), f": {checked} checked"))
    if found.exit_code and not repair:
        console.print("  dumpcmp audit --repair recovers what can be recovered")


def _verdict(found: Audit) -> tuple[str, str]:
    if found.exit_code:
        return "not sound", "red"
    return ("sound", "green") if found.sound else ("nothing wrong found, not all known", "yellow")


def _mark(finding: Flaw) -> tuple[str, str]:
    if finding.unknown:
        return "unknown", "yellow"
    return ("wrong", "red") if finding.stands else ("note", "yellow")
