"""Columnar files: Parquet, Arrow, and folders of the ``datasets`` library, as chunks of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from cloison.errors import CloisonError, InputError, StoreError
from cloison.places import Place, Remote, place, random_access, read, sizes
from cloison.text.arrow_files import arrow_batches, damaged

__all__ = ["dataset_files", "group_batches", "parquet_jobs", "read_arrow", "read_parquet", "rows"]

_ROWS = 256

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
        raise damaged(path, "Parquet", error) from error
    firsts = [sum(counts[:group]) for group in range(len(counts))]
    return [{"start": group, "stop": group + 1, "first": first} for group, first in enumerate(firsts)]


def read_parquet(path: str, group: int, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a row group."""
    import pyarrow.parquet as pq

    try:
        at = place(path)
        with pq.ParquetFile(random_access(at), pre_buffer=isinstance(at, Remote)) as file:
            kept = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
            for batch in group_batches(file, [group], kept, _ROWS):
                yield from rows(batch)
    except CloisonError:
        raise
    except Exception as error:
        raise damaged(path, "Parquet", error) from error


def group_batches(file: Any, groups: Sequence[int], columns: Sequence[str] | None, size: int) -> Iterator[Any]:
    """Yield these row groups of an open Parquet file in batches of at most ``size`` rows, and all of them.

    Raises:
        ValueError: a column has another number of rows than its group states; pyarrow ends without a word at the shortest.
    """
    stated = sum(file.metadata.row_group(group).num_rows for group in groups)
    found = 0
    for batch in file.iter_batches(size, row_groups=list(groups), columns=columns, use_threads=False):
        found += batch.num_rows
        yield batch
    if found != stated:
        raise ValueError(f"{stated:,} rows are stated, and {found:,} are there")


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


def read_arrow(path: str, job: Mapping[str, Any], columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of the record batches of a job of `arrow_jobs`."""
    try:
        for batch in arrow_batches(path, job, columns):
            for first in range(0, batch.num_rows, _ROWS):
                yield from rows(batch.slice(first, _ROWS))
    except CloisonError:
        raise
    except Exception as error:  # a name inside of a column that is no text, say
        raise damaged(path, "Arrow", error) from error


def rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch, also of one without columns; lists of numbers stay numpy arrays.

    Values of Arrow's JSON type are parsed: ``datasets`` writes messages that way where their keys differ (tool calls).
    """
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
        values = column.to_pylist()
        columns[name] = [_parsed(value, kind) for value in values] if _holds_json(kind) else values
    names = list(columns)
    if not names:
        yield from ({} for _ in range(batch.num_rows))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def _holds_json(kind: Any) -> bool:
    """Return whether a type is Arrow's JSON, or has it inside."""
    return getattr(kind, "extension_name", "") == "arrow.json" or any(
        _holds_json(kind.field(index).type) for index in range(kind.num_fields)
    )


def _parsed(value: Any, kind: Any) -> Any:
    """Return ``value`` of the type ``kind`` with its JSON parsed; what does not parse stays text, which its reader refuses."""
    import pyarrow as pa

    if getattr(kind, "extension_name", "") == "arrow.json":
        try:
            return json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            return value
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {name: _parsed(item, kind.field(name).type) for name, item in value.items()}
    if isinstance(value, list) and kind.num_fields == 1:
        return [_parsed(item, kind.field(0).type) for item in value]
    return value


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
