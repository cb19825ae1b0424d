"""TRL: pre-packed Parquet rows for SFTTrainer. Read from TRL 1.16 and tested with it.

Columns ``input_ids``, ``labels`` (index of input_ids, -100 where not a target; not shifted) and ``seq_lengths``
(list<int32>).
"""

from __future__ import annotations

from pathlib import Path

from cloison.places import random_access
from cloison.store.files import replacing
from cloison.store.packed import Packed

__all__ = ["USAGE", "write"]

USAGE = (
    'SFTTrainer(train_dataset=datasets.load_dataset("parquet", data_files="{dest}/*.parquet", split="train"), '
    "args=SFTConfig(padding_free=True, packing=False, max_length=None, "
    'dataset_kwargs={{"skip_prepare_dataset": True}}, ...)), without a collator of your own'
)

_COLUMNS = ["input_ids", "labels", "seq_lengths"]


def write(packed: Packed, folder: Path, pad_token_id: int) -> list[Path]:
    """Write one Parquet file for each of the data set's, with the three columns that TRL reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout = pa.schema([pa.field(name, pa.list_(pa.int32())) for name in _COLUMNS])
    files = []
    for index, shard in enumerate(packed.manifest.shards):
        path = folder / f"train-{index:05d}.parquet"
        with (
            pq.ParquetFile(random_access(packed.path / shard.name), memory_map=True) as source,
            replacing(path) as part,
            pq.ParquetWriter(part, layout, compression="snappy", use_dictionary=False) as writer,
        ):
            for group in range(source.num_row_groups):
                writer.write_table(source.read_row_group(group, columns=_COLUMNS).select(_COLUMNS).cast(layout))
        files.append(path)
    return files
