"""Writes the table of columns in docs/reports.md from dumpcmp/nouns/columns.py.

Run it in the root of the repository: ``python docs/build_columns.py``.
"""

from pathlib import Path

from dumpcmp.nouns.columns import COLUMNS

PAGE = Path(__file__).parents[1] / "docs" / "reports.md"
HEAD = "| column | meaning |\n|---|---|\n"


def with_table(page: str) -> str:
    """`page` with the columns as they are now."""
    before, _, rest = page.partition(HEAD)
    escaped = ((column.name, column.doc.replace("|", "\\|")) for column in COLUMNS)
    lines = "".join(f"| `{name}` | {doc} |\n" for name, doc in escaped)
    return before + HEAD + lines + rest[rest.index("\n\n") + 1 :]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
