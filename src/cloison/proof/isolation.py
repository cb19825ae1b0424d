"""Isolation by perturbation: change the tokens of some segments, keep every shape, and see which outputs move.

Binary codes detect any leak among n segments in 2 * ceil(log2 n) forwards; where one fires, n forwards (one segment changed at
a time) say who reaches whom, since decoded codes name edges that are none. Bit equality is the criterion wherever the same run
repeated is bit-equal; else what repeats differ by is the noise that a move must exceed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.blocks import bounds, changed, lengths_of
from cloison.proof.pieces import deviation, gaps, pieces

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ahead", "Influence", "codes", "influence", "look_ahead", "moves", "scale_of"]

Run = Callable[[Sequence[Block]], "Tensor"]
"""Blocks to outputs [tokens, features], the tokens in packed row order."""

MATRIX_SEGMENTS = 64
"""Up to this many segments the whole matrix is measured where a code fired; above, the worst cell is searched by halving."""

NOISE_MARGIN = 4.0
"""Where repeats differ, a move counts when it exceeds this many times their largest difference."""


@dataclass(frozen=True, eq=False)
class Influence:
    """What moved.

    Attributes:
        matrix: float64 [segments, segments]: how far segment d (column) moved when segment s (row) changed, in standard
            deviations of the outputs; NaN where not measured. The diagonal says how far a segment moves by its own tokens.
        noise: how far outputs move when the same run is repeated, in the same unit; 0.0 is bit equality.
        threshold: what a move must exceed to count.
        forwards: how many were run.
    """

    matrix: npt.NDArray[np.float64]
    noise: float
    threshold: float
    forwards: int

    @property
    def cells(self) -> npt.NDArray[np.bool_]:
        """bool [segments, segments]: the cells off the diagonal that moved."""
        moved = np.nan_to_num(self.matrix, nan=0.0) > self.threshold
        np.fill_diagonal(moved, False)
        return moved

    @property
    def worst(self) -> tuple[int, int, float]:
        """(source, destination, size) of the cell off the diagonal that moved most."""
        off = np.nan_to_num(self.matrix, nan=0.0).copy()
        np.fill_diagonal(off, -1.0)
        source, destination = np.unravel_index(int(off.argmax()), off.shape)
        return int(source), int(destination), float(off[source, destination])

    @property
    def isolated(self) -> bool:
        """Whether no cell off the diagonal moved."""
        return not self.cells.any()


def influence(
    run: Run,
    blocks: Sequence[Block],
    ids: npt.NDArray[np.int64],
    *,
    seed: int = 0,
    repeats: int = 1,
    trials: int = 1,
    matrix: bool = False,
    base: Tensor | None = None,
) -> Influence:
    """Return what moves what among the segments of ``blocks``.

    Args:
        run: see `Run`. It must be seeded where it draws random numbers.
        ids: the token ids that changed tokens are drawn from, sorted.
        repeats: how often the unchanged run is repeated to know its noise; where the first repeat differs, 3 are made.
        trials: how many other tokens each changed token is tried with; one leaves a hard choice (a top-k, a hash) a chance to
            come out the same.
        matrix: measure the whole matrix also where no code fired.
        base: outputs of the unchanged blocks, where the caller has them.

    Raises:
        InputError: fewer than two segments, or outputs that are not finite.

    Cost: 1 + repeats + trials * 2 * ceil(log2 segments) forwards, and one a segment more where something moved.
    """
    places = bounds(blocks)
    count = len(places)
    if count < 2:
        raise InputError("isolation needs two segments.", f"The blocks hold {count}.", "Pass blocks with more segments.")
    forwards = 0 if base is not None else 1
    base = run(blocks) if base is None else base
    scale = scale_of(base)
    noise = 0.0
    for repeat in range(max(repeats, 1) + 2):
        if repeat >= repeats and noise == 0.0:
            break
        noise = max(noise, float(moves(base, run(blocks), places, scale).max()))
        forwards += 1
    threshold = noise * NOISE_MARGIN
    found = np.full((count, count), np.nan)

    def moved_by(chosen: Sequence[int], trial: int) -> npt.NDArray[np.float64]:
        return moves(base, run(changed(blocks, set(chosen), ids, seed + trial)), places, scale)

    fired: list[tuple[list[int], list[int], int]] = []
    whole = count <= 4 or matrix  # as many forwards as the codes, and they locate
    for trial in range(0 if whole else trials):
        for chosen in codes(count):
            moved = moved_by(chosen, trial)
            forwards += 1
            outside = [d for d in range(count) if d not in chosen]
            found[chosen, chosen] = np.fmax(found[chosen, chosen], moved[chosen])
            hit = [d for d in outside if moved[d] > threshold]
            if hit:
                fired.append((chosen, hit, trial))
            else:
                found[np.ix_(chosen, outside)] = np.fmax(found[np.ix_(chosen, outside)], moved[outside])
    if whole or (fired and count <= MATRIX_SEGMENTS):
        found[:] = np.nan
        for trial in range(trials) if whole else sorted({trial for *_, trial in fired}):
            for source in range(count):
                found[source] = np.fmax(found[source], moved_by([source], trial))
            forwards += count
    elif fired:
        chosen, hit, trial = fired[0]
        sources = list(chosen)
        while len(sources) > 1:
            half = sources[: len(sources) // 2]
            forwards += 1
            sources = half if moved_by(half, trial)[hit[0]] > threshold else sources[len(sources) // 2 :]
        found[sources[0]] = moved_by(sources, trial)
        forwards += 1
    return Influence(found, noise, threshold, forwards)


def codes(count: int) -> list[list[int]]:
    """Return the sets of segments to change: for each bit of their number those that have it, and those that do not.

    Of any two segments each is changed at least once while the other is not.
    """
    sets: list[list[int]] = []
    for bit in range(max(count - 1, 1).bit_length()):
        ones = [number for number in range(count) if number >> bit & 1]
        sets += [ones, [number for number in range(count) if not number >> bit & 1]]
    return [chosen for chosen in sets if 0 < len(chosen) < count]


def moves(base: Tensor, other: Tensor, places: Sequence[slice], scale: float) -> npt.NDArray[np.float64]:
    """Return float64 [segments]: the largest difference in each segment, in units of ``scale``; 0.0 only for equal bits."""
    rows = gaps(base, other).cpu().numpy()
    return np.array([float(rows[place].max()) for place in places]) / scale


def scale_of(base: Tensor) -> float:
    """Return the standard deviation of the finite outputs, the unit of every size.

    Raises:
        InputError: outputs that are NaN, or that are all the same.
    """
    import torch

    doubtful = [part for part in pieces(base, base[:1].numel()) if bool(torch.isnan(part.sum()))]  # inf - inf is NaN too
    count = sum(int(torch.isnan(part).any(-1).sum()) for part in doubtful)
    if count:
        raise InputError(
            "the outputs must be numbers.",
            f"{count} of {base.shape[0]} tokens have NaN outputs.",
            "Look for a mask with empty rows, an overflow of the dtype, or weights that are not finite.",
        )
    scale = deviation(base)
    if scale == 0.0:
        raise InputError("the outputs must depend on the tokens.", "They are all the same.", "Load or initialise the weights.")
    return scale


@dataclass(frozen=True)
class Ahead:
    """How far earlier tokens of a segment move when its later ones change.

    Attributes:
        size: in standard deviations of the outputs; 0.0 where nothing looks ahead.
        segment: where most.
        kept: [segments] how many first tokens of each were left as they are in that run.
    """

    size: float
    segment: int
    kept: tuple[int, ...]


def look_ahead(
    run: Run, blocks: Sequence[Block], ids: npt.NDArray[np.int64], *, seed: int = 0, base: Tensor | None = None
) -> Ahead:
    """Return the worst Ahead among cuts after the first token, a quarter, a half and three quarters of every segment.

    One forward a cut; where something moves, one a segment more (the longest 16), since what moved may have come from the
    segment before.
    """
    base = run(blocks) if base is None else base
    lengths = lengths_of(blocks)
    scale = scale_of(base)
    worst = Ahead(0.0, 0, tuple(lengths))
    for share in (0.0, 0.25, 0.5, 0.75):
        kept = tuple(min(length, max(1, -int(-length * share // 1))) for length in lengths)
        first = [slice(place.start, place.start + count) for place, count in zip(bounds(blocks), kept, strict=True)]

        def moved_by(chosen: set[int], kept: Sequence[int] = kept, first: Sequence[slice] = tuple(first)) -> npt.NDArray[Any]:
            return moves(base, run(changed(blocks, chosen, ids, seed, after=kept)), first, scale)

        if not moved_by(set(range(len(lengths)))).any():
            continue
        for segment in sorted(range(len(lengths)), key=lambda number: -lengths[number])[:16]:
            size = float(moved_by({segment})[segment])
            if size > worst.size:
                worst = Ahead(size, segment, kept)
    return worst
