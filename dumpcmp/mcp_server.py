"""A server of the Model Context Protocol: what assistants may ask dumpcmp for, as tools.

A tool is a command of dumpcmp in a process of its own, and its answer is what the command prints.
None of them runs a program of the user's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dumpcmp.archive.read.reader import Archive, excerpt, extremes
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Kept

if TYPE_CHECKING:
    from mcp.server import MCPServer

_CODES = {0: "exit code 0: same, or done", 1: "exit code 1: different", 2: "exit code 2: trouble"}


def compare(mine: str, golden: str, layers: str = "", tokens: str = "") -> str:
    """Hold the run at `mine` against `golden`: the verdict, the first op that is wrong, and why.

    `layers` is a glob over ops such as ``layers.3*``, `tokens` a list such as ``0,2-5``.
    """
    chosen = [f"--layer={layers}"] if layers else []
    chosen += [f"--token={tokens}"] if tokens else []
    with TemporaryDirectory(prefix="dumpcmp-") as room:
        sides = f"--my-path={mine}", f"--golden-path={golden}", f"--output={room}"
        return _run("compare", *sides, *chosen)


def explain(mine: str, golden: str, key: str = "") -> str:
    """Say all that is known of a value: what its op took and gave, and what the difference is.

    `key` is an op, a glob, or a value such as ``layers.3/add#0 output.0``; without one it is the
    first divergence.
    """
    return _run("explain", "--", mine, golden, *([key] if key else []))


def show(path: str, key: str = "*", kernel: bool = False) -> str:
    """List what the archive at `path` holds, of the ops that the glob `key` selects.

    `kernel` prints the generated kernels of a compiled run instead.
    """
    return _run("show", *(["--kernel"] if kernel else []), "--", path, key)


def tensor(path: str, op: str, token: int = 0, slot: str = "output.0", call: int = 0) -> str:
    """Print a value: dtype, shape, extremes, and some of its elements."""
    archive = Archive(path)
    keys = [k for k in archive if (k.op, k.step, k.slot, k.call) == (op, token, slot, call)]
    if not keys:
        archive.tensor(op, step=token, slot=slot, call=call)  # which says what is not there
    told = []
    for record in archive.shards(keys[0]):
        told.append(f"{record.key} on rank {record.rank}: {record.dtype} {list(record.shape)}")
        if record.kept is Kept.FULL:
            value = archive.load(record)
            told += [extremes(value), excerpt(value)]
        else:
            told.append(f"only {record.sample or 'a Summary'} is kept")
    return "\n".join(told)


def repro(mine: str, golden: str, path: str, key: str = "") -> str:
    """Write a folder at `path` with a script that shows the fault alone, for a ticket."""
    return _run("repro", f"--path={path}", "--", mine, golden, *([key] if key else []))


TOOLS: tuple[Callable[..., str], ...] = (compare, explain, show, tensor, repro)


def _run(*words: str) -> str:
    """What a command prints, after a line that says what its exit code means."""
    # -P: where the dumps are, others may have put a torch.py.
    command = [sys.executable, "-P", "-m", "dumpcmp", *words]
    ours = str(Path(__file__).parents[1])
    known = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": known},
    )  # fmt: skip
    ending = _CODES.get(done.returncode, f"exit code {done.returncode}")
    return "\n".join(filter(None, (ending, done.stdout.strip(), done.stderr.strip())))


def server() -> MCPServer:
    """The server with its tools; needs the SDK (extra ``mcp``)."""
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise DumpcmpError(
            "the server needs the SDK of the Model Context Protocol, version 2 or later",
            hint="pip install 'dumpcmp[mcp]'",
        ) from error
    made = MCPServer("dumpcmp")
    for tool in TOOLS:
        made.tool()(_told(tool))
    return made


def _told(tool: Callable[..., str]) -> Callable[..., str]:
    """The tool, whose errors of ours are answers that say what to do."""
    from functools import wraps

    @wraps(tool)
    def call(*args: object, **options: object) -> str:
        try:
            return tool(*args, **options)
        except DumpcmpError as error:
            return f"{_CODES[2]}\n{error}"

    return call


def serve(here: Path | None = None) -> None:
    """Serve on stdin and stdout until the client leaves; paths are relative to `here`."""
    if here is not None:
        os.chdir(here)
    server().run("stdio")
