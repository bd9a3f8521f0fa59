"""The code around a line is shown of Python files that are here, whatever an archive names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dumpcmp.comparing.showing import _excerpts

SECRET = "correct horse\nbattery staple\n"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to stand in, one where Python looks, and secrets in both and outside of them."""
    for place in ("here/pkg", "path/lib"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "m.py").write_text("a = 1\nb = 2\n")
    for place in ("here/secret", "here/pkg/key.pem", "secret.py", "path/lib/secret.txt"):
        (tmp_path / place).write_text(SECRET)
    (tmp_path / "here" / "led.py").symlink_to(tmp_path / "secret.py")
    os.mkfifo(tmp_path / "here" / "pipe.py")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("sys.path", [str(tmp_path / "path" / "lib")])
    return tmp_path


@pytest.mark.parametrize("name", ["pkg/m.py", "lib/m.py"])
def test_code_that_is_here_is_shown(room: Path, name: str) -> None:
    (found,) = _excerpts(f"{name}:2")
    assert found.source == f"{name}:2" and found.lines == ("a = 1", "b = 2")


@pytest.mark.parametrize(
    "name",
    ["secret", "pkg/key.pem", "../secret.py", "{room}/secret.py", "{room}/here/pkg/m.py", "led.py",
     "pipe.py", "x/../../secret.py", "lib/secret.txt", "/etc/passwd", "", ".py", "\0.py"],
)  # fmt: skip
def test_nothing_else_is_read_whatever_an_archive_names(room: Path, name: str) -> None:
    assert not list(_excerpts(f"{name.format(room=room)}:1"))
