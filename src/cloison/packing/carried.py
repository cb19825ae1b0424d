"""Carried columns: over all chunks of a store, whether each goes with tokens or with samples, and its type."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cloison.errors import RecordError
from cloison.store.tokens import TokenStore
from cloison.store.widening import CARRY

__all__ = ["carried_columns"]


def carried_columns(store: TokenStore, names: Sequence[str]) -> tuple[dict[str, str], pa.Schema]:
    """Return {name: "token" or "segment"} and the types of one entry, of the columns ``names``.

    A column goes with tokens when every value, of every sample, is a list with one entry a token; only those are ever cut.

    Raises:
        RecordError: a column is nowhere in the sources, or has types that do not go together.
    """
    kinds: dict[str, str] = {}
    types = []
    for name in names:
        found = []
        for chunk in store.chunks:
            layout = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(chunk["schema"])))
            if CARRY + name in layout.names:
                found.append(pa.schema([pa.field(name, layout.field(CARRY + name).type)]))
        try:
            merged = pa.unify_schemas(found, promote_options="permissive").field(name).type if found else pa.null()
        except pa.ArrowException as error:
            raise RecordError(
                f"the carried column {name!r} must have values of one kind.",
                f"Parts of the sources differ: {', '.join(sorted({str(one.field(name).type) for one in found}))}.",
                "Make them alike, or do not carry the column.",
            ) from error
        if pa.types.is_null(merged):
            raise RecordError(
                f"the carried column {name!r} must be in the sources.",
                "No record has a value for it.",
                "Check carry's spelling.",
            )
        if _has_empty_struct(merged):
            raise RecordError(
                f"the carried column {name!r} must have a type that Parquet can hold.",
                f"It is {merged}: objects without a field.",
                "Put a field into them, or do not carry the column.",
            )
        per_token = pa.types.is_list(merged) and all(chunk["per_token"].get(name, True) for chunk in store.chunks)
        kinds[name] = "token" if per_token else "segment"
        types.append(pa.field(name, merged.value_type if per_token else merged))
    return kinds, pa.schema(types)


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Return whether ``kind`` is, or holds, objects without a field."""
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not parts) or any(_has_empty_struct(part) for part in parts)
