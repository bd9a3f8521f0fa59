"""Pages for notebooks: the page of an outcome, and what the values of an archive look like."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.files import write_whole
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.activations import drawn
from dumpcmp.report.page import assembled, page_text


@dataclass(frozen=True, slots=True, repr=False)
class Page:
    """An HTML page that needs nothing besides itself. A notebook shows it, `write` keeps it."""

    text: str
    title: str
    height: int = 900  # in a notebook, in pixels

    def __repr__(self) -> str:
        return f"<Page {self.title}: {len(self.text):,} bytes; write('page.html') keeps it>"

    def _repr_html_(self) -> str:
        # A frame of its own: the page and the notebook cannot reach each other.
        rights = 'sandbox="allow-scripts allow-downloads"'
        style = f"width:100%;height:{self.height}px;border:1px solid #8884"
        title, text = html.escape(self.title), html.escape(self.text)
        return f'<iframe {rights} title="{title}" style="{style}" srcdoc="{text}"></iframe>'

    def write(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page to a file, which a browser opens from disk."""
        path = Path(path)
        if path.exists() and not overwrite:
            raise SelectionError(
                f"{path} is there already", hint="give another name, or overwrite=True"
            )
        write_whole(path, self.text)
        return path


def page(outcome: Outcome, *, before: Outcome | None = None) -> Page:
    """The page that ``compare --format html`` writes, for a notebook.

        dumpcmp.page(dumpcmp.compare("d1", "d2", closely=8))

    `closely` of `compare` says how many rows it shows closer looks at. `before` is the outcome of
    an earlier state of mine with the same golden run: the page then tells what has changed.
    """
    return Page(page_text(outcome, before), outcome.word)


_SCRIPTS = ("model.js", "theme.js", "colours.js", "activations.js")


def activations(
    archive: str | Path,
    *,
    layers: str | Sequence[str] | None = None,
    tokens: str | Iterable[int] | None = None,
    slot: str = "output.0",
) -> Page:
    """What the values of a run look like: layers by positions, step by step, with histograms.

        dumpcmp.activations("d1", layers="layers.*", tokens="0-9")

    A slider chooses the step, a click on a cell the value whose histogram is shown. Without
    `layers` these are the outputs of modules. What is left out, since it is too much or has no
    numbers in the archive, is said on the page.
    """
    payload = drawn(archive, layers, tokens, slot)
    word = str(payload["word"])
    return Page(assembled("activations.html", _SCRIPTS, word, payload), word, height=760)
