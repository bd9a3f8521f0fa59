"""Stores for the tests: an S3 server, a web server that answers ranges, one that fails at times."""

from __future__ import annotations

import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory whose answers are slow, fail, or are cut off, as often as it is told."""

    protocol = "failing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    share, seconds, cut = 0.0, 0.0, 0.0
    chance = random.Random(0)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("failing://", "memory://")))

    def _strike(self) -> None:
        time.sleep(self.seconds)
        if self.chance.random() < self.share:
            raise ConnectionResetError("the connection was lost")

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        self._strike()
        found: bytes = super().cat_file(path, start=start, end=end, **options)
        return found[: len(found) // 2] if self.chance.random() < self.cut else found

    def find(self, path: str, *words: Any, **options: Any) -> Any:
        self._strike()
        return super().find(path, *words, **options)

    def put_file(self, *words: Any, **options: Any) -> None:
        self._strike()
        super().put_file(*words, **options)

    def pipe_file(self, *words: Any, **options: Any) -> None:
        self._strike()
        super().pipe_file(*words, **options)


fsspec.register_implementation("failing", Failing, clobber=True)


class Ranged(SimpleHTTPRequestHandler):
    """Serves files by ranges, as web servers do and Python's own does not."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not asked or not path.is_file():
            super().do_GET()
            return
        start, last = int(asked[1]), int(asked[2])
        content = path.read_bytes()[start : last + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Range", f"bytes {start}-{last}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def web_server(directory: Path, handler: type[SimpleHTTPRequestHandler] = Ranged) -> Iterator[str]:
    """Serve `directory`; yields its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's S3 server; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _await(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def _await(port: int, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
