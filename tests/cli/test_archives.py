"""``dumpcmp audit`` and ``dumpcmp show`` on a real archive: what they print, how they exit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import main
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Record, Stored
from tests.archive.values import Dense, key, parts, put, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("layers.0.attn/linear"), np.array([[-2.0, 3.5], [np.nan, 0.0]]), 1)
        put(sink, key("layers.1"), np.arange(1000), 2)
        bits = np.array([0x3FC0], np.uint16)
        sink.put(record(key("layers.1", "output.1"), bits, "bfloat16", 2), Dense(bits))
        sink.put(Record(key("layers.2"), 3, "float32", (2,), problem="sparse"), None)
        put(sink, Key("Model", 1, "layers.1", 0, "output.0"), np.zeros(3))
    return tmp_path / "d"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_show_draws_tokens_ops_and_extremes(path: Path) -> None:
    shown = run("show", path)
    assert shown.exit_code == 0
    for text in ("Model, token 0", "Model, token 1", "layers.0.attn", "linear", "float64 [2, 2]",
                 "-2 .. 3.5, 1 NaN", "int64 [1000]  0 .. 999", "bfloat16 [1]  1.5 .. 1.5",
                 "not stored: sparse"):  # fmt: skip
        assert text in shown.output


GLOBS = {"layers.1": 3, "layers.1*": 3, "*#0/output.0": 4, "Model/1/*": 1, "*": 5, "layers.0.*": 1}


@pytest.mark.parametrize("glob", GLOBS)
def test_a_glob_selects_by_op_value_or_token(path: Path, glob: str) -> None:
    assert run("show", path, glob).output.count("output.") == GLOBS[glob]


def test_values_prints_an_excerpt(path: Path) -> None:
    shown = run("show", path, "layers.1", "--values").output
    assert "[  0   1   2 ... 997 998 999]" in shown


def test_show_of_nothing_is_trouble(path: Path) -> None:
    shown = run("show", path, "nowhere")
    assert shown.exit_code == 2 and "is called 'nowhere'" in shown.output


@pytest.mark.parametrize("options", [(), ("--kernel",), ("nowhere",)])
def test_show_of_an_empty_archive_says_that_it_is(tmp_path: Path, options: tuple[str, ...]) -> None:
    ArchiveWriter(tmp_path / "empty").close()
    shown = run("show", tmp_path / "empty", *options)
    assert shown.exit_code == 2
    assert "nothing is recorded in" in shown.output and "glob" not in shown.output


def test_audit_exits_with_0_1_and_2(path: Path, tmp_path: Path) -> None:
    assert run("audit", path).exit_code == 0
    content = parts(path)[0].read_bytes()
    parts(path)[0].write_bytes(content[: len(content) // 2])
    damaged = run("audit", path)
    assert damaged.exit_code == 1 and "part-0000.h5" in damaged.output
    assert "incomplete" not in damaged.output and "--repair" in damaged.output
    assert run("audit", path, "--repair").exit_code == 0
    assert run("audit", path).exit_code == 0
    assert run("audit", tmp_path / "nowhere").exit_code == 2


def test_show_says_that_an_archive_is_incomplete(path: Path) -> None:
    (path / "worldsize1_global_rank0" / "run.json").unlink()
    assert "incomplete: rank 0" in run("show", path).output


def test_show_gives_the_extremes_of_a_summary(tmp_path: Path) -> None:
    stored = Stored("float64", (4,), (("fields", "count min max"),))
    told = Record(key(), 0, "float16", (100,), kept=Kept.SUMMARY, stored=stored)
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.put(told, Dense(np.array([100.0, -2.5, 7.0, 0.0])))
    assert "float16 [100]  -2.5 .. 7 (summary)" in run("show", tmp_path / "d").output
