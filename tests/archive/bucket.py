"""A bucket that speaks enough of S3 for its libraries, and is slow, fails or hangs up when told."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

NAME = "bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",  # who asks again is the store's room, which is tested
}


class Trouble(Enum):
    """What a store does instead of answering as it should."""

    REFUSES = "says that it is busy"
    HANGS_UP = "closes the connection, and did nothing"
    CUTS = "does what it was asked, and closes the connection in the middle of the answer"


@dataclass(eq=False)
class Bucket:
    """Objects by key; one request in `every` meets trouble, and all are answered slowly."""

    objects: dict[str, bytes] = field(default_factory=dict)
    every: int = 0
    seconds: float = 0.0
    num_troubled: int = 0
    _numbers: Iterator[int] = field(default_factory=count)

    def trouble(self) -> Trouble | None:
        """What the next request meets: of all kinds in turn."""
        time.sleep(self.seconds)
        if not self.every or next(self._numbers) % self.every != self.every - 1:
            return None
        self.num_troubled += 1
        return list(Trouble)[self.num_troubled % len(Trouble)]

    @contextmanager
    def troubled(self, every: int = 10, seconds: float = 0.001) -> Iterator[None]:
        """Answer so within the block."""
        self.every, self.seconds, self.num_troubled = every, seconds, 0
        try:
            yield
        finally:
            self.every, self.seconds = 0, 0.0


class Answering(BaseHTTPRequestHandler):
    """Answers one request after the other on a connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body go out together: alone, a small packet waits 40 ms
    bucket: ClassVar[Bucket]

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{NAME}").strip("/")

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        if self.command != "GET" and self.close_connection:
            return
        self.send_response(status)
        for name, said in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), said)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if self.close_connection else body)

    def _say(self, status: int, tag: str, inner: str) -> None:
        self._answer(status, f"<?xml version='1.0'?><{tag}>{inner}</{tag}>".encode())

    def _goes_wrong(self) -> bool:
        """Whether nothing is done of what was asked."""
        trouble = self.bucket.trouble()
        if trouble is Trouble.REFUSES:
            self._say(503, "Error", "<Code>SlowDown</Code><Message>later</Message>")
        elif trouble is not None:
            self.close_connection = True
        return trouble in (Trouble.REFUSES, Trouble.HANGS_UP)

    def do_GET(self) -> None:
        if self._goes_wrong():
            return
        asked = parse_qs(urlsplit(self.path).query)
        if not self._key():
            self._list(asked.get("prefix", [""])[0], asked.get("delimiter", [""])[0])
        elif (content := self.bucket.objects.get(self._key())) is None:
            self._say(404, "Error", "<Code>NoSuchKey</Code><Message>none</Message>")
        else:
            self._send_object(content)

    def _send_object(self, content: bytes) -> None:
        told = {"ETag": _etag(content), "Last_Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if part is None:
            self._answer(200, content, **told)
            return
        start, last = int(part[1]), min(int(part[2]), len(content) - 1)
        told["Content_Range"] = f"bytes {start}-{last}/{len(content)}"
        self._answer(206, content[start : last + 1], **told)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _list(self, prefix: str, delimiter: str) -> None:
        keys = [key for key in sorted(self.bucket.objects) if key.startswith(prefix)]
        deeper = {key: key[len(prefix) :].partition("/") for key in keys}
        shared = {f"{prefix}{first}/" for first, cut, _ in deeper.values() if cut and delimiter}
        flat = [key for key in keys if not (delimiter and deeper[key][1])]
        inner = "".join(self._listed(key) for key in flat)
        inner += "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted(shared)
        )
        count = f"<KeyCount>{len(flat)}</KeyCount><IsTruncated>false</IsTruncated>"
        self._say(200, "ListBucketResult", f"<Name>{NAME}</Name>{count}{inner}")

    def _listed(self, key: str) -> str:
        content = self.bucket.objects[key]
        return (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
            f"<LastModified>2026-11-16T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_etag(content))}</ETag><StorageClass>STANDARD</StorageClass></Contents>"
        )

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._goes_wrong():
            return
        if self._key():
            self.bucket.objects[self._key()] = content
        self._answer(200, ETag=_etag(content))

    def do_DELETE(self) -> None:
        if not self._goes_wrong():
            self.bucket.objects.pop(self._key(), None)
            self._answer(204)

    def log_message(self, *_: object) -> None:
        pass


def _etag(content: bytes) -> str:
    return f'"{md5(content, usedforsecurity=False).hexdigest()}"'


@contextmanager
def bucket_served() -> Iterator[tuple[Bucket, dict[str, str]]]:
    """A bucket, and the variables by which S3's libraries find it."""
    bucket = Bucket()
    handler = type("Answering", (Answering,), {"bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        yield bucket, {**KEYS, "AWS_ENDPOINT_URL": address}
    finally:
        server.shutdown()
        server.server_close()
