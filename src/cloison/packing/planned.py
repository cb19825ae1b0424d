"""From a token store to a plan: the job's decisions, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloison.ledger import Ledger
from cloison.packing.select import select
from cloison.packing.tokens import Tokens
from cloison.planning import Plan
from cloison.planning import plan as make_plan
from cloison.spec import PackSpec

__all__ = ["Planned", "plan_tokens", "refuse_unplannable"]


@dataclass(frozen=True, eq=False)
class Planned:
    """A job up to its plan: what is packed, and where each sample goes.

    Attributes:
        tokens: the token store and what it came from.
        plan: its sample ids count the samples that went to planning.
        sample_ids: int64 [samples that went to planning], the source index of each.
        ledger: from all records to the blocks.
        weighted: a target has a weight other than 1.
    """

    tokens: Tokens
    plan: Plan
    sample_ids: npt.NDArray[np.int64]
    ledger: Ledger
    weighted: bool


def refuse_unplannable(spec: PackSpec) -> None:
    """Return when samples could be planned under ``spec``: asked before hours of reading and tokenising, not after.

    Raises:
        InputError: an unknown policy, or a capacity, align or limit that no block can keep.
    """
    make_plan(np.zeros(0, np.int64), spec.capacity, **{**spec.plan_options(), "overflow": "truncate"})


def plan_tokens(tokens: Tokens) -> Planned:
    """Return the plan of a token store under its spec. Nothing is written."""
    spec = tokens.spec
    chosen = select(tokens.store, [skip["index"] for skip in tokens.skipped], spec)
    choices = spec.plan_options()
    if chosen.over and spec.overflow == "raise":
        make_plan(chosen.all_lengths, spec.capacity, **choices)  # raises, and names samples by their place in the sources
    plan = make_plan(chosen.lengths, spec.capacity, **choices)
    ledger = chosen.ledger.then(plan.ledger, chosen.sample_ids).verify()
    return Planned(tokens, plan, chosen.sample_ids, ledger, chosen.weighted)
