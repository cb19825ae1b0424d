"""KINDS: every fault that `check` knows, with what it is, what it does to training, and how to mend it.

The order is the order of a report. In the texts, names in braces are filled from the hit: ``count``, ``of`` and its details.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from cloison.findings import Severity

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """The texts of one kind of finding; ``severity`` holds unless the convention of the reader changes it."""

    severity: Severity
    what: str
    effect: str
    fix: str = ""


KINDS = MappingProxyType(
    {
        # ------------------------------------------------------------ what is on disk
        "file_changed": Kind(
            "error",
            "{count} of {of} files are not as the manifest recorded them ({reason})",
            "What is trained is not what was packed and proven.",
            "Copy the data set again, or pack again into a new folder.",
        ),
        "manifest_disagrees": Kind(
            "error",
            "the manifest says {said} {quantity}, the files hold {held}",
            "Counts, schedules and certificates made from the manifest do not describe this data.",
            "Pack again into a new folder.",
        ),
        "ledger_disagrees": Kind(
            "error",
            "the ledger does not describe the blocks: {reason}",
            "Tokens were lost, or came in, that no entry names.",
            "Pack again into a new folder.",
        ),
        "nothing_to_check": Kind(
            "error",
            "there is not one token in {of} rows",
            "Nothing was looked at: this is no pass.",
            "Look whether the path, the filter or the split before this step gives rows, and whether an iterator was used up.",
        ),
        "file_empty": Kind(
            "warning",
            "{count} of {of} files hold no row",
            "What ought to be in them is not trained.",
            "Look whether they were written to the end; else drop them.",
        ),
        # ------------------------------------------------------------ boundaries
        "lengths_disagree": Kind(
            "error",
            "{count} of {of} rows have boundaries ({source}) that do not fit their tokens: {reason}",
            "Every later boundary of such a row is wrong: samples see each other, and positions restart inside a sample.",
            "Write the real token count of each segment, in order, so that they sum to the row.",
        ),
        "columns_disagree": Kind(
            "error",
            "{count} of {of} rows have a {column} that is not as long as its input_ids: {reason}",
            "From the first such place on, labels, masks or positions belong to other tokens.",
            "Cut and pad every token-aligned column together with input_ids.",
        ),
        "boundaries_disagree": Kind(
            "error",
            "{count} of {of} rows have boundaries in {other} that differ from those in {source}",
            "Which one counts depends on the kernel: one model of the two trains across a boundary.",
            "Keep one source of boundaries and derive the other from it.",
        ),
        "positions_not_restarted": Kind(
            "error",
            "{count} of {of} segments after the first of their row go on with the positions of the segment before",
            "Models that read boundaries from position_ids see one long sample: attention crosses the boundary.",
            "Start position_ids again at every segment, or drop the column and pass seq_lengths.",
        ),
        "padding_as_segments": Kind(
            "warning",
            "{count} of {of} rows end in padding whose position_ids are all 0",
            "Kernels that read boundaries from zeros see a sample of one token for each padding position.",
            "Let the padding count 0, 1, 2, ... so that it is one segment, or do not pad.",
        ),
        "interleaved_segments": Kind(
            "error",
            "{count} of {of} rows have a segment number that comes back after another one, or padding before a segment",
            "Block-diagonal kernels want each segment in one unbroken run; the pieces are trained as samples of their own.",
            "Put each sample's tokens side by side, and the padding last.",
        ),
        "mask_hides_boundaries": Kind(
            "error",
            "{count} of {of} rows hold several segments under an attention_mask of ones",
            "No model type isolates samples under such a mask: it switches off the detection by position_ids, and every "
            "sample sees "
            "the ones before it.",
            "Drop the attention_mask column (or key); padding is masked by labels.",
        ),
        "mask_inside_segment": Kind(
            "error",
            "{count} of {of} valid tokens have a 0 in attention_mask",
            "Those tokens are invisible to the rest of their sample, though they are counted and may be targets.",
            "Let attention_mask be 0 at padding only.",
        ),
        "mask_crosses": Kind(
            "error",
            "{count} pairs of positions in different segments may attend to each other in the 4-D mask",
            "Samples see each other.",
            "Build the mask from the lengths: cloison.forms.hf.mask4d(segments).",
        ),
        "mask_too_narrow": Kind(
            "warning",
            "{count} pairs that a causal sample alone would have are closed in the 4-D mask",
            "Right for a model with a sliding window or chunks, else tokens miss part of their own sample.",
            "Build the mask from the lengths: cloison.forms.hf.mask4d(segments).",
        ),
        "mask_is_bool": Kind(
            "warning",
            "the 4-D mask is bool",
            "On eager and flex attention it is added as 0 and 1 and masks nothing; only sdpa reads it as a mask.",
            "Pass an additive float mask: cloison.forms.hf.mask4d(segments, dtype).",
        ),
        "cache_on": Kind(
            "note",
            "the batch does not say use_cache=False",
            "Where the cache is on (the default of most configs; Trainer turns it off, unless told otherwise) models "
            "build their "
            "mask without looking at position_ids, and samples see each other.",
            "Add use_cache=False to the batch, as cloison.collate does, unless the trainer turns the cache off.",
        ),
        "max_length_wrong": Kind(
            "error",
            "{name} is {said:,}, and the longest segment has {held:,} tokens",
            "Kernels for variable lengths leave out the tokens beyond it, or read outside the sample.",
            "Pass the longest segment as a Python int.",
        ),
        "over_capacity": Kind(
            "error",
            "{count} of {of} rows hold more than the capacity of {capacity:,} tokens (the first has {held:,})",
            "The trainer truncates them in silence, or runs out of memory.",
            "Plan again with this capacity, or state the right one.",
        ),
        "no_boundaries": Kind(
            "warning",
            "{count} of {of} rows hold the end-of-text id {token} before their last token, and nothing records boundaries",
            "If the rows are packed, every sample sees the ones before it, and each first token is a target of the "
            "sample before. "
            "This is a guess: the id may also end turns.",
            "Keep seq_lengths when packing; boundaries cannot be recovered from ids with certainty.",
        ),
        "eos_scan_differs": Kind(
            "note",
            "cutting at the end-of-text id {token} would give {scanned:,} segments, {recorded:,} are recorded",
            "No fault of the data: the id may end turns, or be missing at the end of a sample. Readers that take the "
            "recorded boundaries are right; one that scans for that id would find others.",
        ),
        # ------------------------------------------------------------ targets
        "shifted_twice": Kind(
            "error",
            "{count} of {of} rows have labels that are already shifted (label i is the token after i), and the model "
            "shifts again",
            "Every token is trained to predict the token after the next.",
            'Let labels have the index of input_ids; if the trainer does not shift, say so: labels="shifted".',
        ),
        "not_shifted": Kind(
            "error",
            "{count} of {of} rows have targets that are not shifted (target i is token i itself)",
            "Every token is trained to copy itself: the loss falls to 0 and nothing is learnt.",
            "Shift inside each segment: cloison.Segments.targets(labels).",
        ),
        "wrong_token": Kind(
            "error",
            "{count} of {of} targets are not the token of their place",
            "The model is trained towards tokens that the sample does not hold there.",
            "Let labels be input_ids where trained and -100 elsewhere, cut and packed together with them.",
        ),
        "boundary_target": Kind(
            "error",
            "{count} of {of} first tokens of a segment are targets",
            "The last token of one sample is trained to predict the first token of the next, which has nothing to do with it.",
            "Set labels to -100 at the first token of every segment.",
        ),
        "first_labels_masked_later": Kind(
            "note",
            "{count} of {of} first tokens of a segment carry a label; the reader's collator masks it",
            "Right with that collator; any other trains the boundary.",
        ),
        "mask_not_rolled": Kind(
            "error",
            "{count} of {of} segments have a loss_mask that is set at their last token, which predicts nothing",
            "The mask was not moved one to the left: the first token of every answer is never learnt.",
            "Roll loss_mask one to the left inside each segment; its last entry is 0.",
        ),
        "target_past_row": Kind(
            "error",
            "{count} of {of} rows have a target at their last position",
            "There is no token after it: a roll wrapped the first token of the row to its end.",
            "Set the target at the last token of every segment to -100.",
        ),
        "padding_trained": Kind(
            "error",
            "{count} of {of} padding positions are targets",
            "The model learns to write padding, and the loss is averaged over it.",
            "Set labels to -100 at padding, by place and not by id.",
        ),
        "prompt_trained": Kind(
            "error",
            "{count} of {of} tokens that {column} marks as context are targets",
            "The model learns to write the user's side.",
            "Set labels to -100 where the mask is 0.",
        ),
        "nothing_trained": Kind(
            "warning",
            "{count} of {of} rows have no target",
            "They cost compute and train nothing; alone in a micro-batch, their mean loss is 0/0.",
            "Drop such samples before packing, and look whether truncation or a mask removed their answers.",
        ),
        "segments_without_target": Kind(
            "warning",
            "{count} of {of} segments of two tokens or more have no target",
            "They take room and train nothing; often their answer was truncated away, or its mask was not found.",
            "Drop them before packing (on_empty), and look at the mask.",
        ),
        "no_target_at_all": Kind(
            "error",
            "not one of {of} tokens is a target",
            "The loss is 0/0 or 0: nothing is learnt.",
            "Check how labels were made: a mask that finds no answer is often written as all -100.",
        ),
        "end_never_trained": Kind(
            "error",
            "the end id {token} stands {of} times in the segments and is never a target",
            "The model never learns to stop: generation runs on to its limit.",
            "Train the terminator with its message; mask padding by place, not by id (pad and end of text are often the "
            "same id).",
        ),
        "last_token_never_trained": Kind(
            "warning",
            "{count} of {of} segments end in the id {token}, which is never a target (taken for the end id: a guess)",
            "If it ends the sample, the model never learns to stop.",
            "Train the terminator with its message, or pass its id as eos_token_id= so that this is known.",
        ),
        "implied_labels": Kind(
            "warning",
            "{count} of {of} rows hold several segments and no labels",
            "A trainer that copies input_ids into labels trains the first token of every segment.",
            "Write labels with -100 at first tokens, or use a collator that masks them from lengths.",
        ),
        # ------------------------------------------------------------ values
        "not_integer": Kind(
            "error",
            "{column} is {dtype} and not integer ({count} entries{reason})",
            "Embeddings, losses and kernels take integers: they refuse these, or a cast on the way changes them (bfloat16 is "
            "exact up to 256 only, float16 up to 2,048, float32 up to 16,777,216).",
            "Write int32 or int64. Table libraries make doubles of a column that has a missing value.",
        ),
        "ids_placeholder": Kind(
            "warning",
            "{count} of {of} token ids are the places of images, videos or sounds in LLaVA's way (the first is {held})",
            "Right only for a model that puts features there before it looks ids up; the lookup of any other fails.",
            "Train with the collator and the model of that convention.",
        ),
        "ids_negative": Kind(
            "error",
            "{count} of {of} token ids are negative (the first is {held})",
            "The embedding lookup fails on CPU and reads other memory, or asserts, on an accelerator.",
            "Mask with labels, never with ids.",
        ),
        "ids_out_of_vocabulary": Kind(
            "error",
            "{count} of {of} token ids are {size:,} or more, outside the vocabulary (the first is {held:,})",
            "The embedding lookup fails, often as an assert far from its cause.",
            "Tokenise with the model's own tokenizer, or resize the embeddings.",
        ),
        "weights_not_finite": Kind(
            "error",
            "{count} of {of} loss weights are NaN or infinite",
            "One of them makes the loss, and all weights of the model after the step, NaN.",
            "Write finite weights; 0 where nothing is trained.",
        ),
        "weights_negative": Kind(
            "warning",
            "{count} of {of} loss weights are negative",
            "The model is pushed away from those tokens.",
            "Keep them only if that is meant.",
        ),
        "weights_are_segment_ids": Kind(
            "error",
            "{count} of {of} rows have loss weights that are their segment numbers",
            "Later samples of a row weigh more, and the denominator is wrong.",
            "A weight is 1 where a segment is (segment_ids > 0), not its number.",
        ),
        "double_bos": Kind(
            "warning",
            "{count} of {of} segments begin with the begin-of-text id {token} twice",
            "The template wrote it and the tokenizer added it again: generation never sees that beginning.",
            "Tokenise rendered chats with add_special_tokens=False.",
        ),
        # ------------------------------------------------------------ samples
        "sample_twice": Kind(
            "error",
            "{count} of {of} segments hold a sample, or a part of one, that another segment holds too",
            "Those samples weigh double.",
            "Pack again; look for shards that were written twice.",
        ),
        "sample_missing": Kind(
            "error",
            "{count} of {of} samples are in no block, and the ledger does not say why",
            "They are not trained.",
            "Pack again; look for a shard that is not there.",
        ),
        "sample_parts_missing": Kind(
            "error",
            "{count} of {of} split samples lack a part in the middle or at the start",
            "Tokens are lost that no ledger names.",
            "Pack again; look for a shard that is not there.",
        ),
    }
)
