"""What a rank's directory says of its capture: its models and steps, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dumpcmp.archive import paths
from dumpcmp.archive.read.remote import opened
from dumpcmp.archive.read.scan import part_facts
from dumpcmp.archive.schema import KNOWN_VERSIONS, RUN_FILE, SCHEMA_VERSION
from dumpcmp.archive.stores.urls import RemotePath


def why_incomplete(facts: dict[str, Any], directory: Path) -> str:
    """Why the capture of a rank is incomplete; empty where it is not."""
    is_remote = isinstance(directory, RemotePath)
    if not facts:
        return f"{RUN_FILE} is missing or damaged" + ", or not uploaded yet" * is_remote
    if facts.get("schema") not in KNOWN_VERSIONS:
        return f"written in schema {facts.get('schema')}, this dumpcmp knows {SCHEMA_VERSION}"
    if not is_remote and (place := paths.moved_to(directory)):
        return f"parts of it were moved to {place}"
    if facts.get("complete") is True:
        return ""
    if paths.writer_lives(facts, directory):
        return "the capture is still running"
    if is_remote:
        return str(facts.get("problem") or "the capture was cut short, or not all of it uploaded")
    return str(facts.get("problem") or "the capture was cut short; dumpcmp audit --repair mends it")


def why_short(facts: dict[str, Any], num_found: int) -> str:
    """That a capture which ended in order wrote more values than are found; empty where not.

    Whoever removes a token or a part takes its values away, and run.json still counts them.
    """
    counted = facts.get("num_records", 0)
    if facts.get("complete") is not True or num_found >= counted:
        return ""
    return (
        f"{RUN_FILE} counts {counted} values, and {num_found} are found: tokens or parts are gone"
    )


def models_of(directory: Path) -> dict[str, dict[int, Path]]:
    """Model -> step -> directory of parts, of one rank."""
    return {model_name(place): paths.steps_in(place) for place in paths.models_in(directory)}


def model_name(place: Path) -> str:
    """The model whose parts lie in `place`."""
    if (name := paths.name_of_file(place.name)) is not None:
        return name
    for part in sorted(place.glob("*/part-*.h5")):
        with opened(part) as file:
            return str(part_facts(file)["model"])
    return place.name
