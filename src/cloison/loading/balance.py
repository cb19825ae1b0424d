"""Equal work for all ranks: blocks of a window of steps are dealt by what they cost.

A step lasts as long as its slowest rank. Blocks hold about the same number of tokens, and not the same work: attention costs
the square of each segment. Every rank gets the same *number* of blocks in every step (collectives need that), so what can be
chosen is which. Within a window, blocks are sorted by cost and cut into layers of one block a rank; the layers that differ
most inside meet in the same steps, where a block that costs much is paired with ones that cost little.

A window of one step leaves every step the blocks that it has without balancing, and only deals them to other ranks. A larger
one balances better and moves blocks between the steps of the window: steps with the longest samples collect more of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloison.errors import InputError
from cloison.segments import Segments

__all__ = ["Cost", "deal", "factor"]


@dataclass(frozen=True)
class Cost:
    """What a block costs: ``per_token`` * tokens + ``per_square`` * sum of squared segment lengths, in any unit.

    Attributes:
        per_token: the part that grows with tokens (matrix products).
        per_square: the part that grows with the square of a segment (attention).
    """

    per_token: float = 1.0
    per_square: float = 0.0

    @classmethod
    def of_model(cls, num_parameters: float, num_layers: int, hidden_size: int) -> Cost:
        """Return training FLOPs: 6 a parameter and token, and 6 * layers * width for each pair that causal attention sees."""
        return cls(6.0 * num_parameters, 6.0 * num_layers * hidden_size)

    @classmethod
    def calibrated(cls, segments: Segments, seconds: npt.ArrayLike) -> Cost:
        """Return the cost that fits measured ``seconds`` [rows] of the rows of ``segments`` best (least squares, none below 0).

        Raises:
            InputError: fewer than two rows, or another number of times.
        """
        times = np.asarray(seconds, np.float64)
        if times.shape != (segments.num_rows,) or times.size < 2:
            raise InputError(
                f"calibration takes one time for each of {segments.num_rows} rows, two or more.",
                f"The shape is {list(times.shape)}.",
                "Time steps of unlike rows.",
            )
        tokens, squares = _sums(segments)
        table = np.stack([tokens, squares], axis=1)
        scale = np.maximum(table.max(axis=0), 1)
        both = np.linalg.lstsq(table / scale, times, rcond=None)[0] / scale
        if (both >= 0).all():
            return cls(float(both[0]), float(both[1]))
        alone = [(column @ times) / max(float(column @ column), 1e-300) for column in (tokens, squares)]
        errors = [np.square(column * a - times).sum() for column, a in zip((tokens, squares), alone, strict=True)]
        return cls(float(alone[0]), 0.0) if errors[0] <= errors[1] else cls(0.0, float(alone[1]))

    def blocks(self, segments: Segments) -> npt.NDArray[np.float64]:
        """Return the cost of each row of ``segments``, float64 [rows]."""
        tokens, squares = _sums(segments)
        return self.per_token * tokens + self.per_square * squares


def _sums(segments: Segments) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    lengths = segments.seq_lengths.astype(np.float64)
    edges = segments.row_offsets
    tokens, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (lengths, lengths * lengths))
    return tokens[edges[1:]] - tokens[edges[:-1]], squares[edges[1:]] - squares[edges[:-1]]


def factor(costs: npt.NDArray[np.float64]) -> float:
    """Return the sum over steps of the slowest rank / the sum of the mean rank, for costs [steps, ranks]; 1 is perfect."""
    mean = float(costs.mean(axis=1).sum())
    return float(costs.max(axis=1).sum()) / mean if mean else 1.0


def deal(costs: npt.NDArray[np.float64], steps: int, ranks: int, per_rank: int) -> npt.NDArray[np.int64]:
    """Return int64 [steps, ranks, per_rank]: indices into ``costs``, each once, and -1 in the places that are left over.

    Every step of the window gets its share of the places that are left over last: all fillers lie in the last step. Blocks of
    a rank are sorted by falling cost, so that ranks do like work at like times. Cost: O(n log n).
    """
    places = steps * ranks * per_rank
    short = places - costs.size
    in_last = ranks * per_rank - short if short else 0
    order = np.argsort(-costs, kind="stable")
    out = np.full((steps, ranks, per_rank), -1, np.int64)
    whole = steps - 1 if short else steps
    if short:
        # The unfilled last step takes an even sample of all costs; the others share the rest.
        taken = np.unique(np.linspace(0, costs.size - 1, in_last).round().astype(np.int64)) if in_last else np.zeros(0, int)
        mask = np.zeros(costs.size, bool)
        mask[taken] = True
        last, order = order[mask], order[~mask]
        filled = np.append(last, np.full(ranks * per_rank - last.size, -1))
        out[-1] = _step(filled, np.append(costs, 0.0), ranks, per_rank)
    if whole:
        layers = order.reshape(whole * per_rank, ranks)
        spread = costs[layers[:, 0]] - costs[layers[:, -1]]
        # Neighbouring layers that differ inside meet in a step; calm ones are dealt round robin, so steps stay alike.
        wild = int((spread > 0.02 * costs[layers].mean()).sum())
        step_of = _steps_of_layers(whole, per_rank, wild)
        for step in range(whole):
            out[step] = _step(layers[step_of == step].reshape(-1), costs, ranks, per_rank)
    return out


def _steps_of_layers(steps: int, per_rank: int, wild: int) -> npt.NDArray[np.int64]:
    """Return the step of each layer: the ``wild`` first in runs of at most per_rank // 2 + 1, all others round robin."""
    out = np.full(steps * per_rank, -1, np.int64)
    room = np.full(steps, per_rank, np.int64)
    run = min(per_rank, max(1, per_rank // 2 + 1))
    for layer in range(min(wild, steps * run)):
        out[layer] = layer // run
        room[layer // run] -= 1
    step = steps - 1
    for layer in np.flatnonzero(out < 0).tolist():
        while not room[step]:
            step = (step - 1) % steps
        out[layer] = step
        room[step] -= 1
        step = (step - 1) % steps
    return out


def _step(blocks: npt.NDArray[np.int64], costs: npt.NDArray[np.float64], ranks: int, per_rank: int) -> npt.NDArray[np.int64]:
    """Return [ranks, per_rank]: the costliest block left goes to the rank with the least work that has room (LPT)."""
    import heapq

    by_cost = blocks[np.argsort(-costs[blocks], kind="stable")]
    heap = [(0.0, rank) for rank in range(ranks)]
    out = np.full((ranks, per_rank), -1, np.int64)
    held = [0] * ranks
    for block, cost in zip(by_cost.tolist(), costs[by_cost].tolist(), strict=True):
        load, rank = heapq.heappop(heap)
        out[rank, held[rank]] = block
        held[rank] += 1
        if held[rank] < per_rank:
            heapq.heappush(heap, (load + (0.0 if block < 0 else cost), rank))
    return out
