"""A file system for tests that speaks to `tests.places.server` and has what stores of objects have, and nothing more.

No rename, no copy, no append, no folders, no open files: ranges, listings, whole puts, deletes. The folder that holds this file
is a distribution, so that every process with it on its path knows ``loopback://``, as one knows ``s3://`` by s3fs.
"""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

from fsspec.spec import AbstractFileSystem


class LoopbackFileSystem(AbstractFileSystem):
    """Objects behind ``endpoint``, which fsspec's own configuration gives."""

    protocol = "loopback"
    root_marker = ""

    def __init__(self, endpoint: str, **options: Any) -> None:
        super().__init__(**options)
        self.address = urlsplit(endpoint).netloc

    def _ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status == 404:
            raise FileNotFoundError(path)
        if answer.status == 412:
            raise FileExistsError(path)
        if answer.status >= 400:
            raise OSError(f"{answer.status} {answer.reason}")
        return dict(answer.headers), content

    def _object(self, path: str) -> str:
        return "/" + quote(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """List what begins with ``path``, up to the next slash."""
        path = self._strip_protocol(path)
        _, content = self._ask("GET", "/?list=" + quote(path, safe=""))
        found = json.loads(content)
        if not found:
            raise FileNotFoundError(path)
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Tell of an object, or of what is taken for a folder."""
        path = self._strip_protocol(path)
        try:
            headers, _ = self._ask("HEAD", self._object(path))
        except FileNotFoundError:
            if any(one["name"] != path for one in self.ls(path)):
                return {"name": path, "size": 0, "type": "directory"}
            raise
        return {"name": path, "size": int(headers["X-Size"]), "type": "file", "ETag": headers["ETag"]}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Read an object, or a stretch of it."""
        if start is None and end is None:
            return self._ask("GET", self._object(path))[1]
        return self._ask("GET", self._object(path), Range=f"bytes={start}-{end - 1}")[1]

    def cat_ranges(self, paths: list[str], starts: list[int], ends: list[int], **options: Any) -> list[Any]:
        """Read stretches of objects, many at once, as file systems of real stores do; an error in its place."""

        def one(path: str, start: int, end: int) -> Any:
            try:
                return self.cat_file(path, start, end)
            except Exception as error:
                return error

        with ThreadPoolExecutor(32) as pool:
            return list(pool.map(one, paths, starts, ends))

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        """Copy an object to the local disk."""
        with open(lpath, "wb") as file:
            file.write(self.cat_file(rpath))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        """Put a local file as an object."""
        with open(lpath, "rb") as file:
            self._ask("PUT", self._object(rpath), file.read())

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Put bytes as an object; with ``mode="create"`` only where none is."""
        self._ask("PUT", self._object(path), value, **({"If_None_Match": "*"} if mode == "create" else {}))

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        self._ask("DELETE", self._object(path))

    def _no(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("a store of objects has no such request")

    _open = mv = mv_file = move = rename = copy = cp_file = mkdir = makedirs = touch = _no
