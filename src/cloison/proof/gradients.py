"""Isolation of the backward: the gradient of one segment's outputs to the input embeddings of the others is exactly zero.

Perturbation sees every dependence of the forward, hard selections and detached paths too; it cannot see a wrong backward. The
gradient sees that and no hard selection. So both are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.blocks import bounds
from cloison.proof.isolation import MATRIX_SEGMENTS, Influence, codes
from cloison.proof.run import Outputs, Subject, ids_of

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["embedding_of", "given_embeddings", "gradient_influence", "watched_embeddings"]


def embedding_of(module: nn.Module) -> nn.Module:
    """Return the module of input embeddings: the one that the model names, or the first `torch.nn.Embedding`, or by its class.

    Raises:
        InputError: there is none.
    """
    import torch

    get = getattr(module, "get_input_embeddings", None)
    if get is not None:
        try:
            found = get()
        except (NotImplementedError, AttributeError):
            found = None
        if isinstance(found, torch.nn.Module):
            return found
    for inner in module.modules():
        if isinstance(inner, torch.nn.Embedding):
            return inner
    for inner in module.modules():
        if "embed" in type(inner).__name__.lower():
            return inner
    raise InputError("gradients are taken to the input embeddings.", "The model has no embedding table.", "Skip gradients.")


def given_embeddings(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the handle of a hook that hands ``module`` what ``change`` makes of its inputs_embeds, where no ids come along."""

    def hook(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        embeds = kwargs.get("inputs_embeds")
        if embeds is None or args or kwargs.get("input_ids") is not None:
            return None
        return args, {**kwargs, "inputs_embeds": change(embeds)}

    return module.register_forward_pre_hook(hook, with_kwargs=True)


@contextmanager
def watched_embeddings(module: nn.Module) -> Iterator[list[Tensor]]:
    """Make the output of the input embeddings a leaf that wants a gradient; the list holds it after the forward.

    Where the module is called with embeddings in place of ids, they are the leaf. A leaf carries the ids that it is of, as its
    attribute ``ids``: None where the embeddings were given something else.
    """
    seen: list[Tensor] = []

    def given(embeds: Tensor) -> Tensor:
        leaf: Any = embeds.detach().requires_grad_(True)
        leaf.ids = None
        seen[:] = [leaf]  # what looked them up before is no part of the forward
        copy: Tensor = leaf.clone()
        return copy

    def hook(inner: nn.Module, args: Any, output: Tensor) -> Tensor:
        leaf: Any = output.detach().requires_grad_(True)
        leaf.ids = args[0] if args and getattr(args[0], "shape", None) == output.shape[:-1] else None
        seen.append(leaf)
        scaled: Tensor = leaf.clone()  # some models scale what they get in place
        return scaled

    handles = [embedding_of(module).register_forward_hook(hook), given_embeddings(module, given)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def gradient_influence(subject: Subject, run: Callable[[Sequence[Block]], Any], blocks: Sequence[Block]) -> Influence:
    """Return the Influence of gradients: entry (s, d) is the largest gradient of segment d's outputs to s's embeddings.

    In units of the largest gradient of any segment to itself; the outputs are summed with fixed signs, so that nothing cancels
    by symmetry. ``run`` gives the `Outputs` of the subject, with gradients.

    Raises:
        InputError: no embedding table, or embeddings that do not have the index of the batch's tokens.

    Cost: one forward, and 2 * ceil(log2 segments) backwards; one a segment more where something was not zero.
    """
    import torch

    if subject.module is None:
        raise InputError("gradients need the module.", "The callable shows none.", "Pass the module, or an Adapter.")
    places = bounds(blocks)
    count = len(places)
    with torch.enable_grad(), watched_embeddings(subject.module) as seen:
        outputs = run(blocks)
        if not seen:
            raise InputError("gradients are taken to the input embeddings.", "The forward did not use them.", "Skip gradients.")
        leaves = list(seen)
        at = _places(leaves, outputs, blocks)
        logits = outputs.logits
        signs = torch.randint(0, 2, logits.shape, generator=torch.Generator().manual_seed(0)).to(logits) * 2 - 1
        finite = torch.where(torch.isfinite(logits), logits, 0.0)
        rows = (finite * signs).sum(-1)
        found = np.full((count, count), np.nan)
        backwards = 0

        def reached_by(chosen: Sequence[int]) -> npt.NDArray[np.float64]:
            wanted = torch.zeros_like(rows)
            for destination in chosen:
                wanted[places[destination]] = 1.0
            gradients = torch.autograd.grad(rows, leaves, grad_outputs=wanted, retain_graph=True, allow_unused=True)
            size = np.zeros(sum(place.stop - place.start for place in places))
            for gradient, (tokens, index) in zip(gradients, at, strict=True):
                if gradient is not None:
                    size[tokens] = np.maximum(size[tokens], _sizes(gradient, index, len(size[tokens])))
            return np.array([float(size[place].max()) for place in places])

        fired = False
        for chosen in codes(count) if count > 4 else [[d] for d in range(count)]:
            reached = reached_by(chosen)
            backwards += 1
            outside = [s for s in range(count) if s not in chosen]
            fired |= bool(reached[outside].any())
            for destination in chosen:
                found[destination, destination] = np.nanmax([found[destination, destination], reached[destination]])
            found[np.ix_(outside, chosen)] = np.fmax(found[np.ix_(outside, chosen)], reached[outside][:, None])
        if fired and 4 < count <= MATRIX_SEGMENTS:
            for destination in range(count):
                found[:, destination] = reached_by([destination])
            backwards += count
    scale = float(np.nanmax(np.diag(found))) if count else 0.0
    if not np.isfinite(scale) or scale == 0.0:
        raise InputError("outputs must depend on the embeddings.", "All gradients are zero or not finite.", "Skip gradients.")
    return Influence(found / scale, 0.0, 0.0, backwards)


Places = tuple[Any, npt.NDArray[np.int64] | None]
"""Which tokens, in packed order, and where they lie in a leaf; None: in order."""


def _places(leaves: Sequence[Tensor], outputs: Outputs, blocks: Sequence[Block]) -> list[Places]:
    """Return where the tokens of ``blocks`` lie in each leaf: as in the batch, or in rows of their own.

    Raises:
        InputError: the leaves have neither index.
    """
    ids = ids_of(outputs.batch)
    if ids is None or all(leaf.shape[:-1].numel() == ids.numel() and leaf.shape[-2] == ids.shape[-1] for leaf in leaves):
        return [(slice(None), outputs.places)] * len(leaves)
    rows = [_in_rows(leaf, blocks) for leaf in leaves]
    told = np.sort(np.concatenate([tokens for tokens, _ in rows]))
    if not np.array_equal(told, np.arange(told.size)) or told.size != sum(block.num_tokens for block in blocks):
        raise InputError(
            "embeddings must have the index of the batch's ids, or a row for each sample.",
            f"They are {', '.join(str(list(leaf.shape)) for leaf in leaves[:3])} for ids of {list(ids.shape)}.",
            "The parameter gradients of equality cover the backward.",
        )
    return list(rows)


def _in_rows(leaf: Any, blocks: Sequence[Block]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (tokens, places) of the samples that have a row of ``leaf`` to themselves, by their ids."""
    none = np.zeros(0, np.int64)
    if leaf.ids is None:
        return none, none
    ids = leaf.ids.detach().cpu().numpy().reshape(-1, leaf.shape[-2])
    samples = [sample.input_ids for block in blocks for sample in block.samples()]
    starts = np.cumsum([0, *map(len, samples)])
    free = sorted(range(len(samples)), key=lambda s: -len(samples[s]))  # the longest first: one may begin like another
    tokens, at = [none], [none]
    for row, line in enumerate(ids):
        own = next((s for s in free if np.array_equal(line[: len(samples[s])], samples[s])), None)
        if own is not None:
            free.remove(own)
            tokens.append(np.arange(starts[own], starts[own + 1]))
            at.append(row * ids.shape[1] + np.arange(len(samples[own])))
    return np.concatenate(tokens), np.concatenate(at)


def _sizes(gradient: Tensor, at: npt.NDArray[np.int64] | None, tokens: int) -> npt.NDArray[np.float64]:
    sizes = gradient.detach().abs().amax(-1).reshape(-1).double().nan_to_num(nan=float("inf")).cpu().numpy()
    if at is not None and sizes.size > int(at.max(initial=0)):
        return np.asarray(sizes[at])
    if at is None and sizes.size == tokens:
        return np.asarray(sizes)
    raise InputError(
        "embeddings must have the index of the tokens.", f"There are {sizes.size} for {tokens}.", "Skip gradients."
    )
