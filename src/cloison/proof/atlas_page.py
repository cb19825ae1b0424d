"""The page of the atlas: totals by signal, and what each type does under the signal that most people send."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Protocol

__all__ = ["page"]

ORDER = ("exact", "mismatch", "leak", "error")


class _Row(Protocol):
    @property
    def model_type(self) -> str: ...
    @property
    def attention(self) -> str: ...
    @property
    def signal(self) -> str: ...
    @property
    def use_cache(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def detail(self) -> str: ...


SAID = {
    ("none", "off"): "nothing: ids and labels",
    ("positions", "off"): "`position_ids` that restart in each segment",
    ("positions-ones", "off"): "these and an all-ones 2-D mask",
    ("mask4d", "off"): "these and an additive float 4-D mask",
    ("mask4d-bool", "off"): "these and a bool 4-D mask",
    ("flattening", "off"): "`DataCollatorWithFlattening` with every keyword",
    ("positions", "default"): "restarting `position_ids`, `use_cache` not passed",
}

HEAD = """# Atlas: what every causal-LM type does with packed input

Measured, not read from code, by `make atlas`: tiny random models of every causal-LM type of transformers {version}, float32
on CPU, four samples of 7, 29, 1 and 11 tokens in one row. *exact*: no sample moves when another one's tokens change, and each
is what it is alone, within the rounding that the model itself shows. *leak*: a sample moves. *mismatch*: none moves, and yet
one is not what it is alone. *error*: the model raises, or gives NaN. The rows with their places are in [atlas.csv](atlas.csv).

A tiny model shows the code of its type, not the kernels of a GPU: `cloison verify` your own model, on your own device.
`adapted` in the file says what `cloison.adapt` makes of each type.
"""


def page(rows: Sequence[_Row], version: str, variants: Sequence[str]) -> str:
    """Return the Markdown of the atlas of transformers ``version``; entries in ``variants`` are not counted as types."""
    measured = [row for row in rows if row.attention and not row.detail.startswith("not built")]
    types = {row.model_type for row in measured} - set(variants)
    parts = [HEAD.format(version=version), _totals(measured, types), _by_place(measured, types), _not_built(rows)]
    return "\n".join(parts)


def _totals(measured: Sequence[_Row], types: set[str]) -> str:
    lines = [
        f"## How often each signal isolates ({len(types)} types)",
        "",
        "| signal | attention | exact | mismatch | leak | error |",
        "|---|---|---|---|---|---|",
    ]
    for (name, cache), said in SAID.items():
        for attention in ("eager", "sdpa"):
            counts = Counter(
                row.verdict
                for row in measured
                if (row.signal, row.use_cache, row.attention) == (name, cache, attention) and row.model_type in types
            )
            lines.append(f"| {said} | {attention} | " + " | ".join(str(counts[verdict]) for verdict in ORDER) + " |")
    lines += ["", "A type that refuses sdpa is not counted there."]
    return "\n".join(lines) + "\n"


def _by_place(measured: Sequence[_Row], types: set[str]) -> str:
    """Return which types leak under restarting positions, by what mixes their tokens."""
    groups: dict[str, list[str]] = defaultdict(list)
    for row in measured:
        if (row.signal, row.use_cache, row.attention) == ("positions", "off", "eager") and row.model_type in types:
            nature = row.detail.rsplit(", ", 1)[-1] if row.verdict == "leak" else ""
            groups[f"{row.verdict} ({nature})" if nature else row.verdict].append(f"`{row.model_type}`")
    lines = ["## Restarting positions, no mask, cache off (eager)", ""]
    for group in sorted(groups, key=lambda name: (ORDER.index(name.split(" ")[0]), name)):
        lines += [f"**{group}** ({len(groups[group])}): {', '.join(sorted(groups[group]))}", ""]
    return "\n".join(lines)


def _not_built(rows: Sequence[_Row]) -> str:
    lines = ["## Not built", ""]
    lines += [f"- `{row.model_type}`: {row.detail.removeprefix('not built: ')}" for row in rows if not row.attention]
    return "\n".join(lines) + "\n"
