"""Finding the files of a source: folders, globs and data sets, on disk and by URL, and standard input, which becomes a file."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cloison.errors import CloisonError, InputError, StoreError
from cloison.places import Place, Remote, found, place, put, scratch, size
from cloison.text.columnar import dataset_files

__all__ = ["KINDS", "Spool", "kind_of", "paths_of"]

Spool = str | os.PathLike[str] | Remote | None
"""The folder for a copy of standard input."""

KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
    ".py": "text",
}
"""What a file is by its suffix; whether a ``.json`` is lines or an array, its first character tells."""


_KEY = re.compile(r"[0-9a-f]{64}")
"""The name of a token store's folder."""


def paths_of(source: str, spool: Spool, skipped: list[str]) -> list[str]:
    """Return the paths or URLs of the files of ``source``; what is passed over, and why, goes to ``skipped``.

    Raises:
        InputError: there is nothing of that name.
        StoreError: it cannot be read.
    """
    if source == "-":
        return [_spooled(sys.stdin.buffer, spool)]
    path = place(source)
    if isinstance(path, Remote):
        return _remote_paths(path, skipped)
    with _rights(source):
        if path.is_dir():
            listed = dataset_files(path)
            return [str(file) for file in listed] if listed is not None else _walk(path, skipped)
        if path.exists():
            return [str(path)]
        matched = _matched(source) if glob.has_magic(source) else []
        if not matched:
            raise _no_such(source)
        skipped += [f"{one} ({made})" for one in matched if (made := _made_by_us(one))]
        found = [(_walk(Path(one), skipped) if os.path.isdir(one) else [one]) for one in matched if not _made_by_us(one)]
        return [file for files in found for file in files if kind_of(file)[0]]


@contextmanager
def _rights(source: str) -> Iterator[None]:
    """Turn what the system says while a source is listed into an error that names the folder: none is passed over for it."""
    try:
        yield
    except CloisonError:
        raise
    except OSError as error:
        raise StoreError(
            f"the source {source!r} must be readable.",
            f"{error.filename or source}: {error.strerror or error}.",
            "Give this user the right to it, or name what is to be read.",
        ) from error


def _matched(pattern: str) -> list[str]:
    """Return what a glob matches, by path.

    Raises:
        OSError: a folder in which it looks cannot be listed; Python's glob passes over such.
    """
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            above = os.path.join("", *parts[:number])
            for folder in glob.glob(above, recursive=True) if glob.has_magic(above) else [above or "."]:
                if part == "**":
                    deque(os.walk(folder, onerror=_raised), 0)
                elif os.path.isdir(folder):
                    os.scandir(folder).close()
    return sorted(glob.glob(pattern, recursive=True))


def _remote_paths(source: Remote, skipped: list[str]) -> list[str]:
    if size(source) is not None:
        return [source.url]
    listed = dataset_files(source)
    if listed is not None:
        return [str(file) for file in listed]
    urls = found(source.url)
    if not urls:
        raise _no_such(source.url)
    ours = _folders_of_ours(urls, source.url)
    skipped += [f"{folder} (written by cloison)" for folder in ours]
    urls = [url for url in urls if not url.startswith(tuple(f"{folder}/" for folder in ours)) and not _hidden(url, source.url)]
    skipped += [f"{url} (of no known kind)" for url in urls if not kind_of(url)[0]]
    return [url for url in urls if kind_of(url)[0]]


def _folders_of_ours(urls: Sequence[str], source: str) -> list[str]:
    """Return the folders of ``urls``, found for ``source``, that cloison wrote: an output below a source is no source of the
    next run."""
    held: dict[str, set[str]] = {}
    for url in urls:
        folder, _, name = url.rpartition("/")
        held.setdefault(folder, set()).add(re.sub(r"[0-9]{5,}", "N", name))
        if folder.endswith("/.work"):
            held.setdefault(folder.removesuffix("/.work"), set()).add(".work")
    tokens, blocks = {"chunk-N.arrow", "chunk-N.json"}, "blocks-N.parquet"
    keys = set(filter(_KEY.fullmatch, {part for url in urls for part in url.split("/")})) - set(source.split("/"))
    stores = {url[: url.index(key) + len(key)] for key in keys for url in urls if f"/{key}/" in url}
    ours = {at for at, names in held.items() if tokens <= names or (blocks in names and names & {"manifest.json", ".work"})}
    return sorted(ours | stores)


