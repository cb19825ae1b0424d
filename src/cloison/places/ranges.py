"""Files read in ranges: what seeks and reads, over places that answer requests for stretches of bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cloison.places.ordinary import open_ordinary
from cloison.places.remote import Place, Remote, filesystem, tried
from cloison.places.verbs import stamp

__all__ = ["RangedFile", "hold", "opened", "random_access"]

_HOLE_BYTES = 1 << 13
"""Stretches with no more than this between them are one request: what pyarrow has too, which joins them the same way."""


class RangedFile(io.RawIOBase):
    """A remote file that seeks: every read is one request, unless `hold` has its bytes already.

    Args:
        at: the file.
        size: its bytes; None asks the store.
    """

    def __init__(self, at: Remote, size: int | None = None) -> None:
        super().__init__()
        self.at = at
        self.size = stamp(at)[0] if size is None else size
        self._place = 0
        self._held: dict[int, bytes] = {}

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place in the file, in bytes."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to ``offset`` from the beginning, from here, or from the end."""
        self._place = offset + (0, self._place, self.size)[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes (-1: all that are left); fewer only at the end."""
        left = max(0, self.size - self._place)
        wanted = left if size is None or size < 0 else min(size, left)
        found = self._bytes(self._place, self._place + wanted) if wanted else b""
        self._place += wanted
        return found

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` and return how many bytes there were."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def keep(self, start: int, content: bytes) -> None:
        """Answer reads inside ``content``, which begins at ``start``, without a request, until `release`."""
        self._held[start] = content

    def release(self) -> None:
        """Forget what is kept."""
        self._held.clear()

    def _bytes(self, start: int, stop: int) -> bytes:
        for begin, content in self._held.items():
            if begin <= start and stop <= begin + len(content):
                return content[start - begin : stop - begin]

        def request(system: Any, path: str) -> bytes:
            found = bytes(system.cat_file(path, start=start, end=stop))
            if len(found) != stop - start:
                raise ConnectionError(f"{len(found):,} of {stop - start:,} bytes arrived")
            return found

        return tried("read", self.at, request)


def hold(wanted: Iterable[tuple[RangedFile, int, int]]) -> None:
    """Ask for all the stretches (file, start, stop) at once, as far as the file system can, and keep what comes.

    What does not come is no error here: the read that needs it asks again. All files are of one file system.
    """
    asked = _joined(wanted)
    if not asked:
        return

    def request(system: Any, path: str) -> list[Any]:
        paths = [filesystem(file.at)[1] for file, _, _ in asked]
        starts, stops = [start for _, start, _ in asked], [stop for _, _, stop in asked]
        return list(system.cat_ranges(paths, starts, stops, on_error="return"))

    for (file, start, stop), content in zip(asked, tried("read", asked[0][0].at, request), strict=True):
        if isinstance(content, bytes) and len(content) == stop - start:
            file.keep(start, content)


def _joined(wanted: Iterable[tuple[RangedFile, int, int]]) -> list[tuple[RangedFile, int, int]]:
    """Return the stretches, those of a file that lie close together as one: fewer requests, as pyarrow makes them too."""
    out: list[tuple[RangedFile, int, int]] = []
    for file, start, stop in wanted:
        if out and out[-1][0] is file and 0 <= start - out[-1][2] <= _HOLE_BYTES:
            out[-1] = (file, out[-1][1], stop)
        else:
            out.append((file, start, stop))
    return out


def opened(at: Place, buffer_bytes: int = 1 << 20) -> io.BufferedReader:
    """Return the file opened for reading bytes, and for seeking; elsewhere than on disk each ``buffer_bytes`` are a request.

    Raises:
        FileNotFoundError: there is no file.
        StoreError: it is no ordinary one.
    """
    if isinstance(at, Path):
        return open_ordinary(at)
    return io.BufferedReader(RangedFile(at), buffer_bytes)


def random_access(at: Place, size: int | None = None) -> Any:
    """Return what pyarrow takes for reading at random: the path of a local file, or a `RangedFile`."""
    return str(at) if isinstance(at, Path) else RangedFile(at, size)
