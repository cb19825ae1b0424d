"""export: a packed data set in another system's files, with nothing lost that the caller did not name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cloison.errors import InputError
from cloison.formats import grain, mds, megatron, megatron_bridge, olmo_core, trl
from cloison.formats.flat import ends_in_one_id, has_weights
from cloison.formats.new_folder import publish, writing_into
from cloison.places import Place, Remote, place
from cloison.store.packed import Packed
from cloison.store.packed import open as open_packed

__all__ = ["LOSSES", "TARGETS", "Exported", "Target", "export"]

LOSSES = MappingProxyType(
    {
        "labels": "which tokens are targets (prompts would be trained like answers)",
        "weights": "the loss weights of tokens",
        "columns": "the columns that are carried along",
        "blocks": "which samples share a block (the reader cuts and joins documents in its own way)",
        "boundaries": "where samples end (the reader looks for one end-of-document id, and they do not end in one that is "
        "nowhere else in them)",
    }
)
"""What a format may be unable to hold: the word that allows its loss, and what it means."""


@dataclass(frozen=True)
class Target:
    """A format that blocks can be written in.

    Attributes:
        name: the word for it.
        holds: the keys of `LOSSES` that it can hold.
        usage: how its system reads what was written; ``{dest}`` and ``{capacity}`` are filled in.
        write: writes a data set into an empty folder, for the place where it will lie and with an id for padding, and returns
            the names of the files in it; the one that makes the set whole, if there is one, is the last.
        usage_far: how its system reads it by URL; "" where it reads the local disk only.
    """

    name: str
    holds: tuple[str, ...]
    usage: str
    write: Callable[[Packed, Path, Place, int], list[str]]
    usage_far: str = ""


_ALL = ("labels", "blocks", "boundaries")

TARGETS = MappingProxyType(
    {
        target.name: target
        for target in (
            Target("trl", _ALL, trl.USAGE, trl.write, trl.USAGE),
            Target("megatron-bridge", _ALL, megatron_bridge.USAGE, megatron_bridge.write),
            Target("mds", (*_ALL, "weights"), mds.USAGE, mds.write, mds.USAGE_FAR),
            Target("megatron", (), megatron.USAGE, megatron.write),
            Target("olmo-core", _ALL, olmo_core.USAGE, olmo_core.write, olmo_core.USAGE_FAR),
            Target("grain", _ALL, grain.USAGE, grain.write),
        )
    }
)
"""Name to target."""


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: the folder, a path or a `Remote`.
        to: the target's name.
        files: the files, in order.
        blocks, segments, tokens, targets: what is in them.
        lost: keys of `LOSSES` that the format does not hold and the data had.
        usage: how the target's system reads the folder.
    """

    path: Place
    to: str
    files: tuple[Place, ...]
    blocks: int
    segments: int
    tokens: int
    targets: int
    lost: tuple[str, ...]
    usage: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {**vars(self), "path": str(self.path), "files": [str(file) for file in self.files], "lost": list(self.lost)}


def export(
    packed: Packed | str | Path, dest: str | Path | Remote, to: str, *, lose: Sequence[str] = (), pad_token_id: int = 0
) -> Exported:
    """Write ``packed`` into the folder ``dest`` in the format of another system, and return what was written.

    Boundaries and targets are right in that system's own convention (shifted or not, its own off-by-ones). The files appear in
    ``dest`` when all of them are written and synced: until then they are in its hidden folder ``.work``, or, where it is a URL,
    among temporary files. What a killed export left is removed by the next. The same data set gives the same bytes.

    Args:
        packed: a packed data set, or its folder or URL.
        dest: a folder or URL that is new or empty, and not inside the data set's own. By URL the files appear one by one, the
            one that makes the set whole (where the format has one) last; all are there when ``.work`` is gone.
        to: a name of `TARGETS`.
        lose: what the target cannot hold and may be lost: keys of `LOSSES`. Only what the data really has needs the word:
            where every token is a target, say, no labels are lost.
        pad_token_id: what stands behind the last segment in formats of fixed width; labels and segment numbers mask it.

    Raises:
        InputError: an unknown target, something would be lost that ``lose`` does not name, the data set has no blocks, or
            ``dest`` is inside it.
        StoreError: ``dest`` is not empty or cannot be written, or another export is writing there; or a file of the data set
            does not hold what was packed.

    Cost: one pass over the blocks, of up to four files at once, each with a piece of a million tokens in memory. Decoding and
    writing take about the same time; for TRL the files are copied.
    """
    if to not in TARGETS:
        raise InputError(f"a target is one of {', '.join(TARGETS)}.", f"It is {to!r}.", "Pick one of them.")
    unknown = sorted(set(lose) - set(LOSSES))
    if unknown:
        raise InputError(f"what may be lost is of {', '.join(LOSSES)}.", f"There is {', '.join(unknown)}.", "Name one of them.")
    if not 0 <= pad_token_id < 1 << 31:
        raise InputError("pad_token_id must be a token id.", f"It is {pad_token_id}.", "Pass 0 to 2,147,483,647.")
    if not isinstance(packed, Packed):
        packed = open_packed(packed)
    if not packed.manifest.num_blocks:
        raise InputError(f"{packed.path} must hold blocks.", "It holds none.", "Pack samples that are not empty.")
    target = TARGETS[to]
    lost = tuple(name for name in LOSSES if name not in target.holds and _has(packed, name))
    refused = [name for name in lost if name not in lose]
    if refused:
        named = "; ".join(f"{name}: {LOSSES[name]}" for name in refused)
        raise InputError(
            f"the format {to} cannot hold all of this data set.",
            f"These would be lost: {named}.",
            f"Say so if that is meant: lose={refused!r} (--lose {' '.join(refused)}), or choose another format.",
        )
    folder = place(dest)
    if _is_inside(folder, packed.path):
        raise InputError(
            f"{folder} must not be inside the data set {packed.path}.",
            "What lies there would be read as blocks.",
            "Name a folder beside it.",
        )
    with writing_into(folder) as new:
        names = target.write(packed, new.work, folder.absolute() if isinstance(folder, Path) else folder, pad_token_id)
        publish(new, names)
    manifest = packed.manifest
    usage = (target.usage_far if isinstance(folder, Remote) else "") or target.usage
    usage = usage.format(dest=folder, capacity=packed.capacity)
    if isinstance(folder, Remote) and not target.usage_far:
        usage = f"copied to the local disk, with its path in place of the URL: {usage}"
    sums = (manifest.num_blocks, manifest.num_segments, manifest.num_tokens, manifest.num_targets)
    return Exported(folder, to, tuple(folder / name for name in names), *sums, lost, usage)


def _is_inside(folder: Place, other: Place) -> bool:
    if isinstance(folder, Path) and isinstance(other, Path):
        return folder.resolve().is_relative_to(other.resolve())
    return f"{folder}/".startswith(f"{other}/")


def _has(packed: Packed, name: str) -> bool:
    """Return whether there is anything of what ``name`` of `LOSSES` means."""
    manifest = packed.manifest
    if name == "labels":
        return manifest.num_targets != manifest.num_tokens - manifest.num_segments
    if name == "weights":
        return has_weights(packed)
    if name == "columns":
        return bool(manifest.columns)
    if name == "boundaries":
        return not ends_in_one_id(packed)
    return manifest.num_blocks > 0
