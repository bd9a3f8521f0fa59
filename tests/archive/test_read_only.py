"""A file system that nobody may write to: what reads works, and what writes says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.archive.test_full_memory import can_mount
from tests.archive.test_hostile import written

MOUNT = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
COMMANDS = """\
import json, sys
from click.testing import CliRunner
from dumpcmp.cli import main

for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words)
    print(json.dumps([done.exit_code, done.output]))
"""
WORKS = (["show", "d"], ["audit", "d"], ["compare", "--golden-path", "d", "--my-path", "d",
         "--output", "OUT"])  # fmt: skip
SAYS = (["audit", "--repair", "cut"], ["compact", "d"], ["dump", "--path", "new", "program.py"],
        ["dump", "--overwrite", "--path", "d", "program.py"], ["show", "d", "--view", "v.h5"],
        ["compare", "--golden-path", "d", "--my-path", "d", "--output", "here"])  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="no right to mount a file system of one's own")
def test_what_reads_works_and_what_writes_says_so(tmp_path: Path) -> None:
    room, out = tmp_path / "room", tmp_path / "out"
    room.mkdir()
    written(room / "d")
    (run,) = written(room / "cut").glob("*/run.json")
    run.write_text(run.read_text().replace('"complete": true', '"complete": false'))
    (room / "program.py").write_text("import torch\n\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n")
    asked = [[str(out) if word == "OUT" else word for word in words] for words in (*WORKS, *SAYS)]
    command = [*MOUNT, READ_ONLY, str(room), sys.executable, "-c", COMMANDS, json.dumps(asked)]
    ran = subprocess.run(command, cwd=room, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert [code for code, _ in answers[: len(WORKS)]] == [0, 0, 0], answers
    for words, (code, said) in zip(SAYS, answers[len(WORKS) :], strict=True):
        assert code == 2 and "Read-only file system" in said, (words, said)
        assert "unexpected" not in said
