"""Where packed rows come from: files and folders, `datasets` objects, blocks, and any iterable of dicts, in bounded pieces."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from cloison.blocks import Block
from cloison.checking.conventions import ALIASES, COLUMNS
from cloison.checking.inspection import Piece
from cloison.checking.ragged import from_arrow, from_rows
from cloison.errors import CloisonError, InputError, StoreError
from cloison.places import Place, Remote, found, size
from cloison.store.files import store_errors
from cloison.text.arrow_files import arrow_batches, arrow_jobs
from cloison.text.columnar import group_batches

__all__ = ["NAMES", "data_files", "pieces", "rows_of_blocks"]

NAMES = (*COLUMNS, *ALIASES)
"""Every column name that is read."""

MDS_INDEX = "index.json"
_PIECE_TOKENS = 1 << 19
_PIECE_ROWS = 1 << 14
_LONGEST_LINE_BYTES = 1 << 28

_SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc", ".jsonl", ".ndjson", ".json")
_PACKINGS = (".gz", ".zst", ".bz2", ".lz4")


def data_files(path: Place) -> Sequence[Place]:
    """Return the data files of ``path``: itself, or those in the folder, in the order of their names.

    Raises:
        StoreError: there is nothing there, or nothing that `check` reads.
    """
    if isinstance(path, Remote):
        return _remote_files(path)
    if not path.exists():
        raise StoreError(f"{path} must be packed data, a folder or a file.", "There is no such path.", "Check the path.")
    if path.is_file():
        return [path]
    if (path / MDS_INDEX).is_file():
        return [path / MDS_INDEX]
    return _rows_among(path, _files_below(path))


def _files_below(folder: Path) -> list[Path]:
    """Return the files below ``folder`` by path; a folder in it that cannot be listed is an error, and not passed over."""

    def refuse(error: OSError) -> None:
        raise error

    with store_errors(f"{folder} cannot be read"):
        found = [Path(here, name) for here, _, names in os.walk(folder, onerror=refuse) for name in names]
    return sorted(file for file in found if file.is_file())


def _remote_files(path: Remote) -> Sequence[Place]:
    if size(path) is not None:
        return [path]
    files = [Remote(url) for url in found(path.url)]
    if not files:
        raise StoreError(f"{path} must be packed data, a folder or a file.", "There is nothing.", "Check the URL.")
    if any(file.name == MDS_INDEX and file.parent == path for file in files):
        raise StoreError(f"{path} must be on disk.", "It is MDS, which is read there only.", "Copy it, and check the copy.")
    return _rows_among(path, files)


def _rows_among(path: Place, files: Sequence[Place]) -> Sequence[Place]:
    kept = [file for file in files if _kind(file) and not file.name.startswith((".", "_"))]
    # What lies beside the data in a folder that `datasets` or Megatron-Bridge wrote is no data.
    kept = [file for file in kept if not file.name.endswith((".json", "_metadata.jsonl"))] or kept
    if not kept:
        raise StoreError(
            f"{path} must hold packed rows.",
            "There is no Parquet, Arrow or JSON file in it.",
            "Name the file, or another folder.",
        )
    return kept


def _kind(path: Place) -> str:
    name = path.name.lower()
    for packing in _PACKINGS:
        name = name.removesuffix(packing)
    return next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")


def pieces(data: Any) -> Iterator[Piece]:
    """Yield the rows of ``data`` in pieces of about half a million tokens: a file, a `datasets` object, or dicts or blocks.

    Raises:
        StoreError: a file that cannot be read or is damaged.
        InputError: rows that are no packed rows.
    """
    if isinstance(data, (str, Path)):
        path = Path(data)
        yield from _mds_pieces(path.parent) if path.name == MDS_INDEX else _file_pieces(path)
    elif hasattr(data, "with_format") and hasattr(data, "num_rows") and isinstance(data.num_rows, int):
        yield from _dataset_pieces(data)
    elif hasattr(data, "to_batches") and hasattr(data, "schema"):
        yield from _batches(data.to_batches(max_chunksize=_rows_a_piece(data)), None)
    elif isinstance(data, Mapping):
        raise InputError(
            "check takes rows, or a path.", "It got one dict.", "Use cloison.check_batch for a batch, or pass a list of rows."
        )
    elif isinstance(data, Iterable):
        yield from _row_pieces(iter(data), None)
    else:
        raise InputError(
            "check takes a path, a dataset, or an iterable of rows.",
            f"It got {type(data).__name__}.",
            "Pass dicts with input_ids and what states the boundaries.",
        )


def rows_of_blocks(block: Block) -> dict[str, Any]:
    """Return a block as the row that it is on disk."""
    row = {
        "input_ids": block.input_ids,
        "labels": block.labels,
        "seq_lengths": block.segments.seq_lengths,
        "sample_ids": block.sample_ids,
        "starts": block.starts,
    }
    return row | ({} if block.loss_weights is None else {"loss_weights": block.loss_weights})


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except CloisonError:
        raise
    except Exception as error:  # pyarrow raises many kinds where a file lies
        raise StoreError(
            f"{path} must be readable.",
            f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}.",
            "Restore or write it again.",
        ) from error


def _file_pieces(path: Path) -> Iterator[Piece]:
    import pyarrow as pa

    kind, name = _kind(path), path.name
    with _readable(path):
        if kind == ".parquet":
            yield from _parquet_pieces(path)
        elif kind in (".arrow", ".feather", ".ipc"):
            yield from _batches((batch for job in arrow_jobs(str(path)) for batch in arrow_batches(str(path), job)), name)
        elif kind in (".jsonl", ".ndjson"):
            with pa.input_stream(str(path), compression="detect") as stream:
                yield from _row_pieces(_json_lines(stream, path), name)
        elif kind == ".json":
            with pa.input_stream(str(path), compression="detect") as stream:
                listed = json.loads(stream.read().decode("utf-8"))
            if not isinstance(listed, list):
                raise StoreError(
                    f"{path} must be a JSON array of rows.", f"It holds a {type(listed).__name__}.", "Write JSON lines."
                )
            yield from _row_pieces(iter(listed), name)
        else:
            remedy = (
                "Object arrays are pickles and are not read; convert them to Parquet."
                if path.suffix == ".npy"
                else "Convert it."
            )
            raise StoreError(f"{path} must be Parquet, Arrow or JSON.", f"Its name ends in {path.suffix or 'nothing'}.", remedy)


def _mds_pieces(folder: Path) -> Iterator[Piece]:
    from cloison.formats.mds import read

    first = 0
    for columns in read(folder, NAMES):
        yield Piece(columns, first)
        first += max((column.num_rows for column in columns.values()), default=0)


def _parquet_pieces(path: Path) -> Iterator[Piece]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = [name for name in NAMES if name in file.schema_arrow.names]
        if not names:
            # The reader of columns says what is missing.
            yield Piece({name: from_rows([{name: [0]}], [name])[name] for name in file.schema_arrow.names[:8]}, 0, path.name)
            return
        rows = file.metadata.num_rows
        entries = sum(
            file.metadata.row_group(group).column(column).num_values
            for group in range(file.metadata.num_row_groups)
            for column in range(file.metadata.num_columns)
            if file.metadata.row_group(group).column(column).path_in_schema.split(".")[0] in ("input_ids", "tokens", "inputs")
        )
        size = max(1, min(_PIECE_ROWS, _PIECE_TOKENS * rows // max(1, entries)))
        yield from _batches(group_batches(file, range(file.metadata.num_row_groups), names, size), path.name)


def _batches(batches: Iterable[Any], file: str | None) -> Iterator[Piece]:
    first = 0
    for batch in batches:
        index = next((i for i, field in enumerate(batch.schema) if field.name in ("input_ids", "tokens", "inputs")), None)
        size = _rows_a_piece(batch) if index is not None else max(1, batch.num_rows)
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            columns = from_arrow(part, NAMES, first)
            yield Piece(
                columns or {name: from_rows([{name: [0]}], [name])[name] for name in batch.schema.names[:8]}, first, file
            )
            first += part.num_rows


def _rows_a_piece(table: Any) -> int:
    """Rows of an Arrow batch or table that make about `_PIECE_TOKENS`, judged by its bytes (ids and labels of 4 or 8 bytes)."""
    if table.num_rows == 0:
        return 1
    row_bytes = max(1, table.nbytes // table.num_rows)
    return int(max(1, min(_PIECE_ROWS, 12 * _PIECE_TOKENS // row_bytes)))


def _dataset_pieces(dataset: Any) -> Iterator[Piece]:
    names = [name for name in dataset.column_names if name in NAMES]
    if not names:
        raise InputError(
            "packed rows need input_ids.", f"The columns are {', '.join(dataset.column_names)}.", "Pass the packed data set."
        )
    arrow = dataset.select_columns(names).with_format("arrow")
    first = 0
    for start in range(0, len(arrow), 1024):
        table = arrow[start : start + 1024].combine_chunks()
        for batch in table.to_batches(max_chunksize=_rows_a_piece(table)):
            yield Piece(from_arrow(batch, NAMES, first), first)
            first += batch.num_rows


def _json_lines(stream: Any, path: Path) -> Iterator[Any]:
    buffered = b""
    number = 0
    while True:
        part = stream.read(1 << 20)
        buffered += part
        lines = buffered.split(b"\n")
        buffered = lines.pop() if part else b""
        for line in lines:
            number += 1
            if line.strip():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise StoreError(f"{path}, line {number} must be JSON.", f"{error}.", "Mend or drop the line.") from error
        if len(buffered) > _LONGEST_LINE_BYTES:
            raise StoreError(
                f"{path}, line {number + 1} must be shorter.",
                f"It is over {_LONGEST_LINE_BYTES >> 20} MiB.",
                "Write one row a line.",
            )
        if not part:
            return


def _row_pieces(rows: Iterator[Any], file: str | None) -> Iterator[Piece]:
    first, tokens = 0, 0
    held: list[Mapping[str, Any]] = []
    while chunk := list(islice(rows, 64)):
        for row in chunk:
            plain = rows_of_blocks(row) if isinstance(row, Block) else row
            if not isinstance(plain, Mapping):
                raise InputError(
                    "every row must be a dict of columns.",
                    f"Row {first + len(held)} is a {type(row).__name__}.",
                    "Pass dicts, or blocks.",
                )
            held.append(plain)
            ids = plain.get("input_ids", plain.get("tokens", plain.get("inputs", ())))
            tokens += len(ids) if hasattr(ids, "__len__") else 1
            if tokens >= _PIECE_TOKENS or len(held) >= _PIECE_ROWS:
                yield _piece(held, first, file)
                first, tokens, held = first + len(held), 0, []
    if held:
        yield _piece(held, first, file)


def _piece(rows: list[Mapping[str, Any]], first: int, file: str | None) -> Piece:
    columns = from_rows(rows, NAMES, first)
    return Piece(columns or {str(name): from_rows([{name: [0]}], [name])[name] for name in list(rows[0])[:8]}, first, file)
