"""Inputs at random, and broken on purpose: an answer or a DumpcmpError, and nothing else.

``make fuzz`` is the long version, of these and of ``tests/archive/test_fuzz.py``.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.align.mapfile import read_mapping
from dumpcmp.align.mesh.declared import read_stated
from dumpcmp.archive import paths
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import ring_records
from dumpcmp.archive.write.ring import Ring
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.layouts import parse_layout
from tests.archive.values import key, put

MUTANTS = int(os.environ.get("DUMPCMP_MUTANTS", "150"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
DOCS = Path(__file__).parents[1] / "docs"
TEXTS = (  # lines that users write, from which others are made
    *(
        "layers.*.o=b s h[tp:partial]",
        "golden:layers.*=b s[cp] h[tp]",
        "h[tp+2]",
        "b s h[tp:1,3,1]",
    ),
    *("layers.*.qkv=b s h[tp:groups 2,1,1]", "s[cp:zigzag] h", "b s h", "target:lm_head=v[tp] h"),
)
WORDS = (
    *("layers.*", "=", ":", "b", "s[tp]", "h[cp,tp]", "[", "]", "{", "}", "partial", "golden"),
    *("\n", " ", "- ", "*", "&a", "\x00", "é", "0", "1e999", "-", "target", "|", "'", '"', "\t"),
)


def words(draws: random.Random) -> str:
    return "".join(draws.choices(WORDS, k=draws.randrange(12)))


def broken(content: bytes, draws: random.Random) -> bytes:
    """`content` with some bytes changed, left out, doubled or cut off."""
    room = bytearray(content)
    for _ in range(draws.randrange(1, 4)):
        at = draws.randrange(len(room) or 1)
        match draws.randrange(4):
            case 0:
                room[at : at + 1] = draws.randbytes(1)
            case 1:
                del room[at : at + draws.randrange(1, 40)]
            case 2:
                room[at:at] = room[at : at + draws.randrange(1, 40)]
            case 3:
                room[at : at + 8] = draws.choice([bytes(8), b"\xff" * 8])
    return bytes(room)


def test_texts_of_layouts_and_mappings(tmp_path: Path) -> None:
    draws = random.Random(SEED + 3)
    for _ in range(MUTANTS):
        text = words(draws)
        with suppress(DumpcmpError):
            parse_layout(text)
        with suppress(DumpcmpError):
            read_stated([text])
        place = tmp_path / "names.yaml"
        place.write_text(text, errors="surrogatepass")
        for read in (read_mapping, lambda path: read_stated([str(path)])):
            with suppress(DumpcmpError):
                read(place)


def corpus() -> list[bytes]:
    """The layout files and mappings that the docs show, and lines of them."""
    blocks = [
        block
        for page in sorted(DOCS.rglob("*.md"))
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert blocks
    return [text.encode() for text in (*blocks, *TEXTS)]


def test_files_of_layouts_and_mappings_that_were_broken(tmp_path: Path) -> None:
    draws, place, texts = random.Random(SEED), tmp_path / "names.yaml", corpus()
    for _ in range(MUTANTS):
        content = broken(draws.choice(texts), draws)
        place.write_bytes(content)
        text = content.decode(errors="replace")
        with suppress(DumpcmpError):
            parse_layout(text)
        with suppress(DumpcmpError):
            read_stated([text])
        with suppress(DumpcmpError):
            read_mapping(place)
        with suppress(DumpcmpError):
            read_stated([str(place)])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "d"
    with ArchiveWriter(path, run={"mode": "eager", "filters": {"tokens": None}}) as sink:
        for number in range(4):
            put(sink, key(f"op{number}"), np.arange(8.0), number)
    return path


def test_facts_of_a_run(archive: Path, tmp_path: Path) -> None:
    draws, path = random.Random(SEED + 1), tmp_path / "d"
    shutil.copytree(archive, path)
    run = next(path.glob("*/run.json"))
    whole = run.read_bytes()
    live = json.dumps(json.loads(whole) | {"writer": {"host": "x", "pid": 1, "ring": "dumpcmp-x"}})
    for number in range(MUTANTS):
        run.write_bytes(broken(whole if number % 2 else live.encode(), draws))
        with suppress(DumpcmpError):
            opened = Archive(path)
            assert len(opened) == 4 and repr(opened)
        with suppress(DumpcmpError):
            audit(path)


@pytest.mark.parametrize("name", ["run", "num_records", "nbytes", "problem"])
def test_a_fact_of_another_type_is_damage(archive: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "d"
    shutil.copytree(archive, path)
    run = next(path.glob("*/run.json"))
    run.write_text(json.dumps(json.loads(run.read_text()) | {name: None}))
    assert "damaged" in repr(Archive(path)) and len(Archive(path)) == 4


def test_rings_of_killed_writers(tmp_path: Path) -> None:
    place = tmp_path / "ring"
    ring = Ring(1 << 20, place)
    whole = place.read_bytes()
    draws = random.Random(SEED + 2)
    for _ in range(MUTANTS):
        head = broken(whole[:256], draws)[:256].ljust(256, b"\0")
        records = b"".join(draws.choice([b"dcR1", b"dcW1", bytes(4)]) + draws.randbytes(60)
                           for _ in range(8))  # fmt: skip
        with place.open("r+b") as file:
            file.write(head + whole[256:4096] + records)
        with suppress(DumpcmpError):
            for found in ring_records(place):
                found.listed()
        paths.ring_owner(place)
    ring.close()
