"""An Arrow file whose types widen while it is written: one that is empty for a million samples may hold text after them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from cloison.errors import RecordError

__all__ = ["CARRY", "write_batches"]

CARRY = "carry:"
"""Before the names of carried columns, the only ones whose types come from the data."""


def write_batches(part: Path, batches: Iterable[pa.RecordBatch]) -> pa.Schema:
    """Write ``batches`` to ``part`` as an Arrow IPC file, and return its schema: each column in the narrowest type for all.

    Raises:
        RecordError: a column whose values do not go together, as numbers and text.

    Cost: a batch in memory. Where a type widens, what was written before is written again; that happens a few times at most.
    """
    layout: pa.Schema | None = None
    sink: Any = pa.OSFile(str(part), "wb")
    writer: Any = None
    try:
        for batch in batches:
            if layout is None:
                layout = batch.schema
                writer = pa.ipc.new_file(sink, layout)
            elif batch.schema != layout:
                wider = _wider(layout, batch.schema)
                if wider != layout:
                    writer.close()
                    sink.close()
                    sink, writer = _written_again(part, wider)
                    layout = wider
                batch = _cast(batch, layout)
            writer.write_batch(batch)
        if layout is None:
            layout = pa.schema([])
            writer = pa.ipc.new_file(sink, layout)
        writer.close()
    finally:
        sink.close()
    return layout


def _written_again(part: Path, layout: pa.Schema) -> tuple[Any, Any]:
    """Write what is in ``part`` again under ``layout``; return the open file and its writer."""
    older = part.with_name(f"narrow-{part.name}")
    os.replace(part, older)
    sink = pa.OSFile(str(part), "wb")
    try:
        writer = pa.ipc.new_file(sink, layout)
        with pa.memory_map(str(older)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                writer.write_batch(_cast(reader.get_batch(number), layout))
    except BaseException:
        sink.close()
        raise
    finally:
        older.unlink()
    return sink, writer


def _wider(layout: pa.Schema, other: pa.Schema) -> pa.Schema:
    try:
        return pa.unify_schemas([layout, other], promote_options="permissive")
    except pa.ArrowException as error:
        raise _differ(layout, other) from error


def _cast(batch: pa.RecordBatch, layout: pa.Schema) -> pa.RecordBatch:
    try:
        return batch.cast(layout)
    except pa.ArrowException as error:
        raise _differ(layout, batch.schema) from error


def _differ(layout: pa.Schema, other: pa.Schema) -> RecordError:
    names = [name for name in layout.names if other.field(name).type != layout.field(name).type]
    kinds = "; ".join(f"{other.field(name).type} after {layout.field(name).type}" for name in names)
    return RecordError(
        f"carried columns must have values of one kind: {', '.join(name.removeprefix(CARRY) for name in names)}.",
        f"One file holds {kinds}.",
        "Make them alike, or do not carry the column.",
    )
