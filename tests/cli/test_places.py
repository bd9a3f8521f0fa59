"""Wherever a command takes a path it takes a URL, and what cannot be written to says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from dumpcmp.archive.copies import copied_here
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores import store as stores
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import COMMANDS, main
from dumpcmp.cli.places import PathOrUrl
from dumpcmp.golden import unpacked_golden
from tests.archive.values import key, put


def run(*words: str) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def ok(*words: str, code: int = 0) -> str:
    ended = run(*words)
    assert ended.exit_code == code, ended.output
    return ended.output


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(stores, "_STORES", {})
    system = pytest.importorskip("fsspec").filesystem("memory")
    yield system
    system.store.clear()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of which the second is wrong in its last layer."""
    room = tmp_path_factory.mktemp("runs")
    for name in ("golden", "mine"):
        with ArchiveWriter(room / name, run={"mode": "eager"}) as sink:
            for number in range(3):
                scale = 1.01 if name == "mine" and number == 2 else 1.0
                bits = scale * np.random.default_rng(number).standard_normal(2000)
                put(sink, key(f"layers.{number}"), bits)
    return room


def parameters(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        for inner in command.commands:
            yield from parameters(command.commands[inner], f"{name} {inner}")
        return
    yield from ((f"{name} {each.opts[0]}", each) for each in command.params)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_path_of_every_command_may_be_a_url(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    paths = [each for each in parameters(command, name) if isinstance(each[1].type, click.Path)]
    assert [told for told, each in paths if not isinstance(each.type, PathOrUrl)] == []


def test_reports_mappings_and_pages_lie_in_stores(runs: Path, memory: Any) -> None:
    memory.put(f"{runs}/", "/runs", recursive=True)
    memory.pipe("/map.yaml", b"layers.2: layers.2\n")
    sides = ["--golden-path", "memory://runs/golden", "--my-path", "memory://runs/mine"]
    sides += ["--mapping", "memory://map.yaml", "--replay", "off"]
    compare = ["compare", *sides, "--output", "memory://out", "--format", "csv,json,html"]
    assert "memory://out/compare.csv" in ok(*compare, code=1)
    assert "memory://out/compare-2.csv" in ok(*compare, code=1)
    assert memory.cat("/out/compare.csv") == memory.cat("/out/compare-2.csv")
    assert len(memory.ls("/out")) == 6
    page = ["report", "memory://out/compare.json", "--to", "memory://page.html"]
    ok(*page)
    assert memory.info("/page.html")["size"] > 10_000
    assert "is there already" in ok(*page, code=2)
    assert "--open" in ok(*compare, "--open", code=2)
    missing = ["--mapping", "memory://nowhere.yaml"]
    assert "cannot read the mapping" in ok("explain", *sides[3::-2], *missing, code=2)


def test_fixtures_and_ops_and_uploads_lie_in_stores(runs: Path, memory: Any) -> None:
    memory.put(f"{runs}/", "/runs", recursive=True)
    pack = ["golden", "pack", "memory://runs/golden", "memory://golden.tar"]
    ok(*pack)
    assert "is there already" in ok(*pack, code=2)
    with copied_here("memory://golden.tar") as file, unpacked_golden(file) as (_, golden):
        assert list(Archive(golden)) == list(Archive(runs / "golden"))
    ok("upload", "memory://runs/golden", "memory://again")
    assert Archive("memory://again").complete and audit("memory://again").sound
    assert "where nothing is run" in ok("verify-op", "memory://op.py", code=2)


def test_what_a_crash_left_is_mended_in_a_store(runs: Path, memory: Any) -> None:
    memory.put(f"{runs}/golden/", "/broken", recursive=True)
    (part,) = memory.glob("/broken/*/*/*/part-0000.h5")
    memory.pipe(part.replace("part-0000", ".new-part-0001"), b"half")
    whole = memory.cat(part)
    memory.pipe(part, whole[: 3 * len(whole) // 4])  # the index is gone, the journal is not
    assert not audit("memory://broken").sound
    told = ok("audit", "--repair", "memory://broken", code=0)
    assert "memory://broken/worldsize1" in told and "removed" in told
    assert audit("memory://broken").num_records == 2
    assert not memory.glob("/broken/*/*/*/.new*")


def test_a_web_server_is_only_read_from(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    np.save(tmp_path / "a.npy", np.ones(3))
    url = "http://127.0.0.1:9/run"
    commands = (
        ["dump", "--path", url],
        ["import", str(tmp_path / "a.npy"), "--path", url],
        ["upload", str(runs / "golden"), url],
        ["golden", "pack", str(runs / "golden"), url],
    )
    for words in commands:
        assert "is only read from" in ok(*words, code=2), words
