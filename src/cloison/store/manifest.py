"""The manifest: what a packed data set is, how it came to be, and the hashes by which it is whole. Written last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cloison.errors import CloisonError, ManifestError
from cloison.ledger import Ledger
from cloison.places import Place, sizes
from cloison.spec import FORMAT_VERSION, PackSpec
from cloison.store.files import read_json
from cloison.store.records import each, misfit, unsealed, write_record
from cloison.store.shards import Shard

__all__ = ["MANIFEST", "SHARD", "Manifest", "read_manifest", "write_manifest"]

MANIFEST = "manifest.json"

_COUNTS = ("num_blocks", "num_segments", "num_tokens", "num_targets")
SHARD = {"name": "text", **dict.fromkeys(_COUNTS, "count"), "size_bytes": "count", "sha256": "hash", "logical_hash": "hash"}
_PATTERN = {
    "token_key": "text",
    "fingerprint": "text",
    "logical_hash": "hash",
    **dict.fromkeys((*_COUNTS, "lower_bound", "straddles", "targetless_segments", "blocks_per_group"), "count"),
    **dict.fromkeys(("utilization", "target_utilization", "padding_utilization", "gap"), "number"),
    "composition": {},
    "roles": each({"targets": "count", "terminators": "count"}),
    "columns": each("text"),
    "tokenizer": {},
    "sources": [{"sha256": "hash", "size_bytes": "count", "records": "count"}],
    "shards": [SHARD],
    "versions": each("text"),
}


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says. Nothing in it depends on time, host, paths or the number of workers.

    Attributes:
        spec: every choice that shaped the blocks.
        token_key: hash of the sources' content, tokenizer, template and text options: the key of the token store.
        fingerprint: hash of the token key, the spec, the format and what wrote it.
        logical_hash: over the shards' logical hashes (`overall_hash`).
        ledger: the account of every sample and token.
        num_blocks, num_segments, num_tokens, num_targets: what is in the data set.
        utilization, target_utilization: tokens, and targets, by token positions (blocks x capacity).
        padding_utilization: what one sample a row, padded to capacity, would have given.
        lower_bound: blocks that no plan can go below; ``gap`` is (blocks - bound) / bound.
        composition: how mixed the blocks are, as the planner measures it.
        roles: role to {"targets": tokens, "terminators": trained terminators}.
        straddles: trained tokens that lie across an edge of what a message supplied.
        targetless_segments: segments in which nothing is trained (pieces of split samples).
        columns: carried column to "token" or "segment".
        blocks_per_group: blocks of a Parquet row group.
        tokenizer: plain facts of the tokenizer (vocabulary size, special ids); empty for token ids that came as such.
        sources: content hash, bytes and records of each source file, in order.
        shards: the files.
        versions: of the libraries that wrote it.
    """

    spec: PackSpec
    token_key: str
    fingerprint: str
    logical_hash: str
    ledger: Ledger
    num_blocks: int
    num_segments: int
    num_tokens: int
    num_targets: int
    utilization: float
    target_utilization: float
    padding_utilization: float
    lower_bound: int
    gap: float
    composition: Mapping[str, Any]
    roles: Mapping[str, Mapping[str, int]]
    straddles: int
    targetless_segments: int
    columns: Mapping[str, str]
    blocks_per_group: int
    tokenizer: Mapping[str, Any]
    sources: tuple[Mapping[str, Any], ...]
    shards: tuple[Shard, ...]
    versions: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as plain data, with the format's version."""
        plain = {place.name: getattr(self, place.name) for place in fields(self)}
        plain |= {
            "format": "cloison packed blocks",
            "format_version": FORMAT_VERSION,
            "spec": self.spec.to_dict(),
            "ledger": self.ledger.to_dict(),
            "sources": list(self.sources),
            "shards": [shard.to_dict() for shard in self.shards],
        }
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Manifest:
        """Return the manifest of ``plain``.

        Raises:
            ManifestError: it is of another format or version, or lacks a field.
        """
        version = plain.get("format_version")
        if version != FORMAT_VERSION:
            raise ManifestError(
                f"this cloison reads format version {FORMAT_VERSION}.",
                f"The manifest is of version {version!r}.",
                "Pack again, or use the cloison that wrote it.",
            )
        names = [place.name for place in fields(cls)]
        missing = [name for name in names if name not in plain]
        if missing:
            raise ManifestError("a manifest has all its fields.", f"Missing: {', '.join(missing)}.", "Pack again.")
        if why := misfit(plain, _PATTERN) or _untrue(plain):
            raise _changed(why)
        values = {name: plain[name] for name in names}
        try:
            values |= {
                "spec": PackSpec.from_dict(plain["spec"]),
                "ledger": Ledger.from_dict(plain["ledger"]),
                "sources": tuple(plain["sources"]),
                "shards": tuple(Shard(**shard) for shard in plain["shards"]),
            }
        except (TypeError, KeyError, AttributeError, CloisonError) as error:
            raise _changed(str(error)) from error
        return cls(**values)


def read_manifest(folder: Place) -> Manifest:
    """Return the manifest of the data set at ``folder``.

    Raises:
        ManifestError: there is none (the folder is no packed data set, or its packing did not finish), or it is damaged.
    """
    path = folder / MANIFEST
    if isinstance(folder, Path) and folder.is_file():
        raise ManifestError(
            f"{folder} must be a packed data set.", "It is a file.", "Name the folder that pack wrote; its sources are none."
        )
    plain = read_json(path)
    if plain is None:
        partial = any(name.startswith("blocks-") and name.endswith(".parquet") for name in _names(folder))
        raise ManifestError(
            f"{folder} must be a packed data set.",
            "There are blocks but no manifest: packing did not finish." if partial else f"There is no {MANIFEST}.",
            "Run the same cloison pack again; it goes on where it stopped." if partial else "Name the folder that pack wrote.",
        )
    if not isinstance(plain, dict):
        raise ManifestError(f"{path} must be a JSON object.", f"It holds a {type(plain).__name__}.", "Pack again.")
    manifest = Manifest.from_dict(plain)
    if unsealed(plain) is None:
        raise _changed("its seal does not fit")
    return manifest


def _untrue(plain: Mapping[str, Any]) -> str:
    """Return which of the manifest's facts contradict each other, "" for none."""
    if plain["blocks_per_group"] < 1:
        return "blocks_per_group is 0"
    if misfit(plain["tokenizer"].get("eos_id"), "maybe"):
        return "the tokenizer's eos_id is no id"
    odd = [name for name, kind in plain["columns"].items() if kind not in ("token", "segment")]
    return f"the column {odd[0]!r} goes neither with tokens nor with segments" if odd else ""


def _changed(why: str) -> ManifestError:
    return ManifestError("a manifest is what cloison wrote.", f"It was changed: {why}.", "Pack again.")


def _names(folder: Place) -> list[str]:
    try:
        return list(sizes(folder))
    except OSError:  # no folder, or none that can be listed
        return []


def write_manifest(folder: Place, manifest: Manifest) -> None:
    """Put the manifest into ``folder``: from then on the data set is whole."""
    write_record(folder / MANIFEST, manifest.to_dict())
