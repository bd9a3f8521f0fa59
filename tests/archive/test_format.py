"""docs/format.md says what the code does: its tables are the schema's."""

from pathlib import Path

import pytest

from dumpcmp.archive import schema

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()

TABLES = {
    "run": schema.RUN_FIELDS,
    "part": schema.PART_ATTRS,
    "call": schema.CALL_ATTRS,
    "dataset": schema.DATASET_ATTRS,
    "index": schema.INDEX_DATASETS,
}


@pytest.mark.parametrize("table", TABLES)
def test_every_name_is_explained_in_the_words_of_the_schema(table: str) -> None:
    for name, meaning in TABLES[table].items():
        assert f"| `{name}` | {meaning} |" in PAGE


def test_columns_fields_and_kinds_are_listed_in_order() -> None:
    lines = [f"| `{name}` | `{kind}` | {text} |" for name, kind, text in schema.INDEX_COLUMNS]
    assert "\n".join(lines) in PAGE
    lines = [f"| {kind.number} | `{name}` | {kind.holds} |" for name, kind in schema.KINDS.items()]
    assert "\n".join(lines) in PAGE
    places = [PAGE.index(f"| `{name}` |") for name, _, _ in schema.JOURNAL_FIELDS]
    assert places[0] > PAGE.index("## The journal")
    for name, _, text in schema.JOURNAL_FIELDS:
        assert f"| `{name}` | " in PAGE and text in PAGE
    for fields in (schema.CALL_FIELDS, schema.FORM_FIELDS):
        assert f"[{', '.join(fields)}]" in PAGE


def test_the_version_is_the_schemas() -> None:
    assert f"Schema version {schema.SCHEMA_VERSION}." in PAGE
