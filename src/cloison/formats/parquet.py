"""Parquet files of lists, as exports write them: tokens as they are, what counts or flags them compressed.

Token ids hardly compress at the speed of a disk (LZ4 and Snappy save half and take three times as long), and readers that
take rows in random order would decompress a row group for each. Masks, numbers and positions shrink to a few percent, which
is written faster than they are. No value is null, and the schema says so: nothing is written, or read, that says it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from cloison.places import Place
from cloison.store.files import replacing

__all__ = ["list_column", "list_schema", "rows_per_group", "writing"]

_GROUP_TOKENS = 1 << 17


def rows_per_group(capacity: int) -> int:
    """Return how many rows of ``capacity`` tokens a row group has: what a reader decodes to give one."""
    return max(1, _GROUP_TOKENS // capacity)


def list_schema(columns: Mapping[str, str]) -> Any:
    """Return the Arrow schema of lists of these types (``{"input_ids": "int32"}``), nothing of which is null."""
    import pyarrow as pa

    fields = []
    for name, kind in columns.items():
        entry = pa.field("element", pa.type_for_alias(kind), nullable=False)
        fields.append(pa.field(name, pa.list_(entry), nullable=False))
    return pa.schema(fields)


def list_column(ends: npt.NDArray[np.int64], values: npt.NDArray[Any], kind: Any) -> Any:
    """Return flat ``values`` as an Arrow array of the list type ``kind``, cut at ``ends`` [rows + 1], from 0; nothing is
    copied."""
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(values), type=kind)


@contextmanager
def writing(path: Place, layout: Any, plain: tuple[str, ...]) -> Iterator[Any]:
    """Give a ParquetWriter; when the block ends well the file is at ``path``, whole. ``plain`` columns are not compressed."""
    import pyarrow.parquet as pq

    codecs = {f"{name}.list.element": "NONE" if name in plain else "LZ4" for name in layout.names}
    with (
        replacing(path) as part,
        pq.ParquetWriter(part, layout, compression=codecs, use_dictionary=False, write_statistics=False) as writer,
    ):
        yield writer
