"""Convention: what the columns of a packed row mean to the system that reads them, and how a data set tells which one it is.

The same arrays are right for one trainer and wrong for another: labels may be shifted or not, the first label of a segment may
be masked later by a collator, a mask may hold segment numbers. `check` judges a data set by the convention of its reader.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from cloison.errors import InputError

__all__ = ["ALIASES", "COLUMNS", "CONVENTIONS", "BoundarySource", "Convention", "recognise"]

BoundarySource = Literal["seq_lengths", "seq_start_id", "cu_seqlens", "segment_ids", "position_ids", "none"]

ALIASES = MappingProxyType(
    {
        "tokens": "input_ids",
        "inputs": "input_ids",
        "cu_seq_lens_q": "cu_seqlens",
        "cu_seqlens_q": "cu_seqlens",
        "seq_lens": "seq_lengths",
        "doc_lens": "seq_lengths",
        "inputs_segmentation": "segment_ids",
        "inputs_position": "position_ids",
        "input_ids_segment_ids": "segment_ids",
        "input_ids_positions": "position_ids",
        "shift_labels": "targets",
        "assistant_mask": "assistant_masks",
    }
)
"""Other systems' names of columns to ours."""

COLUMNS = (
    "input_ids",
    "labels",
    "targets",
    "targets_segmentation",
    "loss_mask",
    "label_mask",
    "completion_mask",
    "assistant_masks",
    "loss_weights",
    "seq_lengths",
    "seq_start_id",
    "cu_seqlens",
    "attention_mask",
    "segment_ids",
    "sequence_id",
    "position_ids",
    "sample_ids",
    "starts",
)
"""The columns that `check` reads, by our names."""


@dataclass(frozen=True)
class Convention:
    """How one system reads packed rows.

    Attributes:
        name: the word for programs.
        says: what it means, for people.
        labels: "same" index as the tokens (the model shifts), or already "shifted".
        first_label: what becomes of a label at the first token of a segment: "trained" (the boundary is a target), or "masked"
            (the reader's collator sets it to -100).
        mask_read: whether the reader hands an ``attention_mask`` column to the model.
        positions_read: whether it hands a ``position_ids`` column to the model.
        padded: whether rows may hold padding after the last segment.
        counts: what a segment of n tokens takes of the capacity: n ("tokens"), or n - 1 ("targets").
    """

    name: str
    says: str
    labels: Literal["same", "shifted"] = "same"
    first_label: Literal["trained", "masked"] = "trained"
    mask_read: bool = True
    positions_read: bool = True
    padded: bool = True
    counts: Literal["tokens", "targets"] = "tokens"


CONVENTIONS = MappingProxyType(
    {
        convention.name: convention
        for convention in (
            Convention(
                "cloison",
                "cloison's own blocks: labels have the index of input_ids and are -100 at every first token; seq_lengths "
                "are the boundaries.",
                mask_read=False,
                positions_read=False,
                padded=False,
            ),
            Convention(
                "trl",
                "TRL rows: its collator makes position_ids from seq_lengths, masks the label of every first token, takes "
                "input_ids for "
                "missing labels and drops an attention_mask column.",
                first_label="masked",
                mask_read=False,
                positions_read=False,
                padded=False,
            ),
            Convention(
                "megatron-bridge",
                "NeMo / Megatron-Bridge rows: loss_mask lies one to the left (entry i weighs the prediction of token i + "
                "1) and is 0 at "
                "every last token; a segment of n tokens takes n - 1 of the capacity.",
                mask_read=False,
                positions_read=False,
                padded=False,
                counts="targets",
            ),
            Convention(
                "automodel",
                "NeMo Automodel rows: labels are already shifted (labels[i] is the token after i); seq_lens are the "
                "boundaries.",
                labels="shifted",
                mask_read=False,
            ),
            Convention(
                "olmo-core",
                "OLMo-core instances: labels are made by shifting input_ids, label_mask has the index of input_ids and "
                "decides which token "
                "is a target; nothing else masks the first token of a document.",
                mask_read=False,
            ),
            Convention(
                "segment-ids",
                "rows with a number for each segment (Axolotl's attention_mask 1..n, MDS sequence_id, grain "
                "segment_ids): labels have the "
                "index of input_ids, and nothing masks the label of a first token.",
                mask_read=False,
            ),
            Convention(
                "position-ids",
                "Hugging Face rows: position_ids that restart are the boundaries, the model shifts labels over the whole "
                "row, and nothing "
                "masks the label of a first token.",
            ),
            Convention(
                "shifted",
                "rows with targets that are already shifted (targets[i] is the token after i), as grain, MaxText and "
                "shift_labels have them.",
                labels="shifted",
                mask_read=False,
            ),
            Convention(
                "batch",
                "a live batch: the model shifts labels over each whole row, and what is in the batch reaches it as it is.",
            ),
            Convention("plain", "rows without boundaries: each row counts as one sample."),
        )
    }
)
"""Name to convention."""


def recognise(names: Collection[str], *, ours: bool = False, numbered_mask: bool = False) -> Convention:
    """Return the convention that the columns suggest.

    Args:
        names: column names as they are in the data (both spellings of `ALIASES` go).
        ours: whether a manifest of ours lies beside the data.
        numbered_mask: whether ``attention_mask`` holds numbers above 1, which are segment numbers then.

    Raises:
        InputError: there are no tokens.
    """
    columns = {ALIASES.get(name, name) for name in names}
    if "input_ids" not in columns:
        raise InputError(
            "packed rows need input_ids.",
            f"There is {', '.join(sorted(names)) or 'no column that check reads'}.",
            "Check the packed data set, not the texts it was made from.",
        )
    if ours:
        name = "cloison"
    elif "seq_start_id" in columns:
        name = "megatron-bridge"
    elif "seq_lens" in names:
        name = "automodel"
    elif "label_mask" in columns or "doc_lens" in names:
        name = "olmo-core"
    elif "targets" in columns and "labels" not in columns:
        name = "shifted"
    elif "seq_lengths" in columns:
        name = "trl"
    elif numbered_mask or "segment_ids" in columns or "sequence_id" in columns or "cu_seqlens" in columns:
        name = "segment-ids"
    elif "position_ids" in columns:
        name = "position-ids"
    else:
        name = "plain"
    return CONVENTIONS[name]
