"""What the story's runs say, as rows of numbers: for the terminal and for its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cloison.story.configuration import SETUPS
from cloison.story.story import Story
from cloison.story.training import Result

__all__ = [
    "DASHBOARD",
    "GROWTH",
    "PLACES",
    "VERDICTS",
    "WATCHED",
    "converged",
    "dashboard_rows",
    "effects",
    "growth_rows",
    "place_rows",
    "rounding",
    "told_plainly",
    "told_view",
    "verdict_rows",
    "watched_rows",
]

DASHBOARD = ("set-up", "training loss", "tokens/s", "answers, alone", "held-out question, alone")
GROWTH = ("samples a block", "training loss", "answers, alone", "held-out question, alone")
PLACES = ("set-up", "by place in the block: first ... last")
VERDICTS = ("set-up", "verify, before training", "watch, in the first step of its training")
WATCHED = ("set-up", "what was seen in its first step", "what mends it")
RIGHT = ("alone", "packed")
_LAST_STEPS = 20


def dashboard_rows(story: Story, neighbours: str) -> list[tuple[str, ...]]:
    """Return a row a set-up: what its dashboard shows at the end of training, then what is true of samples alone.

    Where seeds differ, the range is shown.
    """
    return [
        (
            setup,
            _range([float(np.mean(r.training_loss[-_LAST_STEPS:])) for r in found]),
            f"{np.mean([r.tokens_per_s for r in found]):,.0f}",
            _range([r.answer_loss for r in found]),
            _range([r.held_out_loss for r in found]),
        )
        for setup in SETUPS
        if (found := story.of(setup, neighbours))
    ]


def growth_rows(story: Story, neighbours: str) -> list[tuple[str, ...]]:
    """Return a row a block size of the plain causal mask, on the first seed, below the samples alone."""
    seed = story.configuration.seeds[0]
    found = [("1 (alone)", r) for r in story.of("alone", neighbours)]
    found += [(str(size), r) for size in story.configuration.block_sizes for r in story.of("plain causal", neighbours, size)]
    return [
        (size, _loss(_dashboard([r])), _loss(r.answer_loss), _loss(r.held_out_loss)) for size, r in found if r.run.seed == seed
    ]


def place_rows(story: Story, neighbours: str) -> Sequence[tuple[str, ...]]:
    """Return a row a packed set-up: the loss of answers by place in the block, as training sees it, mean over seeds."""
    return [
        (setup, "  ".join(_loss(value) for value in np.mean([r.loss_by_place for r in found], axis=0)))
        for setup in SETUPS
        if setup != "alone" and (found := story.of(setup, neighbours))
    ]


def rounding(story: Story) -> tuple[float, float]:
    """Return by how much the training losses of "packed" and "alone" differ: in the first ten steps, and at most in any.

    They are the same numbers computed in another order; what rounding does to one step, training carries on to the next.
    """
    first = most = 0.0
    for near in story.configuration.neighbours:
        for alone, packed in zip(story.of("alone", near), story.of("packed", near), strict=True):
            gap = np.abs(np.array(alone.training_loss) - np.array(packed.training_loss))
            first, most = max(first, float(gap[:10].max())), max(most, float(gap.max()))
    return first, most


def verdict_rows(story: Story) -> list[tuple[str, ...]]:
    """Return a row a set-up: the faults that `verify` names before training, and those that `watch` names in the first step.

    Where the first steps of a set-up's runs do not all show the same, each answer stands with the number of its runs.
    """
    rows: list[tuple[str, ...]] = []
    for setup, report in story.reports.items():
        seen = Counter(named(r.watched["findings"]) for r in story.results if r.run.setup == setup)
        watched = seen.most_common(1)[0][0] if len(seen) == 1 else "; ".join(f"{kinds} ({n} runs)" for kinds, n in seen.items())
        rows.append((setup, named([finding.to_dict() for finding in report.findings]), watched))
    return rows


def watched_rows(story: Story) -> list[tuple[str, ...]]:
    """Return a row a finding: what `watch` said of each faulty set-up in the first step of its first run, and what mends it."""
    rows: list[tuple[str, ...]] = []
    for setup in SETUPS:
        first = next((r for r in story.results if r.run.setup == setup), None)
        found = [] if first is None else [f for f in first.watched["findings"] if f["severity"] == "error"]
        rows += [(setup, finding["message"], finding["fix"]) for finding in found]
    return rows


def named(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return the kinds of the errors among ``findings``, or that there are none."""
    return ", ".join(dict.fromkeys(f["kind"] for f in findings if f["severity"] == "error")) or "as if alone"


