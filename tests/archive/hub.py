"""A server that speaks as much of the Hugging Face Hub as its library asks for to read files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "datasets/someone/runs"
_COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """A dataset whose files lie in a directory; how many bytes were asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.root, self.nbytes = root, 0

    def told_of(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.root).as_posix()
        kind = "directory" if path.is_dir() else "file"
        size = 0 if path.is_dir() else path.stat().st_size
        return {"type": kind, "path": name, "oid": f"{size:040x}", "size": size}


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[0] != "api":
            self._file(self.server.root.joinpath(*parts[5:]))
        elif parts[4:5] == ["tree"]:
            below = self.server.root.joinpath(*parts[6:]).rglob("*")
            self._json([self.server.told_of(path) for path in sorted(below)])
        else:
            self._json({"id": REPO.partition("/")[2], "_id": "1", "sha": _COMMIT, "siblings": []})

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        whole = path.read_bytes()
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        content = whole[int(first) : int(last) + 1]
        self.server.nbytes += len(content)
        said = f"bytes {first}-{int(first) + len(content) - 1}/{len(whole)}"
        self._answer(206, content, {"Content-Range": said, "X-Repo-Commit": _COMMIT})

    def _json(self, told: Any) -> None:
        self._answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _answer(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, said in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def hub_served(root: Path) -> Iterator[tuple[Hub, str]]:
    """A Hub with the files below `root`, and its address."""
    with Hub(root) as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub, f"http://127.0.0.1:{hub.server_port}"
        finally:
            hub.shutdown()
