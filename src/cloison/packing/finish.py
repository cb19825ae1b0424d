"""The end of the job: what the shards' records and the plan say together, as a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cloison.errors import ChangedError
from cloison.packing.planned import Planned
from cloison.packing.writers import versions
from cloison.places import Place, sizes
from cloison.store.manifest import Manifest
from cloison.store.shards import Shard, blocks_per_group, overall_hash

__all__ = ["manifest_of"]


def manifest_of(
    planned: Planned, fingerprint: str, records: Sequence[Mapping[str, Any]], columns: Mapping[str, str], out: Place
) -> Manifest:
    """Return the manifest of the shards in ``out`` that ``records`` describe.

    Raises:
        ChangedError: a shard is no longer what its record says.
    """
    shards = tuple(Shard(**record["shard"]) for record in records)
    there = sizes(out)
    for shard in shards:
        if there.get(shard.name) != shard.size_bytes:
            raise ChangedError(
                f"{out / shard.name} must stay as it was written.",
                "It changed or is gone.",
                "Run again: what is whole is kept.",
            )
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record["counts"])
    tokens, spec = planned.tokens, planned.tokens.spec
    segments = sum(shard.num_segments for shard in shards)
    num_tokens = sum(shard.num_tokens for shard in shards)
    targets = sum(shard.num_targets for shard in shards)
    blocks = sum(shard.num_blocks for shard in shards)
    positions = max(1, blocks * spec.capacity)
    return Manifest(
        spec=spec,
        token_key=tokens.key,
        fingerprint=fingerprint,
        logical_hash=overall_hash(shards),
        ledger=planned.ledger,
        num_blocks=blocks,
        num_segments=segments,
        num_tokens=num_tokens,
        num_targets=targets,
        utilization=num_tokens / positions,
        target_utilization=targets / positions,
        padding_utilization=num_tokens / max(1, segments * spec.capacity),
        lower_bound=planned.lower_bound,
        gap=planned.gap,
        composition=planned.composition.to_dict(),
        roles=_roles(counts),
        straddles=counts["straddles"],
        targetless_segments=counts["targetless_segments"],
        columns=columns,
        blocks_per_group=blocks_per_group(spec.capacity),
        tokenizer=tokens.store.facts["tokenizer"],
        sources=tuple(tokens.store.facts["sources"]),
        shards=shards,
        versions=versions(spec.policy),
    )


def _roles(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    names = sorted(name.partition(":")[2] for name in counts if name.startswith("targets:"))
    return {name: {"targets": counts[f"targets:{name}"], "terminators": counts[f"terminators:{name}"]} for name in names}
