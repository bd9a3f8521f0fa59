"""Reads a report that was written as JSON, and makes a page of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dumpcmp.archive.copies import written_there
from dumpcmp.nouns.budgets import JSON_REPORT, Spending
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.files import write_whole
from dumpcmp.report.jsonfile import JSON_VERSION
from dumpcmp.report.page import page_of

_WRITE_IT = "write one: dumpcmp compare --format csv,json ..."


def newest_json(out: Path) -> Path:
    """The JSON report at `out`, or the newest in that directory."""
    if out.is_file():
        return out
    found = sorted(out.glob("compare*.json"), key=lambda path: path.stat().st_mtime_ns)
    found = [path for path in found if path.name.count(".") == 1]  # others have two suffixes
    if not found:
        raise SelectionError(f"{out} has no report compare.json", hint=_WRITE_IT)
    return found[-1]


def read_json(path: Path) -> dict[str, Any]:
    """The report in a file, as `as_json` gave it."""
    try:
        Spending(JSON_REPORT, path, path.stat().st_size)
        told = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise SelectionError(f"{path} is no JSON report: {error}", hint=_WRITE_IT) from error
    version = told.get("version") if isinstance(told, dict) else None
    if version != JSON_VERSION:
        raise SelectionError(
            f"{path} is a report of version {version}, this dumpcmp reads {JSON_VERSION}",
            hint=_WRITE_IT,
        )
    assert isinstance(told, dict)
    return told


def write_page(told: Mapping[str, Any], path: Path, *, overwrite: bool = False) -> Path:
    """Write the page of a report; what is there is replaced only if that is asked for."""
    if path.exists() and not overwrite:
        raise SelectionError(f"{path} is there already", hint="give --overwrite, or another --to")
    try:
        text = page_of(told, told["rows"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"the report lacks what a page needs: {error}"
        raise SelectionError(said, hint=_WRITE_IT) from error
    with written_there(path) as local:
        local.parent.mkdir(parents=True, exist_ok=True)
        write_whole(local, text)
    return path
