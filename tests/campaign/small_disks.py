"""File systems for campaigns: one that is full after so many bytes, and one on which some files cannot be read.

Both are real (tmpfs; ext4 on a loop device whose backing file is cut), and need root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Failing", "can_mount", "failing_disk", "full_disk", "resize"]

_FREE = 1 << 20
"""Bytes of a disk beyond its content, for the file system itself."""


def can_mount(*programs: str) -> bool:
    """Return whether this process may mount, and ``programs`` are there."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not all(shutil.which(name) for name in ("mount", *programs)):
        return False
    return subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0


@contextmanager
def full_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a tmpfs of ``size`` bytes at ``folder``."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "cloison-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def resize(folder: Path, size: int) -> None:
    """Give the tmpfs at ``folder`` another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@dataclass(frozen=True)
class Failing:
    """A disk whose end can be made to fail.

    Attributes:
        folder: where it is mounted, read-only.
        image: its backing file.
        whole: a copy of that.
    """

    folder: Path
    image: Path
    whole: Path

    def fail(self, name: str) -> list[Path]:
        """Make the file ``name`` and what lies behind it fail, and return the files that cannot be read any more (EIO)."""
        first = _first_byte(self.folder / name)
        self._forget()
        os.truncate(self.image, first)
        return [path for path in sorted(self.folder.iterdir()) if path.is_file() and not _readable(path)]

    def mend(self) -> None:
        """Make the disk whole again."""
        with self.whole.open("rb") as source, self.image.open("r+b") as target:
            shutil.copyfileobj(source, target)
        self._forget()

    def _forget(self) -> None:
        """Let no page be remembered, so that reading means reading the disk."""
        subprocess.run(["mount", "-o", "remount", str(self.folder)], check=True)
        for path in self.folder.rglob("*"):
            if path.is_file():
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(handle)


@contextmanager
def failing_disk(scratch: Path, content: Path) -> Iterator[Failing]:
    """Mount an ext4 with a copy of ``content``, spread over it, read-only."""
    image, whole, folder = scratch / "disk.img", scratch / "disk.whole", scratch / "disk"
    folder.mkdir()
    size = sum(path.stat().st_size for path in content.rglob("*") if path.is_file())
    with image.open("wb") as file:
        file.truncate(size + _FREE)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(content), str(image)], check=True)
    shutil.copyfile(image, whole)
    subprocess.run(["mount", "-o", "loop,ro", str(image), str(folder)], check=True)
    try:
        yield Failing(folder, image, whole)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        for path in (image, whole):
            path.unlink()


def _first_byte(path: Path) -> int:
    """Return where on its device the content of ``path`` begins (FIGETBSZ and FIBMAP of linux/fs.h)."""
    with path.open("rb") as file:
        size, block = (struct.unpack("i", fcntl.ioctl(file, request, struct.pack("i", 0)))[0] for request in (2, 1))
    return int(size * block)


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
