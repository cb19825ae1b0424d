"""TRL: pre-packed Parquet rows for SFTTrainer. Read from TRL 1.16 and tested with it.

Columns ``input_ids``, ``labels`` (index of input_ids, -100 where not a target; not shifted) and ``seq_lengths``
(list<int32>): those of a packed data set's own files. So its files are copied, byte for byte, once their hash is seen to be
right, and nothing is decoded; the ``sample_ids`` that come along are no column of the trainer's, which passes over it. Where
there are more columns they are left out, and the files written again with the data set's own compression.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cloison.errors import ChangedError
from cloison.formats.flat import TARGETED, each_shard
from cloison.places import Place, opened, random_access
from cloison.store.files import file_sha256, replacing, store_errors
from cloison.store.packed import Packed
from cloison.store.shards import Shard

__all__ = ["USAGE", "write"]

USAGE = (
    'SFTTrainer(train_dataset=datasets.load_dataset("parquet", data_files="{dest}/*.parquet", split="train"), '
    "args=SFTConfig(padding_free=True, packing=False, max_length=None, "
    'dataset_kwargs={{"skip_prepare_dataset": True}}, ...)), without a collator of your own'
)

_KEPT = (*TARGETED, "sample_ids")
_COPIED_BYTES = 1 << 20


def write(packed: Packed, folder: Path, home: Place, pad_token_id: int) -> list[str]:
    """Write one Parquet file for each of the data set's, with the columns that TRL reads, and ``sample_ids``."""
    import pyarrow.parquet as pq

    def one(index: int, shard: Shard) -> str:
        name = f"train-{index:05d}.parquet"
        source = packed.path / shard.name
        with store_errors(f"{source} cannot be read", damage="Restore the file, or pack again."):
            names = pq.read_schema(random_access(source, shard.size_bytes)).names
        with replacing(folder / name) as part:
            if set(names) == set(_KEPT):
                _copy(packed.path, shard, part)
            else:
                _refuse_changed(packed.path, shard, file_sha256(source))
                with store_errors(f"{source} cannot be read", damage="Restore the file, or pack again."):
                    _without(random_access(source, shard.size_bytes), part)
        return name

    return each_shard(packed, one)


def _copy(folder: Place, shard: Shard, part: Path) -> None:
    """Copy a file of the data set, and make sure that it is the one that was packed."""
    found = hashlib.sha256()
    with opened(folder / shard.name, _COPIED_BYTES) as source, part.open("wb") as copy:
        while content := source.read(_COPIED_BYTES):
            found.update(content)
            copy.write(content)
    _refuse_changed(folder, shard, found.hexdigest())


def _refuse_changed(folder: Place, shard: Shard, found: str) -> None:
    if found != shard.sha256:
        raise ChangedError(
            f"{folder / shard.name} must have the sha256 {shard.sha256[:16]}...",
            f"It is {found[:16]}...: the file changed after packing.",
            "Pack again into an empty folder, or restore the file.",
        )


def _without(source: Any, part: Any) -> None:
    """Write the file ``source`` again at ``part`` without the columns that TRL does not take."""
    import pyarrow.parquet as pq

    options: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "use_dictionary": False}
    with pq.ParquetFile(source) as file:
        first = file.read_row_group(0, columns=list(_KEPT)).select(_KEPT)
        with pq.ParquetWriter(part, first.schema, write_statistics=False, **options) as writer:
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group, columns=list(_KEPT)).select(_KEPT))
