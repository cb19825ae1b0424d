"""The story: one model trained under five set-ups; what the dashboard shows beside what is true, and who names the fault."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloison.blocks import Block
from cloison.errors import StoreError, require
from cloison.story.configuration import CONFIGURATION, SETUPS, Configuration, Run
from cloison.story.training import Result, collate_as, dialogs, model_of

if TYPE_CHECKING:
    from cloison.proof.report import VerifyReport

__all__ = ["Story", "runs_of", "spot_the_fault", "tell"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Story:
    """All that was run and seen.

    Attributes:
        configuration: written down before.
        results: one a run.
        reports: what `verify` says of each set-up, before any training.
        seconds: wall time of the training runs together.
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

    Cost: about 40 s a run and core; 26 runs.
    """
    require("transformers", "hf")
    out.mkdir(parents=True, exist_ok=True)
    runs = runs_of(configuration)
    began = time.perf_counter()
    jobs = [_job(out, index, run, configuration) for index, run in enumerate(runs)]
    _run_all([job for job in jobs if not _done(job)], workers, progress, len(jobs))
    results = tuple(_result(job) for job in jobs)
    seconds = time.perf_counter() - began
    return Story(configuration, results, _verified(configuration), seconds)


def _job(out: Path, index: int, run: Run, configuration: Configuration) -> Path:
    path = out / f"run-{index:02d}.json"
    text = json.dumps({"run": asdict(run), "configuration": asdict(configuration)}, sort_keys=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.with_suffix(".result").unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def _done(job: Path) -> bool:
    return job.with_suffix(".result").exists()


def _run_all(jobs: Sequence[Path], workers: int, progress: Progress, total: int) -> None:
    waiting = list(jobs)
    running: list[tuple[Path, subprocess.Popen[bytes]]] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                command = [sys.executable, "-m", "cloison.story.training", str(job)]
                running.append((job, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)))
            for job, process in list(running):
                if process.poll() is not None:
                    running.remove((job, process))
                    _raise_if_failed(job, process)
                    progress("training", total - len(waiting) - len(running), total)
            time.sleep(0.2)
    finally:
        for _, process in running:
            process.kill()


def _raise_if_failed(job: Path, process: subprocess.Popen[bytes]) -> None:
    said = (process.stderr.read() if process.stderr else b"").decode(errors="replace")
    if process.returncode or not _done(job):
        last = said.strip().splitlines()[-1:] or ["nothing was said"]
        raise StoreError(
            f"the run {job.name} of the story must end.", f"It failed: {last[0]}.", "Run it again alone to see why."
        )


def _result(job: Path) -> Result:
    plain = json.loads(job.with_suffix(".result").read_text(encoding="utf-8"))
    return Result(**plain | {"run": Run(**plain["run"])})


def _verified(configuration: Configuration) -> dict[str, VerifyReport]:
    """Return what `verify` says of each set-up on one small batch, with the loss that it trains."""
    from cloison.packing.memory import pack_samples
    from cloison.proof.verify import verify

    trained, _ = dialogs(configuration)
    samples = [sample for group in trained[:2] for sample in group]
    vocabulary = 1 + max(int(sample.input_ids.max()) for group in trained for sample in group)
    blocks = [pack_samples(part, capacity=sum(map(len, part)), order="input")[0] for part in (samples[:3], samples[3:5])]
    return {setup: _verify(verify, setup, configuration, vocabulary, blocks) for setup in SETUPS}


def _verify(verify: Any, setup: str, configuration: Configuration, vocabulary: int, blocks: Iterable[Any]) -> VerifyReport:
    model = model_of(configuration, 0, vocabulary)
    given = list(blocks)
    if setup == "alone":
        from cloison.packing.memory import pack_samples

        given = [pack_samples([sample], capacity=len(sample))[0] for block in given for sample in block.samples()]
    report: VerifyReport = verify(model, given, collate=partial(collate_as, setup), fix=False)
    return report


def spot_the_fault(configuration: Configuration = CONFIGURATION) -> tuple[str, VerifyReport]:
    """Return a page, and its report, of one batch with two bugs and one claim that is correct.

    The samples see each other (no positions are passed), the last token of each is trained to predict the first of the next,
    and it is true that packing them saves positions.
    """
    from tokenizers import Tokenizer

    from cloison.packing.memory import pack_samples
    from cloison.story.training import TOKENIZER
    from cloison.view.batch_page import batch_page

    trained, _ = dialogs(configuration, compact=False)
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    samples = [sample for group in trained[:2] for sample in group][:5]
    (block,) = pack_samples(samples, capacity=sum(map(len, samples)), order="input")

    def collate(blocks: Sequence[Block]) -> dict[str, Any]:
        batch = collate_as("boundary targets", blocks)
        del batch["position_ids"]
        return batch

    return batch_page(
        model_of(configuration, 0, tokenizer.get_vocab_size()), block, collate, title="Spot the fault", tokenizer=tokenizer
    )
