"""What each target system would see of exported files: read by the facts of the format, with nothing of cloison.

Every reader returns blocks; a block is a list of samples; a sample is (token ids, which of its tokens are trained).
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Sample = tuple[list[int], list[bool]]
Blocks = list[list[Sample]]


def trl(folder: Path) -> Blocks:
    out = []
    for file in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            assert {"input_ids", "labels", "seq_lengths"} == set(row) - {"sample_ids"} and sum(row["seq_lengths"]) == len(
                row["input_ids"]
            )
            block, start = [], 0
            for length in row["seq_lengths"]:
                ids, labels = row["input_ids"][start : start + length], row["labels"][start : start + length]
                assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
                block.append((ids, [label != -100 for label in labels]))
                start += length
            out.append(block)
    return out


def megatron_bridge(folder: Path) -> Blocks:
    """As its collator cuts a row: inputs without each last token, labels without each first, the mask at the inputs."""
    files = sorted(folder.glob("training_*-*.idx.parquet"))
    (facts,) = json.loads(next(folder.glob("*_metadata.jsonl")).read_text())
    table = pa.concat_tables([pq.read_table(file) for file in files])
    kinds = [(field.name, field.type.value_type) for field in table.schema]
    assert kinds == [("input_ids", pa.int32()), ("loss_mask", pa.int8()), ("seq_start_id", pa.int32())]
    out = []
    for row in table.to_pylist():
        edges = [*row["seq_start_id"], len(row["input_ids"])]
        assert edges[0] == 0
        block = []
        for start, end in itertools.pairwise(edges):
            labels, mask = row["input_ids"][start + 1 : end], row["loss_mask"][start : end - 1]
            assert row["loss_mask"][end - 1] == 0
            block.append(([row["input_ids"][start], *labels], [False, *map(bool, mask)]))
        assert sum(len(ids) - 1 for ids, _ in block) <= facts["pack_size"]
        out.append(block)
    # Counted as its own packing counts: by the tokens of a sample that are trained on, one less than it has.
    rows = [[len(ids) - 1 for ids, _ in block] for block in out]
    assert facts["max_samples_per_bin"] == max(map(len, rows))
    assert facts["dataset_max_seqlen"] == max(map(max, rows))
    assert facts["min_packed_seqlen"] == min(map(sum, rows))
    assert facts["packing_efficiency"] == round(100 * sum(map(sum, rows)) / len(rows) / facts["pack_size"], 2)
    assert facts["packing_factor"] == round(sum(map(len, rows)) / len(rows), 2)
    return out


def mds(folder: Path) -> Blocks:
    out = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        content = (folder / shard["raw_data"]["basename"]).read_bytes()
        (count,) = struct.unpack_from("<I", content)
        assert count == shard["samples"] and len(content) == shard["raw_data"]["bytes"]
        offsets = struct.unpack_from(f"<{count + 1}I", content, 4)
        config = json.loads(content[4 + 4 * (count + 1) : offsets[0]])
        assert config["column_names"] == sorted(config["column_names"]) and config["format"] == "mds"
        for start, end in itertools.pairwise(offsets):
            place, row = start, {}
            for name, size in zip(config["column_names"], config["column_sizes"], strict=True):
                kind = "<f4" if name == "loss_weights" else "<i4"
                row[name] = np.frombuffer(content[place : place + size], kind)
                place += size
            assert place == end
            numbers = row["sequence_id"]
            block = []
            for number in range(numbers.max() + 1):
                own = numbers == number
                block.append((row["tokens"][own].tolist(), (row["labels"][own] != -100).tolist()))
            assert (row["labels"][numbers < 0] == -100).all()
            out.append(block)
    return out


def grain(folder: Path) -> Blocks:
    out = []
    for file in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            columns = {name: np.array(values) for name, values in row.items()}
            assert len({values.size for values in columns.values()}) == 1
            numbers, block = columns["inputs_segmentation"], []
            for number in range(1, numbers.max() + 1):
                own = np.flatnonzero(numbers == number)
                assert columns["inputs_position"][own].tolist() == list(range(own.size))
                asked = columns["targets_segmentation"][own]
                ids = columns["inputs"][own]
                assert set(asked.tolist()) <= {0, number} and asked[-1] == 0
                assert (columns["targets"][own][asked > 0] == np.append(ids[1:], -1)[asked > 0]).all()
                block.append((ids.tolist(), [False, *(asked[:-1] > 0).tolist()]))
            assert not columns["targets_segmentation"][numbers == 0].any()
            out.append(block)
    return out


def olmo_core(folder: Path) -> Blocks:
    out = []
    for tokens in sorted(folder.glob("tokens-*.npy")):
        ids = np.fromfile(tokens, "<u4")
        mask = np.fromfile(tokens.with_name(tokens.name.replace("tokens", "label_mask")), bool)
        with gzip.open(tokens.with_name(tokens.name.replace(".npy", ".csv.gz")), "rt") as file:
            edges = [(int(start), int(end)) for start, end in csv.reader(file)]
        assert mask.size == ids.size == edges[-1][1] and not any(mask[start] for start, _ in edges)
        blocks = np.fromfile(tokens.with_name(tokens.name.replace("tokens", "blocks")), "<u8")
        found = iter(edges)
        for count in blocks:
            places = [next(found) for _ in range(int(count))]
            out.append([(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in places])
    return out


def megatron(folder: Path) -> Blocks:
    """One block of all documents: it keeps no blocks."""
    content = (folder / "samples_text_document.idx").read_bytes()
    assert content[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, edges = struct.unpack_from("<QBQQ", content, 9)
    assert (version, code) == (1, 4) and edges == sequences + 1
    lengths = np.frombuffer(content, "<i4", sequences, 34)
    pointers = np.frombuffer(content, "<i8", sequences, 34 + 4 * sequences)
    documents = np.frombuffer(content, "<i8", edges, 34 + 12 * sequences)
    assert len(content) == 34 + 12 * sequences + 8 * edges and documents.tolist() == list(range(edges))
    tokens = (folder / "samples_text_document.bin").read_bytes()
    ids = [np.frombuffer(tokens, "<i4", n, at).tolist() for n, at in zip(lengths, pointers, strict=True)]
    return [[(own, [False] + [True] * (len(own) - 1)) for own in ids]]
