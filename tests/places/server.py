"""A store of objects on loopback: puts are whole or not there, and requests fail by a seed where they are told to."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["ObjectStore", "serving"]


class ObjectStore:
    """Objects by key, what was asked for, and how often requests fail.

    Attributes:
        objects: key to content.
        asked: (method, key) to the number of requests that were answered well.
        failures: how many were not.
        share: of requests that fail: some before, some after what they ask for was done, some in the middle of the answer.
        wait_s: how long every answer takes.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        self.failures = 0
        self._etags: dict[str, tuple[bytes, str]] = {}
        self.share = 0.0
        self.wait_s = 0.0
        self.lock = threading.Lock()
        self.random = random.Random(0)
        self.endpoint = ""

    def etag(self, key: str) -> str:
        """Return a hash of the object, found once for each content."""
        content, known = self._etags.get(key, (None, ""))
        if content is not self.objects[key]:
            content, known = self.objects[key], hashlib.md5(self.objects[key]).hexdigest()
            self._etags[key] = content, known
        return known

    def fail(self, share: float, seed: int) -> None:
        """Let a share of the requests fail from now on."""
        self.share, self.random = share, random.Random(seed)

    def fate(self) -> str:
        """Draw what becomes of a request: "" (well), or how it fails."""
        with self.lock:
            if self.random.random() >= self.share:
                return ""
            self.failures += 1
            return self.random.choice(["refused", "hung up", "answer lost", "cut short", "silently short"])

    def hashes(self, folder: str) -> dict[str, str]:
        """Return the objects below ``folder``, by their path in it, with their hashes."""
        with self.lock:
            held = {key: content for key, content in self.objects.items() if key.startswith(f"{folder}/")}
        return {key[len(folder) + 1 :]: hashlib.sha256(content).hexdigest() for key, content in sorted(held.items())}


class _Handler(BaseHTTPRequestHandler):
    store: ObjectStore

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        key = unquote(url.path).lstrip("/")
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        time.sleep(self.store.wait_s)
        fate = self.store.fate()
        if len(body) < size or fate == "hung up":  # a writer that was killed: nothing of it is seen
            self.close_connection = True
            return
        if fate == "refused":
            self._answer(503)
            return
        with self.store.lock:
            status, headers, content = self._done(key, url.query, body)
            self.store.asked[self.command, key] += 1
        if fate == "answer lost":
            self.close_connection = True
            return
        short = fate if self.command == "GET" and (key or fate == "cut short") else ""
        self._answer(status, headers, content, short)

    do_GET = do_HEAD = do_PUT = do_DELETE = _serve

    def _done(self, key: str, query: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        objects = self.store.objects
        if query:
            return 200, {}, json.dumps(self._listing(parse_qs(query, keep_blank_values=True)["list"][0])).encode()
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and key in objects:
                return 412, {}, b""
            objects[key] = body
            return 200, {}, b""
        if key not in objects:
            return 404, {}, b""
        content = objects[key]
        if self.command == "DELETE":
            del objects[key]
            return 204, {}, b""
        headers = {"ETag": self.store.etag(key), "X-Size": str(len(content))}
        if self.command == "HEAD":
            return 200, headers, b""
        wanted = self.headers.get("Range")
        if wanted:
            start, _, stop = wanted.removeprefix("bytes=").partition("-")
            content = content[int(start) : int(stop) + 1]
        return 200, headers, content

    def _listing(self, path: str) -> list[dict[str, object]]:
        within = f"{path.rstrip('/')}/" if path else ""
        found: dict[str, dict[str, object]] = {}
        for key, content in self.store.objects.items():
            if key == path or (key.startswith(within) and "/" not in key[len(within) :]):
                found[key] = {"name": key, "size": len(content), "type": "file", "ETag": self.store.etag(key)}
            elif key.startswith(within):
                folder = within + key[len(within) :].partition("/")[0]
                found[f"{folder}/"] = {"name": folder, "size": 0, "type": "directory"}  # beside a file of that name
        return [found[name] for name in sorted(found)]

    def _answer(self, status: int, headers: dict[str, str] | None = None, content: bytes = b"", fate: str = "") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        short = content[: len(content) // 2] if fate else content
        self.send_header("Content-Length", str(len(content) if fate == "cut short" else len(short)))
        self.end_headers()
        self.wfile.write(short)
        self.close_connection = True


@contextmanager
def serving() -> Iterator[ObjectStore]:
    """Give a store that answers on loopback until the block ends."""
    store = ObjectStore()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    server.daemon_threads = True
    store.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
