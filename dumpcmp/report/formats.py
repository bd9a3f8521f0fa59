"""The forms in which a report is written, by the names that `--format` has for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.errors import SelectionError

if TYPE_CHECKING:  # --help names the forms, and writes none
    from dumpcmp.nouns.outcome import Outcome


class ReportForm(NamedTuple):
    """One form of a report: how its files end, and who writes it (``module.function``)."""

    suffix: str
    writer: str
    looks_closely: bool = False  # whether it shows closer looks at rows

    def write(self, outcome: Outcome, path: Path, **options: Any) -> Path:
        """Write `outcome`, into a store as well; what is needed for it is imported here.

        `options` are those of its writer.
        """
        module, _, name = self.writer.rpartition(".")
        write: Callable[[Outcome, Path], Path] = partial(
            getattr(import_module(f"dumpcmp.report.{module}"), name), **options
        )
        if isinstance(path, RemotePath):
            from dumpcmp.archive.copies import written_there

            with written_there(path) as local:
                write(outcome, local)
            return path
        return write(outcome, path)


FORMS = {
    "csv": ReportForm(".csv", "csvfile.write_csv"),
    "json": ReportForm(".json", "jsonfile.write_json", looks_closely=True),
    "html": ReportForm(".html", "page.write_html", looks_closely=True),
    "markdown": ReportForm(".md", "markdown.write_markdown"),
    "junit": ReportForm(".junit.xml", "junit.write_junit"),
    "perfetto": ReportForm(".trace.json", "trace.write_trace"),
    "model-explorer": ReportForm(".model-explorer", "graphs_of.write_graphs", looks_closely=True),
}


def chosen_forms(text: str) -> tuple[str, ...]:
    """The names in a list such as ``csv,html``."""
    names = tuple(word.strip() for word in text.split(","))
    for name in names:
        if name not in FORMS:
            raise SelectionError(
                f"--format {name!r} is not known", hint=f"valid are: {', '.join(FORMS)}"
            )
    return names


def free_stem(output: Path) -> str:
    """A name that no report in `output` has yet: earlier reports are kept."""
    stems = chain(["compare"], (f"compare-{number}" for number in count(2)))
    ends = [form.suffix for form in FORMS.values()]
    return next(s for s in stems if not any((output / f"{s}{end}").exists() for end in ends))
