"""Compiled code that is older than its source is left alone."""

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from dumpcmp.nouns.built import built


def test_what_was_not_built_is_none() -> None:
    assert built("dumpcmp.measure._no_such_core") is None


def test_what_was_built_and_cannot_be_loaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"_core_that_is_broken{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match="cannot be loaded.*build it again"):
        assert built("_core_that_is_broken") is None


@pytest.mark.parametrize("changed", ["", "core.c", "near.h", "far/inner.h", "unused.h"])
def test_a_source_that_changed_since_is_not_what_was_built(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"_core_of_{tmp_path.name}"
    includes = '#include <stdio.h>\n#include "near.h"\n#include "gone.h"\n'
    source = tmp_path / f"{name}.c"
    texts = {source.name: includes, "near.h": '  # include "far/inner.h"\n', "unused.h": ""}
    texts["far/inner.h"] = '#include "../near.h"\n'
    (tmp_path / "far").mkdir()
    for path, text in {**texts, f"{name}.py": ""}.items():
        (tmp_path / path).write_text(text)
    built_at = (tmp_path / f"{name}.py").stat().st_mtime
    for path in texts:
        is_newer = path == (source.name if changed == "core.c" else changed)
        os.utime(tmp_path / path, (built_at + (10 if is_newer else -10),) * 2)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (built(name) is not None) == (changed in ("", "unused.h"))
