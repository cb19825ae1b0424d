"""The one configuration of the story, written down before it was run."""

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
        samples_per_block, blocks_per_step: so many samples make a step, in every set-up the same ones.
        block_sizes: samples a block in the runs that show how the leak grows; the samples of a step stay the same.
        seeds: of weights and order.
    """

    functions: int = 160
    answer_characters: int = 60
    phrasings: tuple[str, ...] = ("What does {} do?", "Describe the function {}.", "Please explain {} in a few words.")
    held_out: str = "Tell me about {}."
    samples_per_block: int = 8
    samples_per_step: int = 32
    block_sizes: tuple[int, ...] = (2, 4, 8, 16)
    layers: int = 3
    width: int = 96
    heads: int = 4
    epochs: int = 18
    initial_deviation: float = 0.02
    learning_rate: float = 4e-3
    warmup_steps: int = 20
    second_beta: float = 0.999
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
