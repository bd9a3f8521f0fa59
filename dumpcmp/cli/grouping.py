"""Help in groups: the options of a command by what they are for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

WIDEST = 100  # columns of a help, where the terminal has them
_NAMES = 22  # columns that names of options get; after a longer one its text begins below it

Groups = Mapping[str, Sequence[str]]  # a heading, and the options under it by their longest names


class Grouped(click.Command):
    """A command whose help has its options in groups. Each option is in one; others come last."""

    def __init__(self, *args: Any, groups: Groups, **options: Any) -> None:
        super().__init__(*args, **options)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, records in self._headed(ctx):
            with formatter.section(heading):
                formatter.write_dl(records, col_max=_NAMES)

    def _headed(self, ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        known = {name_of(option): option.get_help_record(ctx) for option in options}
        told = {name: record for name, record in known.items() if record is not None}
        for heading, names in self.groups.items():
            yield heading, [told.pop(name) for name in names]
        yield "Other options", list(told.values())


def name_of(option: click.Parameter) -> str:
    """The longest name of an option: ``--jobs`` of ``-j, --jobs``."""
    return max(option.opts, key=len)
