"""Why a set-up probably raised, where its own error does not say: ids, lengths or a place that the model does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cloison.blocks import Block
from cloison.errors import CloisonError
from cloison.proof.blocks import lengths_of
from cloison.proof.gradients import embedding_of

if TYPE_CHECKING:
    from torch import nn

__all__ = ["known_ids", "likely_cause"]


def known_ids(module: nn.Module | None) -> int | None:
    """Return how many ids the input embeddings of ``module`` have, or None where it shows no table."""
    if module is None:
        return None
    try:
        table: Any = embedding_of(module)
    except CloisonError:
        return None
    known = getattr(table, "num_embeddings", None)
    return known if isinstance(known, int) else None


def likely_cause(module: nn.Module | None, blocks: Sequence[Block]) -> str:
    """Return what a user may try when a forward of ``blocks`` raised.

    Said whatever the error was: what the blocks ask of a model is worth knowing then.
    """
    if module is not None and any(parameter.device.type == "meta" for parameter in module.parameters()):
        return "Load the weights first: parameters on the meta device hold no numbers."
    highest, known = max(int(block.input_ids.max(initial=0)) for block in blocks), known_ids(module)
    if known is not None and highest >= known:
        return f"The blocks have ids up to {highest:,} and the model knows {known:,}: pass blocks of its own tokenizer."
    tokens, longest = sum(lengths_of(blocks)), max(lengths_of(blocks))
    return (
        f"The blocks hold {tokens:,} tokens in all, samples of up to {longest:,} and ids up to {highest:,}: pass "
        "shorter blocks if the model takes fewer, collate= if it takes other arguments. A module gets the batch as keywords, "
        "any other callable as its one argument."
    )
