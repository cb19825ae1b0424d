"""The same samples as right rows of every system: what `check` must stay quiet on, and what faults are planted in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cloison.segments import IGNORE

EOS = 2
Sample = tuple[list[int], list[int]]
"""Token ids, and labels with their index (-100 at the first)."""
Row = dict[str, Any]

CHAT: list[list[Sample]] = [
    [([11, 12, 13, 14, EOS], [IGNORE, IGNORE, 13, 14, EOS]), ([21, 22, EOS], [IGNORE, 22, EOS])],
    [([31, 32, 33, 34, 35, 36, EOS], [IGNORE, IGNORE, IGNORE, 34, 35, 36, EOS])],
    [([41, 42, EOS], [IGNORE, 42, EOS]), ([51, 52, EOS], [IGNORE, IGNORE, EOS]), ([61, 62], [IGNORE, 62])],
]
WIDTH = 10


def _flat(row: list[Sample]) -> tuple[list[int], list[int], list[int]]:
    ids = [token for sample, _ in row for token in sample]
    labels = [label for _, own in row for label in own]
    return ids, labels, [len(sample) for sample, _ in row]


def _positions(lengths: list[int]) -> list[int]:
    return [place for length in lengths for place in range(length)]


def _pad(values: list[int], fill: int) -> list[int]:
    return values + [fill] * (WIDTH - len(values))


def trl(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    return {"input_ids": ids, "labels": labels, "seq_lengths": lengths}


def megatron_bridge(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    mask = [int(label != IGNORE) for label in [*labels[1:], IGNORE]]
    return {"input_ids": ids, "loss_mask": mask, "seq_start_id": [sum(lengths[:k]) for k in range(len(lengths))]}


def automodel(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    shifted = [*labels[1:], IGNORE]
    positions = _positions(lengths)
    return {"input_ids": ids, "labels": shifted, "position_ids": positions, "seq_lens": lengths, "seq_lens_padded": lengths}


def axolotl(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    numbers = [number for number, length in enumerate(lengths, 1) for _ in range(length)]
    positions = _positions([*lengths, WIDTH - len(ids)])
    return {
        "input_ids": _pad(ids, EOS),
        "labels": _pad(labels, IGNORE),
        "attention_mask": _pad(numbers, 0),
        "position_ids": positions,
    }


def mds(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    return {"tokens": _pad(ids, EOS), "labels": _pad(labels, IGNORE), "sequence_id": _pad(numbers, -1)}


def positions(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    return {"input_ids": ids, "labels": labels, "position_ids": _positions(lengths)}


def positions_padded(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    return {
        "input_ids": _pad(ids, EOS),
        "labels": _pad(labels, IGNORE),
        "position_ids": _positions([*lengths, WIDTH - len(ids)]),
    }


def grain(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    numbers = [number for number, length in enumerate(lengths, 1) for _ in range(length)]
    return {
        "inputs": _pad(ids, 0),
        "inputs_segmentation": _pad(numbers, 0),
        "inputs_position": _pad(_positions(lengths), 0),
        "targets": _pad([*labels[1:], IGNORE], IGNORE),
    }


def olmo_core(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    return {
        "input_ids": _pad(ids, 0),
        "label_mask": _pad([int(label != IGNORE) for label in labels], 0),
        "doc_lens": lengths,
    }


def cu_seqlens(row: list[Sample]) -> Row:
    ids, labels, lengths = _flat(row)
    offsets = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    return {"input_ids": ids, "labels": labels, "cu_seqlens": [*offsets, -1, -1]}


def unpacked(row: list[Sample]) -> Row:
    ids, labels = row[0]
    mask = _pad([1] * len(ids), 0)
    return {"input_ids": _pad(list(ids), EOS), "labels": _pad(list(labels), IGNORE), "attention_mask": mask}


SYSTEMS: dict[str, Callable[[list[Sample]], Row]] = {
    one.__name__: one
    for one in (
        trl,
        megatron_bridge,
        automodel,
        axolotl,
        mds,
        positions,
        positions_padded,
        grain,
        olmo_core,
        cu_seqlens,
        unpacked,
    )
}


def rows(system: str, samples: list[list[Sample]] | None = None) -> list[Row]:
    """Return the rows of ``system``, as lists that a test may change."""
    return [SYSTEMS[system](row) for row in (CHAT if samples is None else samples)]


def arrow_table(listed: list[Row]) -> Any:
    """Return rows as a pyarrow table."""
    import pyarrow as pa

    return pa.table({name: [np.asarray(row[name]).tolist() for row in listed] for name in listed[0]})
