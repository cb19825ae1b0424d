"""New pairings each epoch: blocks gathered from the token store by a plan, as `cloison.pack` would write them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import numpy as np

from cloison.blocks import Block
from cloison.errors import ChangedError, StoreError
from cloison.packing.carried import carried_columns
from cloison.packing.fill import Origin, gather
from cloison.packing.planned import InMemory, plan_in_memory
from cloison.packing.tokens import Tokens, skipped_records
from cloison.packing.writers import versions
from cloison.places import Place, beside, place
from cloison.planning.stretches import Stretch
from cloison.segments import Segments
from cloison.store.columns import Carried, to_table
from cloison.store.groups import Group
from cloison.store.packed import Packed, open
from cloison.store.tokens import open_token_store

__all__ = ["PairedAnew", "pair_anew"]


def pair_anew(packed: Packed, tokens: str | os.PathLike[str] | None = None) -> PairedAnew:
    """Return ``packed`` as a source for `cloison.loader` in which samples meet others in every epoch (`Plan.epoch`).

    Epoch 0 has the blocks of ``packed``; each later one has every sample once, in other company. Nothing is written.

    Args:
        tokens: where token stores are kept, as in `cloison.pack`; by default ``tokens`` beside the data set.

    Raises:
        StoreError: its token store is not there.
        ChangedError: the plan of the store is not that of ``packed`` (another version of cloison packed it).

    Cost: planning again (about a second for a million samples), then some 20 microseconds a sample that is read.
    """
    home = place(tokens) if tokens is not None else beside(packed.path, "tokens")
    key = packed.manifest.token_key
    store = open_token_store(home / key)
    if store is None:
        raise StoreError(
            f"pairing anew reads the token store {key[:16]}... of the data set.",
            f"{home} has none, or an unfinished one.",
            "Pass tokens= the folder that cloison.pack was given, or pack again.",
        )
    planned = plan_in_memory(Tokens(store, key, packed.spec, skipped_records(store), "", 0))
    if not np.array_equal(planned.selection.source_ids(planned.plan.sample_ids), packed.sample_ids()):
        raise ChangedError(
            "the plan of the token store must be that of the packed data set.",
            "Other samples share blocks: another version of cloison packed it.",
            "Pack again with this version.",
        )
    return PairedAnew(planned, origin=(packed.path, home))


class PairedAnew:
    """One epoch of a planned token store; `epoch` gives the others. Made by `pair_anew`."""

    group = 1
    bucket_groups = 1
    file_groups = 0

    def __init__(self, planned: InMemory, number: int = 0, origin: tuple[Place, Place] | None = None) -> None:
        spec, store = planned.tokens.spec, planned.tokens.store
        self.planned, self.number, self._origin = planned, number, origin
        self.fingerprint = f"{spec.fingerprint(planned.tokens.key, versions(spec.policy))} paired anew"
        self._kinds, types = carried_columns(store, spec.carry)
        carried = tuple(Carried(name, kind, types.field(name).type) for name, kind in self._kinds.items())  # type: ignore[arg-type]
        split = planned.plan.given_starts is not None and bool((planned.plan.given_starts > 0).any())
        self._origin_of_blocks = Origin(spec, store, carried, split, planned.selection.weighted)
        self._epoch = planned.plan.epoch(number)
        self._segments: Segments | None = None

    def __len__(self) -> int:
        return len(self._epoch)

    def __getitem__(self, index: int) -> Block:
        places, starts, lengths = self._epoch[index]
        ids = self.planned.selection.source_ids(places)
        rows = gather(self._origin_of_blocks, Stretch(np.array([ids.size]), ids, starts, lengths, None), Counter())
        table = to_table(rows, self._origin_of_blocks.layout, self._origin_of_blocks.carried)
        return Group(table, self._origin_of_blocks.spec.capacity, self._kinds).block(0)

    def segments(self) -> Segments:
        """Return the boundaries of all blocks of this epoch, a row each."""
        if self._segments is None:
            plan = self._epoch.to_plan()
            self._segments = Segments(plan.seq_lengths, plan.offsets, self.planned.tokens.spec.capacity)
        return self._segments

    def epoch(self, number: int) -> PairedAnew:
        """Return the same samples in the pairings of epoch ``number``."""
        return self if number == self.number else PairedAnew(self.planned, number, self._origin)

    def __reduce__(self) -> tuple[Callable[..., PairedAnew], tuple[object, ...]]:
        if self._origin is None:
            return PairedAnew, (self.planned, self.number)
        return _reopened, (*map(str, self._origin), self.number)


def _reopened(path: str, home: str, number: int) -> PairedAnew:
    return pair_anew(open(path), home).epoch(number)
