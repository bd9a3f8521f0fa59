"""A small web server on this machine alone: the live page of a comparison, and its rows as JSON.

It binds 127.0.0.1, and answers nobody who does not know the token in its address. It reads no
files: the three things that it answers with are in memory.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socketserver
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dumpcmp.nouns.errors import DumpcmpError, SelectionError
from dumpcmp.report.live import LiveView, live_page

HOST = "127.0.0.1"
_JSON = "application/json"
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class LiveServer(ThreadingHTTPServer):
    """Serves a LiveView to those who know its address."""

    daemon_threads = True

    def __init__(self, view: LiveView, port: int = 0) -> None:
        self.view, self.token = view, secrets.token_urlsafe(32)
        self.page, self.policy = live_page()
        super().__init__((HOST, port), _Request)

    def server_bind(self) -> None:
        """Bind, and ask no name server what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of defects, and not of a reader who has left."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """What to open in a browser. Whoever knows it sees the comparison."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Request(BaseHTTPRequestHandler):
    """One connection of a browser."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that a connection may be idle
    server: LiveServer

    def parse_request(self) -> bool:
        """Read a request; without the token none gets any further, whatever its method."""
        if not super().parse_request():
            return False
        if self._is_allowed():
            return True
        self._refuse(403, "open the address that dumpcmp serve has printed")
        return False

    def _is_allowed(self) -> bool:
        """Whether it knows the token, and meant this machine: a name elsewhere may lead here."""
        port = self.server.server_port
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in (f"{HOST}:{port}", f"localhost:{port}"):
            return False
        _, token, *_ = (*self.path.split("/"), "", "")
        is_known = hmac.compare_digest(token.encode(), self.server.token.encode())
        return is_known and self.path.startswith(f"/{self.server.token}/")

    def do_GET(self) -> None:
        """Answer with the page, the state, or some rows; there is nothing else."""
        asked = urlsplit(self.path)
        what = asked.path.removeprefix(f"/{self.server.token}/")
        try:
            if what == "":
                self._answer(200, "text/html; charset=utf-8", self.server.page)
            elif what == "state":
                self._answer(200, _JSON, _written(self.server.view.state()))
            elif what == "rows":
                self._answer(200, _JSON, _written(_rows(self.server.view, asked.query)))
            else:
                self._refuse(404, "there is nothing here")
        except DumpcmpError as error:
            self._refuse(400, str(error))

    def _refuse(self, code: int, why: str) -> None:
        self.close_connection = True  # what follows may be the body of what was refused
        self._answer(code, "text/plain; charset=utf-8", f"{why}\n")

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        policy = self.server.policy if kind.startswith("text/html") else "default-src 'none'"
        headers = _HEADERS | {"Content-Security-Policy": policy, "Content-Type": kind}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "dumpcmp"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is the user's, and the address is a secret."""


def _written(told: dict[str, Any]) -> str:
    return json.dumps(told, allow_nan=False, separators=(",", ":"))


def _rows(view: LiveView, query: str) -> dict[str, Any]:
    """The rows that the query of an address asks for."""
    try:
        asked = {name: words[-1] for name, words in parse_qs(query, max_num_fields=8).items()}
        offset, limit = int(asked.get("offset", "0")), int(asked.get("limit", "100"))
    except ValueError as error:
        raise SelectionError("offset and limit are whole numbers") from error
    return view.rows(offset, limit, asked.get("verdict", ""), asked.get("text", ""))


@contextmanager
def serving(view: LiveView, port: int = 0) -> Iterator[LiveServer]:
    """Serve `view` while the block runs; port 0 is one that is free."""
    try:
        server = LiveServer(view, port)
    except OSError as error:
        hint = "give another --port; without it a free one is taken"
        raise SelectionError(f"port {port} of {HOST}: {error.strerror}", hint=hint) from error
    with server:
        thread = Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _check_asked(
    *archives: Path,
    layers: Sequence[str] = (),
    tokens: str | None = None,
    mapping: Path | None = None,
    **_others: Any,
) -> None:
    """Raise what is wrong with what a page was asked to show."""
    from dumpcmp.align.mapfile import read_mapping
    from dumpcmp.archive.read.reader import Archive
    from dumpcmp.archive.stores.urls import place
    from dumpcmp.nouns.selection import make_tap

    make_tap(tokens, layers)
    if mapping is not None:
        read_mapping(place(mapping))
    for path in archives:
        Archive(path)


def serve(
    golden: Path,
    mine: Path,
    *,
    port: int = 0,
    follow: bool = False,
    tell: Callable[[str], None] = print,
    **options: Any,
) -> None:
    """Compare two archives, and serve what comes of it until the process is interrupted.

    `tell` is told the address as soon as the page can be opened, which is before the comparison is
    done. What is wrong with the archives or the options is raised before. With `follow` the page
    grows by the steps of a run that goes on, or has not begun. `options` are those of `compare`.
    """
    from dumpcmp.comparing import compare
    from dumpcmp.comparing.watching import compare_by_steps, has_begun

    _check_asked(golden, *([] if follow and not has_begun(mine) else [mine]), **options)
    view = LiveView(golden, mine)
    options["progress"] = view.progress
    with serving(view, port) as server:
        try:
            tell(server.address)
            if follow:
                view.finish(compare_by_steps(golden, mine, follow=True, tell=view.add, **options))
            else:
                view.finish(compare(golden, mine, **options))
            view.prepare()
            Event().wait()
        except KeyboardInterrupt:
            return
