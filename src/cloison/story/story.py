"""The story: one model trained under five set-ups; what the dashboard shows beside what is true, and who names the fault."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloison.blocks import Block
from cloison.errors import require
from cloison.samples import Sample
from cloison.story.configuration import CONFIGURATION, SETUPS, Configuration, Run
from cloison.story.dialogs import TOKENIZER, Dialogs, dialogs
from cloison.story.running import Progress, run_all
from cloison.story.setups import blocks_of, collate_as
from cloison.story.training import Result, model_of

if TYPE_CHECKING:
    from cloison.proof.report import VerifyReport

__all__ = ["Story", "runs_of", "spot_the_fault", "tell"]


@dataclass(frozen=True)
class Story:
    """All that was run and seen.

    Attributes:
        configuration: written down before.
        results: one a run.
        reports: what `verify` says of each set-up, before any training.
        seconds: wall time of it all.
    """

    configuration: Configuration
    results: tuple[Result, ...]
    reports: dict[str, VerifyReport]
    seconds: float

    def of(self, setup: str, neighbours: str, samples_per_block: int | None = None) -> list[Result]:
        """Return the results of a set-up, all seeds."""
        size = samples_per_block or self.configuration.samples_per_block
        wanted = (setup, neighbours, size)
        return [r for r in self.results if (r.run.setup, r.run.neighbours, r.run.samples_per_block) == wanted]


def runs_of(configuration: Configuration) -> list[Run]:
    """Return every run: all set-ups on all neighbours and seeds, and the leak at other block sizes on the first seed."""
    c = configuration
    grid = [Run(setup, near, c.samples_per_block, seed) for near in c.neighbours for seed in c.seeds for setup in SETUPS]
    growth = [
        Run("plain causal", near, size, c.seeds[0])
        for near in c.neighbours
        for size in c.block_sizes
        if size != c.samples_per_block
    ]
    return [*grid, *growth]


def tell(out: Path, progress: Progress, configuration: Configuration = CONFIGURATION, workers: int = 2) -> Story:
    """Run every run, ``workers`` processes of one thread at a time, and `verify` each set-up.

    Finished runs are kept in ``out``, so that an interrupted story goes on where it stopped.

    Cost: half a minute or less a run and core; 26 runs.
    """
    require("transformers", "hf")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    made = dialogs(configuration)
    results = run_all(out, runs_of(configuration), configuration, made, workers, progress)
    reports = {setup: _verify(setup, configuration, made) for setup in SETUPS}
    return Story(configuration, results, reports, time.perf_counter() - began)


def _verify(setup: str, configuration: Configuration, made: Dialogs) -> VerifyReport:
    """Return what `verify` says of ``setup`` on one small batch, with the loss that it trains."""
    from cloison.proof.verify import verify

    samples: list[Sample] = [sample for group in made.trained[:2] for sample in group]
    blocks = [*blocks_of(setup, samples[:3], 3), *blocks_of(setup, samples[3:5], 3)]
    model = model_of(configuration, 0, made.vocabulary)
    return verify(model, blocks, collate=partial(collate_as, setup), fix=False)


def spot_the_fault(configuration: Configuration = CONFIGURATION) -> tuple[str, VerifyReport]:
    """Return a page, and its report, of one batch with two bugs and one claim that is correct.

    The samples see each other (no positions are passed), the last token of each is trained to predict the first of the next,
    and it is true that packing them saves positions.
    """
    from tokenizers import Tokenizer

    from cloison.view.batch_page import batch_page

    made = dialogs(configuration, compact=False)
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    (block,) = blocks_of("packed", made.everything[:5], 5)

    def collate(blocks: Sequence[Block]) -> dict[str, Any]:
        batch = collate_as("boundary targets", blocks)
        del batch["position_ids"]
        return batch

    return batch_page(
        model_of(configuration, 0, tokenizer.get_vocab_size()), block, collate, title="Spot the fault", tokenizer=tokenizer
    )
