"""A report that cannot be written is trouble with its name; the one before it stays."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import main
from dumpcmp.comparing import compare, spans
from dumpcmp.nouns import rows
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.csvfile import write_csv
from dumpcmp.report.jsonfile import write_json
from tests.archive.values import key, put

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "ENOMEM")


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    room = tmp_path_factory.mktemp("reports")
    for name in "de":
        with ArchiveWriter(room / name) as sink:
            for number in range(30):
                step, numbers = number // 10, np.arange(5.0) + number
                put(sink, key(f"op{number % 10}", step=step), numbers, number)
    return [room / "d", room / "e"]


class Refusing(io.StringIO):
    """A file that takes so many writes."""

    def __init__(self, most: int, number: int) -> None:
        super().__init__()
        self.most, self.number = most, number

    def write(self, text: str) -> int:
        self.most -= 1
        if self.most < 0:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(text)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("write", [write_csv, write_json])
def test_a_refused_write_leaves_the_report_before(
    write: Callable[[Outcome, Path], Path], error: str, sides: list[Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    outcome, path, number = compare(*sides), tmp_path / "a.txt", getattr(errno, error)
    write(outcome, path)
    before = path.read_bytes()
    for most in (0, 1, 7, 20):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", lambda *_, most=most, **__: Refusing(most, number))
            with pytest.raises(OSError, match=r"a\.txt") as raised:
                write(outcome, path)
        assert raised.value.errno == number
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", ERRORS)
def test_no_room_for_the_rows_of_a_long_run_is_trouble(
    error: str, sides: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(errno, error)

    class Full:
        pread = os.pread

        def pwrite(self, *_: Any) -> int:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(spans, "MOST_VALUES", 1)
    monkeypatch.setattr(spans, "same_step", lambda *_: None)  # whose rows need no file
    monkeypatch.setattr(rows, "KEPT", 0)
    monkeypatch.setattr(rows, "os", Full())
    options = ["--golden-path", str(sides[0]), "--my-path", str(sides[1]), "--output"]
    ran = CliRunner().invoke(main, ["compare", *options, str(tmp_path / "out")])
    assert ran.exit_code == 2 and "Traceback" not in ran.output, ran.output
