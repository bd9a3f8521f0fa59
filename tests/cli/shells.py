"""Shells for tests of completion: what they make of words and a press of Tab."""

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS = 60.0  # that a shell may take, on a machine that has other work
PROMPT = "ready>"
_BIN = str(Path(sys.executable).parent)  # where dumpcmp is
_START = {
    "bash": (["bash", "--norc", "-i"], "PS1={prompt}; source {script}"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "PROMPT={prompt}; autoload -Uz compinit; compinit -u -D; source {script}",
    ),
}


def completed(shell: str, script: Path, words: str) -> str:
    """The last word that `shell` makes of `words` where `script` says how they go on."""
    room = script.parent
    path = os.pathsep.join([_BIN, os.environ["PATH"]])
    environment = {"HOME": str(room), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8"}
    if shell == "fish":  # it tells by itself what a Tab would do
        asked = f"source {shlex.quote(str(script))}; complete --do-complete {shlex.quote(words)}"
        told = subprocess.run(
            ["fish", "--no-config", "-c", asked], env=environment, cwd=room, text=True,
            capture_output=True, timeout=SECONDS, check=True,
        ).stdout  # fmt: skip
        (line,) = told.splitlines()
        return line.split("\t")[0]
    command, start = _START[shell]
    begun = start.format(prompt=shlex.quote(PROMPT), script=shlex.quote(str(script)))
    return _at_a_terminal(command, begun, words, environment, room)


def _at_a_terminal(
    command: Sequence[str], start: str, words: str, environment: dict[str, str], room: Path
) -> str:
    """The last word of the line after a Tab, in a shell that runs at a terminal of its own."""
    terminal, other = pty.openpty()
    shell = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, env=environment, cwd=room,
        start_new_session=True,
    )  # fmt: skip
    os.close(other)
    try:
        os.write(terminal, f"{start}\n".encode())
        _read_until(terminal, f"\r{PROMPT}", f"\n{PROMPT}", f"\x1b[?2004h{PROMPT}")
        os.write(terminal, f"{words}\t@".encode())  # the mark shows where the word ends
        line = _read_until(terminal, "@").rpartition(PROMPT)[2]
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)
    return line.partition("@")[0].rstrip("\b ").split()[-1]  # zsh takes the last space back


def _read_until(terminal: int, *marks: str) -> str:
    seen, deadline = "", time.monotonic() + SECONDS
    while not any(mark in seen for mark in marks):
        readable, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        assert readable, f"the shell showed none of {marks} in {SECONDS} seconds: {seen!r}"
        seen += os.read(terminal, 65536).decode(errors="replace")
    return seen
