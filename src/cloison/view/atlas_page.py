"""The atlas as a page of the documentation: ``python -m cloison.view.atlas_page docs/atlas.csv docs/atlas.md``."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

__all__ = ["atlas_page"]

_VERDICTS = ("exact", "leak", "mismatch", "error")


def atlas_page(rows: Sequence[Mapping[str, str]]) -> str:
    """Return Markdown: how often each signal is exact, what `adapt` makes of each type, and the types one by one."""
    measured = [row for row in rows if row["attention"]]
    types = sorted({row["model_type"] for row in measured})
    counts = Counter((row["attention"], row["signal"], row["use_cache"], row["verdict"]) for row in measured)
    kinds = sorted({key[:3] for key in counts})
    lines = [
        "# The atlas",
        "",
        f"What {len(types)} causal language models of transformers {version('transformers')} do with packed rows: tiny random",
        "models with one layer of every kind that the type knows, windows shorter than the samples, float32, CPU: isolation",
        "and equality, by experiment. Variants of a type bear its name and a word. `make atlas` measures it again;",
        "[the table](atlas.csv) has the place and the size of each leak.",
        "",
        "## How often each signal is exact",
        "",
        "| attention | signal | use_cache | exact | leak | mismatch | error |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {' | '.join(kind)} | {' | '.join(str(counts[(*kind, verdict)]) for verdict in _VERDICTS)} |" for kind in kinds
    ]
    lines += ["", "An error is that of the model under that signal; under sdpa most are types that have no sdpa attention.", ""]
    adapted: dict[tuple[str, str], str] = {(row["model_type"], row["attention"]): row.get("adapted", "") for row in measured}
    ways = Counter(_way(text) for text in adapted.values())
    lines += ["## What adapt makes of them", "", "| way | model types and attentions |", "|---|---|"]
    lines += [f"| {way} | {count} |" for way, count in sorted(ways.items())]
    lines += ["", "## Type by type", "", "`positions`, cache off; then what `adapt` chooses.", ""]
    lines += ["| model type | eager | sdpa | adapt, eager | adapt, sdpa |", "|---|---|---|---|---|"]
    found = {
        (r["model_type"], r["attention"]): r["verdict"]
        for r in measured
        if r["signal"] == "positions" and r["use_cache"] == "off"
    }
    for name in types:
        cells = [found.get((name, "eager"), ""), found.get((name, "sdpa"), "")]
        cells += [_way(adapted.get((name, kind), "")) for kind in ("eager", "sdpa")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    missing = [row for row in rows if not row["attention"]]
    if missing:
        lines += [
            "",
            "## Not built",
            "",
            *(f"- {row['model_type']}: {row['detail'].removeprefix('not built: ')}" for row in missing),
        ]
    return "\n".join([*lines, ""])


def _way(text: str) -> str:
    if text.startswith("refused"):
        return "refused"
    return text.split(" (")[0] if text else "not measured"


if __name__ == "__main__":
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        Path(sys.argv[2]).write_text(atlas_page(list(csv.DictReader(file))), encoding="utf-8")
