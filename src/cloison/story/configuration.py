"""The one configuration of the story, written down before it was run.

Its numbers were chosen by short runs of the *right* set-ups alone ("packed" and "alone"), on seeds that the story does not use
(7 to 10), and by nothing else: no wrong set-up was run to choose them.

- At a learning rate of 4e-3 after 20 steps of warm-up, the usual deviation of 0.02 and steps of 32 samples, related neighbours
  (the phrasings of one question fill a step together, so that ten questions make a step) were learned late: answers cost 0.8
  after 18 epochs.
- Steps of half as many samples, hence twice as many; 3e-3 after 60 steps, falling by half a cosine; a second beta of 0.98,
  which forgets the first steep steps sooner; weights of deviation 0.05, nearer to one over the root of the width; two layers of
  128 in place of three of 96. After 12 epochs answers cost 0.07 to 0.09 with related neighbours (seeds 8, 9, 10), 0.006 with
  unrelated ones (seed 7), for 21 to 24 s of processor time a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CONFIGURATION", "SETUPS", "Configuration", "Neighbours", "Run"]

Neighbours = Literal["related", "unrelated"]

SETUPS = {
    "alone": "samples alone, padded",
    "packed": "packed through cloison",
    "plain causal": "packed under a plain causal mask: samples see the ones before them",
    "boundary targets": "packed, isolated, and the last token of a sample trained to predict the first of the next",
    "prompts and padding": "packed, isolated, and prompts and padding trained (no sample's first token)",
}
"""Set-up to what it is. The first two are meant to be the same thing."""


@dataclass(frozen=True)
class Configuration:
    """Every number of the story.

    Attributes:
        functions: documented functions of the standard library, spread evenly over it.
        answer_characters: of a docstring's start, the answer to learn.
        phrasings: questions that are trained; one more is kept for evaluation.
        samples_per_block, samples_per_step: the samples of a step are the same in every set-up.
        block_sizes: samples a block in the runs that show how the leak grows; the samples of a step stay the same.
        initial_deviation: of the weights at the start.
        learning_rate: the largest; reached after warmup_steps, then half a cosine down to nothing.
        second_beta: of AdamW.
        largest_gradient: norm to which gradients are clipped.
        seeds: of weights and order.
    """

    functions: int = 160
    answer_characters: int = 60
    phrasings: tuple[str, ...] = ("What does {} do?", "Describe the function {}.", "Please explain {} in a few words.")
    held_out: str = "Tell me about {}."
    samples_per_block: int = 8
    samples_per_step: int = 16
    block_sizes: tuple[int, ...] = (2, 4, 8, 16)
    layers: int = 2
    width: int = 128
    heads: int = 4
    epochs: int = 12
    initial_deviation: float = 0.05
    learning_rate: float = 3e-3
    warmup_steps: int = 60
    second_beta: float = 0.98
    largest_gradient: float = 1.0
    weight_decay: float = 0.01
    seeds: tuple[int, ...] = (0, 1)
    neighbours: tuple[Neighbours, ...] = ("related", "unrelated")


@dataclass(frozen=True)
class Run:
    """One training run: which set-up, whose neighbours, how many samples a block, which seed."""

    setup: str
    neighbours: Neighbours
    samples_per_block: int
    seed: int


CONFIGURATION = Configuration()
