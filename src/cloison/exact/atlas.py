"""The column ``adapted`` of the atlas: what `adapt` makes of every causal-LM type, eager and sdpa.

``python -m cloison.exact.atlas docs/atlas.csv`` adds it to what ``python -m cloison.proof.atlas`` measured: the way that was
proven, or ``refused`` with the reason. One process for each core, started afresh, a type at a time.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloison.errors import NotExactError
from cloison.exact.adapt import adapt
from cloison.proof.atlas import ATTENTIONS, entries
from cloison.proof.setup import FAILURES
from cloison.proof.tiny import tiny_model

__all__ = ["COLUMN", "adapted", "summary", "write"]

COLUMN = "adapted"


def adapted(name: str, model_type: str, changes: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return (name, attention) to what `adapt` says of one entry: a way, "refused: ...", or "not built"."""
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[tuple[str, str], str] = {}
    for attention in ATTENTIONS:
        try:
            model, _ = tiny_model(model_type, attn=attention, **changes)
        except FAILURES:
            found[name, attention] = "not built"
            continue
        try:
            found[name, attention] = adapt(model, show=False).way.name
        except NotExactError as error:
            found[name, attention] = "refused: " + " ".join(error.found.split())[:200]
    return found


def write(path: str | Path, names: Sequence[str] | None = None, workers: int | None = None) -> dict[tuple[str, str], str]:
    """Add the column to the atlas at ``path`` (for ``names`` only, where given), and return what it holds.

    Cost: about 3 minutes on 2 cores for all types.
    """
    import multiprocessing

    chosen = {name: entry for name, entry in entries().items() if names is None or name in names}
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=40) as pool:
        parts = pool.starmap(adapted, [(name, *entry) for name, entry in chosen.items()], chunksize=1)
    found = {key: value for part in parts for key, value in part.items()}
    text = Path(path).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    columns = [*rows[0], *([] if COLUMN in rows[0] else [COLUMN])]
    for row in rows:
        row[COLUMN] = found.get((row["model_type"], row["attention"]), row.get(COLUMN) or "")
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    Path(path).write_text(out.getvalue(), encoding="utf-8")
    return found


def summary(found: dict[tuple[str, str], str]) -> str:
    """Return how many entries each rung makes exact, for each attention and for an entry as a whole."""
    lines = []
    for attention in ATTENTIONS:
        rungs = Counter(
            value[0] if value[1:2] == ":" else value.split(":")[0] for (_, a), value in found.items() if a == attention
        )
        lines.append(f"{attention}: " + ", ".join(f"{rung} {count}" for rung, count in sorted(rungs.items())))
    names = sorted({name for name, _ in found})
    built = [name for name in names if any(found[name, a] != "not built" for a in ATTENTIONS)]
    ways = {name: {found[name, a][:2] for a in ATTENTIONS} - {"no"} for name in built}
    upto = {rung: sum(all(way in {f"{r}:" for r in "abcdefg"[: i + 1]} for way in ways[name]) for name in built)
            for i, rung in enumerate("abcdefg")}  # fmt: skip
    lines.append(f"{len(built)} entries: exact with rungs up to e {upto['e']}, up to f {upto['f']}, up to g {upto['g']}")
    lines += [f"  {name} ({a}): {found[name, a]}" for name in built for a in ATTENTIONS if found[name, a].startswith("refused")]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(summary(write(sys.argv[1] if len(sys.argv) > 1 else "docs/atlas.csv")) + "\n")
