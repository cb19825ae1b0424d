"""The story's page, and the page "spot the fault"."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloison.story.configuration import SETUPS
from cloison.story.story import Story
from cloison.story.telling import (
    DASHBOARD,
    GROWTH,
    PLACES,
    VERDICTS,
    WATCHED,
    dashboard_rows,
    effects,
    growth_rows,
    place_rows,
    rounding,
    verdict_rows,
    watched_rows,
)
from cloison.view.charts import lines
from cloison.view.page import render_page
from cloison.view.tables import table
from cloison.view.verdict import verdict_section

__all__ = ["story_page"]

_SMOOTHED = 5
"""Steps of training that make a point of the drawn lines."""


def story_page(story: Story) -> str:
    """Return the HTML: what was run, dashboard beside truth, growth of the leak, loss by place, each set-up's verdict."""
    c = story.configuration
    first, most = rounding(story)
    parts: list[dict[str, Any]] = [
        _part(
            "The set-ups",
            [f"{name}: {what}." for name, what in SETUPS.items()],
            [
                table("who names the fault", VERDICTS, verdict_rows(story)),
                table("what watch said in the first step", WATCHED, watched_rows(story)),
            ],
        )
    ]
    for near in c.neighbours:
        parts.append(
            _part(
                f"With {near} neighbours",
                [_meaning(near), *effects(story, near)],
                [
                    table(f"{near}: dashboard and truth", DASHBOARD, dashboard_rows(story, near), numbers=(1, 2, 3, 4)),
                    table(f"{near}: growth of the leak", GROWTH, growth_rows(story, near), numbers=(0, 1, 2, 3)),
                    table(f"{near}: loss by place", PLACES, place_rows(story, near)),
                ],
                [
                    lines(
                        {setup: _smooth(story, setup, near) for setup in SETUPS if story.of(setup, near)},
                        f"{_SMOOTHED} steps",
                        f"What the dashboard shows with {near} neighbours: the training loss of each set-up, mean over seeds "
                        f"and {_SMOOTHED} steps, on a logarithmic scale. Dashed lines may lie on whole ones.",
                    )
                ],
            )
        )
    said = [
        f"{c.functions} functions of the standard library; the first {c.answer_characters} characters of each docstring are "
        f"the answer, asked in {len(c.phrasings)} phrasings, one more kept for evaluation. A Llama of {c.layers} layers, "
        f"{c.width} wide, {c.epochs} epochs, {c.samples_per_step} samples a step, {c.samples_per_block} a block, "
        f"seeds {', '.join(map(str, c.seeds))}.",
        f"Packed and alone are the same training: their losses differ by at most {first:.1e} in the first ten steps and by "
        f"{most:.1e} in any.",
    ]
    sections: list[dict[str, Any]] = [
        {"id": "story", "title": "The story", "template": "story.html.j2", "said": said, "parts": parts},
        *(
            verdict_section(report) | {"id": f"verdict-{index}", "title": f"Verdict: {setup}"}
            for index, (setup, report) in enumerate(story.reports.items())
        ),
    ]
    return render_page("What packing does when nobody looks", f"{len(story.results)} runs", sections)


def _smooth(story: Story, setup: str, neighbours: str) -> Any:
    """The training loss of ``setup``, mean over its seeds and over every few steps."""
    losses = np.mean([result.training_loss for result in story.of(setup, neighbours)], axis=0)
    whole = max(losses.size // _SMOOTHED, 1) * _SMOOTHED
    return np.resize(losses, whole).reshape(-1, _SMOOTHED).mean(axis=1)


def _meaning(neighbours: str) -> str:
    if neighbours == "related":
        return (
            "Related: the phrasings of one question lie beside each other, so that the answer to one stands in its neighbours."
        )
    return "Unrelated: all samples are shuffled, so that neighbours know nothing of each other."


def _part(title: str, said: list[str], tables: list[Any], drawn: list[Any] | None = None) -> dict[str, Any]:
    return {"title": title, "said": said, "tables": tables, "charts": drawn or []}
