"""docs/format.md says what the code does: its tables are the schema's."""

from dataclasses import fields
from pathlib import Path

import pytest

from dumpcmp.archive import schema
from dumpcmp.nouns.effects import MEANINGS, WORDS
from dumpcmp.nouns.record import Call, Record

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()

TABLES: dict[str, dict[str, str]] = {
    "run": schema.RUN_FIELDS,
    "manifest": schema.MANIFEST_COLUMNS,
    "part": schema.PART_ATTRS,
    "call": schema.CALL_ATTRS,
    "dataset": schema.DATASET_ATTRS,
    "index": schema.INDEX_DATASETS,
    "rows": schema.ROWS_FIELDS,
    "effects": {effect.op: meaning for effect, meaning in MEANINGS.items()},
    "trees": WORDS,
}


@pytest.mark.parametrize("table", TABLES)
def test_every_name_is_explained_in_the_words_of_the_schema(table: str) -> None:
    for name, meaning in TABLES[table].items():
        assert f"| `{name}` | {meaning} |" in PAGE


def test_columns_fields_and_kinds_are_listed_in_order() -> None:
    lines = [f"| `{name}` | `{kind}` | {text} |" for name, kind, text in schema.INDEX_COLUMNS]
    assert "\n".join(lines) in PAGE
    lines = [f"| {number} | `{name}` | {holds} |" for number, name, holds in schema.KINDS]
    assert "\n".join(lines) in PAGE
    places = [PAGE.index(f"| `{name}` |") for name, _, _ in schema.JOURNAL_FIELDS]
    assert places[0] > PAGE.index("## The journal")
    for name, _, text in schema.JOURNAL_FIELDS:
        assert f"| `{name}` | " in PAGE and text in PAGE
    for names in (schema.CALL_FIELDS, schema.FORM_FIELDS):
        assert f"[{', '.join(names)}]" in PAGE


def test_a_call_and_a_form_are_what_calls_and_records_say_of_them() -> None:
    called = [field.name for field in fields(Call)]
    assert called == ["model", "step", *schema.CALL_FIELDS]
    told = {field.name for field in fields(Record)} - {"order", "rank", "same_as", "digest"}
    assert {*schema.FORM_FIELDS} - {"slot"} == told - {"key", "location"}


def test_the_version_is_the_schemas() -> None:
    assert f"Schema version {schema.SCHEMA_VERSION}." in PAGE
