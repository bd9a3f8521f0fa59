"""Every code block of README and docs runs as it stands, and gives the output that it shows.

A block says by its language what it is: ``python`` and ``sh`` are run, those of a page after each
other, in one namespace and one directory, with the files of examples and tests/docs/workspace, and
with what ``<!-- before: command -->`` makes. A block whose
first line is a comment with the name of a file is also that file. ``output`` is what the block
before it printed, up to numbers; ``…`` stands for anything. ``text`` is no code. What cannot be run
here has ``<!-- not run: why -->`` in the line before.
"""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.utils.weak import WeakIdKeyDictionary

from dumpcmp.cli import main
from dumpcmp.taps.distributed import ranks

ROOT = Path(__file__).parents[2]
WORKSPACE = Path(__file__).parent / "workspace"
EXAMPLES = ROOT / "examples"
BLOCK = re.compile(
    r"^<!-- before: (?P<before>.+?) -->$|"
    r"(?:^ *<!-- not run: (?P<excuse>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# (?P<name>[\w.]+\.(?:py|yaml))\n")
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
DIRECTORIES = re.compile(r"\S+/(?=\w+\.py\b)")
LANGUAGES = {"python", "sh", "output", "yaml", "text"}
MOST_EXCUSES = 13


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    excuse: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    written = page.read_text()
    for found in BLOCK.finditer(written):
        line = written.count("\n", 0, found.end())
        where = str(page.relative_to(ROOT))
        if found["before"]:
            yield Block(where, line + 1, "sh", found["before"])
            continue
        text = re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        line -= text.count("\n")
        yield Block(where, line, found["language"], text, found["excuse"] or "")


PAGES = {
    str(page.relative_to(ROOT)): list(blocks_of(page))
    for page in [ROOT / "README.md", EXAMPLES / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```" in page.read_text()
}
BLOCKS = [block for blocks in PAGES.values() for block in blocks]


@dataclass
class Reader:
    """Somebody who types in what a page says, and looks whether it comes out as shown."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    output: str = ""

    def follow(self, block: Block) -> None:
        """Do what `block` says."""
        match block.language:
            case "python":
                self._execute(block)
            case "sh":
                self.output = "".join(_printed_by(words) for words in _commands(block.text))
            case "output":
                self._check(block)

    def _execute(self, block: Block) -> None:
        code = compile("\n" * block.line + block.text, block.page, "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.names)
        self.output = printed.getvalue()

    def _check(self, block: Block) -> None:
        lines = iter(_plain(line) for line in self.output.splitlines())
        for line in filter(None, map(_plain, block.text.splitlines())):
            shown = ".*".join(map(re.escape, line.split("…")))
            assert any(re.search(shown, printed) for printed in lines), (
                f"{block} shows {line!r}, which is not in:\n{self.output}"
            )


def _plain(line: str) -> str:
    """`line` without its numbers, the directories of source files, and the widths of columns."""
    return NUMBER.sub("#", DIRECTORIES.sub("", " ".join(line.split())))


def _commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def _printed_by(words: list[str]) -> str:
    """What a command prints. Ours run in this process, since importing torch takes seconds."""
    if words[0] != "dumpcmp":
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout
    ended = CliRunner().invoke(main, words[1:])
    assert ended.exit_code in (0, 1), f"{shlex.join(words)}\n{ended.output}"
    if ended.exception and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended.output


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that a page's blocks run in; modules that they import from it are forgotten."""
    room = tmp_path / "room"
    shutil.copytree(WORKSPACE, room)
    shutil.copytree(EXAMPLES, room, dirs_exist_ok=True)
    (room / "sample_dumps").symlink_to(ROOT / "sample_dumps")
    monkeypatch.chdir(room)
    monkeypatch.setattr(sys, "path", [str(room), *sys.path])
    monkeypatch.setattr(sys, "argv", [""])
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    monkeypatch.setattr(ranks, "_layouts", WeakIdKeyDictionary())  # and tensors may live on
    torch._dynamo.reset()
    yield room
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(room)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_and_gives_what_it_shows(page: str, room: Path) -> None:
    for block in PAGES[page]:
        if found := FILE.match(block.text):
            (room / found["name"]).write_text(block.text)
    reader = Reader()
    for block in PAGES[page]:
        if not block.excuse:
            reader.follow(block)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block}: choose one of {LANGUAGES}"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    excused = {str(block): block.excuse for block in BLOCKS if block.excuse}
    assert len(excused) <= MOST_EXCUSES, excused