def effects(story: Story, neighbours: str) -> list[str]:
    """Return a sentence a faulty set-up: whether the damage shows in evaluation, beyond the spread of the seeds.

    Seeds on which a right set-up did not converge say nothing about damage: they are named, and left out.
    """
    lost = sorted({r.run.seed for setup in RIGHT for r in story.of(setup, neighbours) if not converged(r)})
    said = [f"On seed {seed} a right set-up did not converge either: damage cannot be read there." for seed in lost]
    right = [r for r in story.of("packed", neighbours) if r.run.seed not in lost]
    for setup in list(SETUPS)[len(RIGHT) :]:
        wrong = [r for r in story.of(setup, neighbours) if r.run.seed not in lost]
        if not wrong or not right:
            continue
        worse = [
            f"{name} {_range(bad)} where packed has {_range(good)}"
            for name, bad, good in (
                ("answers", [r.answer_loss for r in wrong], [r.answer_loss for r in right]),
                ("a held-out question", [r.held_out_loss for r in wrong], [r.held_out_loss for r in right]),
            )
            if min(bad) > max(good)
        ]
        hidden = _dashboard(wrong) <= _dashboard(right) * 1.1
        damage = f"worse in evaluation on every seed ({', '.join(worse)})" if worse else "no damage shows in evaluation"
        told = "the training loss gives no warning" if hidden else "the training loss is higher too"
        said.append(f"{setup}: {damage}; {told}.")
    return said


def converged(result: Result) -> bool:
    """Whether the training ended below a fifth of the loss at which it began."""
    return _dashboard([result]) < result.training_loss[0] / 5


def told_plainly(story: Story) -> dict[str, Any]:
    """Return everything as plain data."""
    return {
        "configuration": asdict(story.configuration),
        "runs": [asdict(result) for result in story.results],
        "verdicts": {setup: report.to_dict() for setup, report in story.reports.items()},
        "seconds": story.seconds,
    }


def told_view(story: Story, page: str) -> Any:
    """Return the same tables for the terminal."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    def drawn(heads: Sequence[str], rows: Sequence[tuple[str, ...]], numbers: bool = True) -> Table:
        out = Table(box=None, pad_edge=False)
        for index, head in enumerate(heads):
            out.add_column(head, justify="right" if numbers and index else "left")
        for row in rows:
            out.add_row(*row)
        return out

    first, most = rounding(story)
    parts: list[Any] = [
        Rule("who names the fault", align="left"),
        drawn(VERDICTS, verdict_rows(story), numbers=False),
    ]
    for near in story.configuration.neighbours:
        parts += [
            Rule(f"{near} neighbours: the dashboard, and what is true", align="left"),
            drawn(DASHBOARD, dashboard_rows(story, near)),
            Text(),
            drawn(GROWTH, growth_rows(story, near)),
            Text(),
            drawn(PLACES, place_rows(story, near), numbers=False),
            Text(),
            *map(Text, effects(story, near)),
        ]
    parts += [
        Rule("packed is alone", align="left"),
        Text(f"training losses differ by at most {first:.1e} in the first ten steps, {most:.1e} in any"),
        Text(f"{len(story.results)} runs in {story.seconds:.0f} s. Look: {page}"),
    ]
    return Group(*parts)


def _dashboard(found: Sequence[Result]) -> float:
    return float(np.mean([np.mean(r.training_loss[-_LAST_STEPS:]) for r in found]))


def _range(values: Sequence[Any]) -> str:
    low, high = _loss(min(values)), _loss(max(values))
    return low if low == high else f"{low}-{high}"


def _loss(value: float) -> str:
    """Two digits after the point, three where the first of them is 0."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
