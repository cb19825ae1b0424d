"""The page of one batch of one's own: verdicts, and on the text itself what the real loss trains, with wrong targets marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.report import VerifyReport
from cloison.proof.targets import read_targets
from cloison.proof.throughput import throughput
from cloison.proof.verify import verify
from cloison.segments import IGNORE
from cloison.view.blocks import block_data, block_section
from cloison.view.page import render_page
from cloison.view.verdict import verdict_section

__all__ = ["batch_page"]


def batch_page(
    model: Any,
    block: Block,
    collate: Callable[[Sequence[Block]], Mapping[str, Any]],
    *,
    title: str,
    tokenizer: Any | None = None,
    seed: int = 0,
) -> tuple[str, VerifyReport]:
    """Return the HTML and the report of ``model`` on the batch that ``collate`` makes of ``block``.

    The report says what is right too: valid tokens and targets per position, beside padding. On the text, a token is drawn as a
    target where the gradient of the real loss says so, whatever the labels are; it is marked where the block has it otherwise.

    Args:
        block: one block; ``collate`` must make one row of it, its tokens first.
        tokenizer: a ``tokenizers.Tokenizer``, or None to show ids.

    Raises:
        InputError: the batch is not one row, or has no labels to train.
    """
    batch = collate([block])
    if batch["input_ids"].shape[0] != 1:
        raise InputError("the page of a batch shows one row.", f"There are {batch['input_ids'].shape[0]}.", "Pass one block.")
    report = verify(model, [block], collate=collate, seed=seed, fix=False)
    lengths = [block.segments.seq_lengths.tolist()]
    counted = throughput([batch], seq_lengths=[lengths]).verdict()
    report = VerifyReport((*report.verdicts, counted), report.findings, report.influence, report.certificate)
    trained, wrong = _read(model, batch, block, seed)
    data = block_data([(0, block)], tokenizer, block.segments.width, 1, {0: _told(report)}, {0: wrong})
    data["blocks"][0]["labels"] = trained
    section = block_section(data, tokenizer) | {"title": "What the loss trains", "said": _SAID}
    return render_page(
        title, "what is wrong with this batch, and what is right", [verdict_section(report), section], data
    ), report


_SAID = (
    "Targets are read from the gradient of the real loss, not from the labels. A token with a frame is trained where it should "
    "not be, or not trained where it should."
)


def _read(model: Any, batch: Mapping[str, Any], block: Block, seed: int) -> tuple[list[int], list[int]]:
    """Return the label of each token as the loss has it, and the tokens where the block has another."""
    tokens = read_targets(model, batch, seed=seed).tokens[0, : block.num_tokens]
    trained = np.full(block.num_tokens, IGNORE, np.int64)
    trained[1:] = np.where(tokens[:-1] >= 0, tokens[:-1], IGNORE)
    return trained.tolist(), np.flatnonzero(trained != block.labels).tolist()


def _told(report: VerifyReport) -> list[str]:
    found = (finding for finding in report.findings if finding.severity != "note")
    return [f"{finding.severity}: {finding.message} {finding.fix}".strip() for finding in found]
