"""Columnar files: Parquet, Arrow, and folders of the ``datasets`` library, as chunks of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from cloison.errors import CloisonError, InputError, StoreError
from cloison.places import Place, Remote, fetched, place, random_access, read, sizes

__all__ = ["arrow_jobs", "dataset_files", "parquet_jobs", "read_arrow", "read_parquet", "rows"]

_ROWS = 256
_CHUNK_BYTES = 1 << 22

_BOMB_VALUES, _BOMB_RATIO = 1 << 24, 1 << 7


def parquet_jobs(path: str) -> list[dict[str, Any]]:
    """Return a job for each row group of a Parquet file."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(random_access(place(path))) as file:
            groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
            counts = [group.num_rows for group in groups]
            _refuse_bombs(path, groups)
    except CloisonError:
        raise
    except Exception as error:  # pyarrow raises many kinds where a file lies
        raise _damaged(path, "Parquet", error) from error
    firsts = [sum(counts[:group]) for group in range(len(counts))]
    return [{"start": group, "stop": group + 1, "first": first} for group, first in enumerate(firsts)]


def read_parquet(path: str, group: int, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a row group."""
    import pyarrow.parquet as pq

    try:
        at = place(path)
        with pq.ParquetFile(random_access(at), pre_buffer=isinstance(at, Remote)) as file:
            kept = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
            for batch in file.iter_batches(_ROWS, row_groups=[group], columns=kept, use_threads=False):
                yield from rows(batch)
    except Exception as error:
        raise _damaged(path, "Parquet", error) from error


def _refuse_bombs(path: str, groups: Sequence[Any]) -> None:
    """Raise where a few bytes would become so many values that no training data packs so well."""
    for number, group in enumerate(groups):
        columns = [group.column(index) for index in range(group.num_columns)]
        values = max((column.num_values for column in columns), default=0)
        size = sum(column.total_compressed_size for column in columns)
        if values > _BOMB_VALUES and values > _BOMB_RATIO * size:
            raise StoreError(
                f"a row group of {path} must not expand beyond {_BOMB_RATIO:,} values a byte.",
                f"Group {number} holds {values:,} values in {size:,} bytes.",
                "Write it anew if it is real; it looks like a bomb.",
            )


def arrow_jobs(path: str) -> list[dict[str, Any]]:
    """Return jobs for the record batches of an Arrow file or stream, several small ones in one job."""
    jobs: list[dict[str, Any]] = []
    start = first = size = count = 0
    for index, batch in enumerate(_batches(path)):
        size += batch.get_total_buffer_size()
        count += batch.num_rows
        if size >= _CHUNK_BYTES:
            jobs.append({"start": start, "stop": index + 1, "first": first})
            start, first, size, count = index + 1, first + count, 0, 0
    if count:
        jobs.append({"start": start, "stop": index + 1, "first": first})
    return jobs


def read_arrow(path: str, start: int, stop: int, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of the record batches [start, stop)."""
    try:
        for index, batch in enumerate(_batches(path)):
            if index >= stop:
                return
            if index >= start:
                kept = batch if columns is None else batch.select([name for name in batch.schema.names if name in columns])
                kept.validate(full=True)  # Arrow follows offsets from a file without a look at where they lead
                for first in range(0, kept.num_rows, _ROWS):
                    yield from rows(kept.slice(first, _ROWS))
    except CloisonError:
        raise
    except Exception as error:
        raise _damaged(path, "Arrow", error) from error


def _batches(path: str) -> Iterator[Any]:
    """Yield the record batches, mapped, so that those that are passed over cost nothing; of a local copy where need be."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(fetched(place(path)))) as file:
            if bytes(file.read(6)) == b"ARROW1":
                reader = pa.ipc.open_file(file)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            else:
                file.seek(0)
                batches = iter(pa.ipc.open_stream(file))
            for batch in batches:
                batch.validate()
                yield batch
    except Exception as error:
        raise _damaged(path, "Arrow", error) from error


def rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch, also of one without columns; lists of numbers stay numpy arrays."""
    import pyarrow as pa

    columns: dict[str, Sequence[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if (
            is_list
            and not column.null_count
            and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))
        ):
            flat = column.flatten()
            if not flat.null_count:
                offsets = column.offsets.to_numpy()
                values = flat.to_numpy(zero_copy_only=False)
                base = offsets[0]
                columns[name] = [values[a - base : b - base] for a, b in pairwise(offsets)]
                continue
        columns[name] = column.to_pylist()
    names = list(columns)
    if not names:
        yield from ({} for _ in range(batch.num_rows))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def dataset_files(folder: Place) -> Sequence[Place] | None:
    """Return the data files of a folder that ``datasets.save_to_disk`` wrote, or None where it is no such folder.

    Raises:
        InputError: a folder of several splits, of which one is to be named.
    """
    there = sizes(folder)
    if there.get("dataset_dict.json", -1) >= 0:
        splits = [str(name) for name in _listed(folder / "dataset_dict.json", "splits")]
        splits = [name for name in splits if Path(name).name == name and there.get(name) == -1]
        if len(splits) != 1:
            raise InputError(
                f"{folder} must be one data set.", f"It has the splits {', '.join(splits) or 'none'}.", f"Pass {folder}/SPLIT."
            )
        return dataset_files(folder / splits[0])
    if min(there.get("state.json", -1), there.get("dataset_info.json", -1)) < 0:
        return None
    listed = [str(one.get("filename")) for one in _listed(folder / "state.json", "_data_files") if isinstance(one, dict)]
    # Names from a file are names, not paths.
    files = [folder / name for name in listed if Path(name).name == name]
    missing = [file for file in files if there.get(file.name, -1) < 0 or (isinstance(file, Path) and file.is_symlink())]
    if missing or len(files) != len(listed):
        raise StoreError(
            f"{folder} must hold the files that state.json names.", f"Missing: {(missing or listed)[0]}.", "Save it again."
        )
    return files


def _listed(file: Place, name: str) -> list[Any]:
    """Return the list ``name`` of a JSON object; none where it has none."""
    try:
        value = json.loads(read(file))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file} must be JSON.", f"It does not parse: {error}.", "Save the data set again.") from error
    found = value.get(name, []) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise StoreError(f"{file} must hold a list {name}.", "It does not.", "Save the data set again.")
    return found


def _damaged(path: str, kind: str, error: Exception) -> StoreError:
    return StoreError(f"{path} must be a whole {kind} file.", f"It does not read: {error}.", "Replace the file.")
