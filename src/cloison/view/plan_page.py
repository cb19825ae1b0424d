"""The page of plans side by side: the table of `cloison plan`, the histogram of lengths, and the first blocks of each plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cloison.view.charts import bars, strips
from cloison.view.page import render_page
from cloison.view.tables import counted, number, percent, table

__all__ = ["plan_page"]

_HEADS = (
    "policy",
    "capacity",
    "blocks",
    "full",
    "proven bound",
    "gap",
    "samples cut",
    "tokens lost",
    "between blocks",
    "at random",
    "samples a step",
    "variation",
    "steps",
)


def plan_page(lengths: Any, rows: Sequence[Mapping[str, Any]], source: str) -> str:
    """Return the HTML.

    Args:
        lengths: int [samples].
        rows: as `cloison.view.plan_table.plan_rows` gives them.
        source: what the lengths are of, for the subtitle.
    """
    made = [row for row in rows if "refused" not in row]
    section = {
        "id": "plans",
        "title": "Plans",
        "template": "plans.html.j2",
        "histogram": bars(lengths, "tokens", f"Lengths of {len(lengths):,} samples."),
        "table": table("policies and capacities", _HEADS, [_cells(row) for row in made], numbers=tuple(range(1, len(_HEADS)))),
        "refused": [f"{row['policy']} at {row['capacity']:,} is refused: {row['refused']}" for row in rows if "refused" in row],
        "note": f"Steps are of {made[0]['blocks_per_step']} blocks." if made else "",
        "parts": [
            {
                "title": f"{row['policy']}, capacity {row['capacity']:,}",
                "strips": strips(
                    [(str(b), block) for b, block in enumerate(row["first_blocks"])],
                    row["capacity"],
                    f"The first {len(row['first_blocks'])} of {counted(row['num_blocks'], 'block')}; what is empty is padding.",
                ),
            }
            for row in made
        ],
    }
    return render_page("Plans", source, [section])


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["policy"],
        number(row["capacity"]),
        number(row["num_blocks"]),
        percent(row["utilization"]),
        f"{number(row['lower_bound'])} ({row['bound_name']})",
        percent(row["gap"], 3),
        number(row["samples_cut"]),
        number(row["lost_tokens"]),
        number(row["length_variance_share"]),
        number(row["random_variance_share"]),
        number(row["samples_per_step"], 1),
        percent(row["samples_per_step_variation"], 1),
        number(row["steps_per_epoch"]),
    ]