def _hidden(url: str, above: str) -> bool:
    """Return whether a part of the path below the folder ``above`` is hidden, as such names are on disk."""
    below = url.removeprefix(above)
    return below != url and any(part.startswith((".", "__pycache__")) for part in below.strip("/").split("/"))


def _no_such(source: str) -> InputError:
    return InputError(f"the source {source!r} must be a file, folder or glob.", "There is no such path.", "Check the path.")


def _walk(folder: Path, skipped: list[str]) -> list[str]:
    """Return the files of known kinds below ``folder`` by path; what is passed over goes to ``skipped``."""
    root = folder.resolve()
    kept: list[str] = []
    for here, folders, files in os.walk(folder, onerror=_raised, followlinks=False):
        for name in folders:
            if os.path.islink(os.path.join(here, name)):
                skipped.append(f"{os.path.join(here, name)} (a link to a folder)")
            elif made := _made_by_us(os.path.join(here, name)):
                skipped.append(f"{os.path.join(here, name)} ({made})")
        folders[:] = sorted(
            name for name in folders if not name.startswith((".", "__pycache__")) and not _made_by_us(os.path.join(here, name))
        )
        for name in files:
            path = os.path.join(here, name)
            if name.startswith("."):
                continue
            if not kind_of(path)[0]:
                skipped.append(f"{path} (of no known kind)")
            elif not Path(path).resolve().is_relative_to(root):
                skipped.append(f"{path} (a link that leads out of the folder)")
            elif not os.path.isfile(path):
                skipped.append(f"{path} (no ordinary file)")
            else:
                kept.append(path)
    skipped.sort()
    return sorted(kept, key=lambda path: Path(path).parts)


def _raised(error: OSError) -> None:
    raise error


def _made_by_us(folder: str) -> str:
    """Return what ``folder`` is where cloison wrote it: an output below a source folder is no source of the next run."""
    if _KEY.fullmatch(os.path.basename(folder)):  # from its first moment on, in which there is little in it
        return "a token store"

    def holds(name: str) -> bool:
        return bool(glob.glob(os.path.join(glob.escape(folder), name)))

    if holds("chunk-*.arrow") and holds("chunk-*.json"):
        return "a token store"
    return "a packed data set" if holds("blocks-*.parquet") and (holds("manifest.json") or holds(".work")) else ""


def kind_of(path: str) -> tuple[str, str]:
    """Return what ``path`` is by its name, and what compresses it."""
    stem, suffix = os.path.splitext(path.lower())
    codec = {".gz": "gz", ".zst": "zst"}.get(suffix, "")
    return KINDS.get(os.path.splitext(stem)[1] if codec else suffix, ""), codec


def _spooled(stream: BinaryIO, spool: Spool) -> str:
    """Write ``stream`` to a file in ``spool`` that is named by its hash, hidden since it is no source; return its path."""
    if spool is None:
        raise InputError("standard input needs a folder for its copy.", "None is given.", "Pass spool=FOLDER.")
    home = place(spool)
    folder = scratch(home)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"stdin.{os.getpid()}.part"
    digest = hashlib.sha256()
    head = b""
    try:
        with open(partial, "wb") as file:
            while piece := stream.read(1 << 20):
                head = head or piece[:8]
                digest.update(piece)
                file.write(piece)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StoreError(
            f"standard input must fit into {folder}.", f"It does not: {error}.", "Give a folder with room."
        ) from error
    if not head:
        partial.unlink()
        raise InputError(
            "standard input must hold records.",
            "It is empty.",
            "Look at what should have written to it, which may have failed.",
        )
    suffix = ".json.gz" if head.startswith(b"\x1f\x8b") else ".json.zst" if head.startswith(b"\x28\xb5\x2f\xfd") else ".json"
    suffix = ".parquet" if head.startswith(b"PAR1") else suffix
    final: Place = home / f".stdin-{digest.hexdigest()[:32]}{suffix}"
    if size(final) is not None:
        partial.unlink()  # the same input, spooled before: its time stays, and a run can go on
    elif isinstance(final, Path):
        os.replace(partial, final)
    else:
        put(partial, final)
        partial.unlink()
    return str(final)
