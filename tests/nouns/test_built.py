"""Compiled code that is older than its source is left alone."""

import os
from pathlib import Path

import pytest

from dumpcmp.nouns.built import built


def test_what_was_not_built_is_none() -> None:
    assert built("dumpcmp.measure._no_such_core") is None


@pytest.mark.parametrize("seconds, is_used", [(-10, True), (10, False)])
def test_a_source_that_changed_since_is_not_what_was_built(
    seconds: float, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"_core_of_{tmp_path.name}"
    binary, source = tmp_path / f"{name}.py", tmp_path / f"{name}.c"
    binary.write_text("")
    source.write_text("")
    built_at = binary.stat().st_mtime
    os.utime(source, (built_at + seconds, built_at + seconds))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (built(name) is not None) == is_used
