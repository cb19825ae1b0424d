"""The loss without the logits: the head runs on the rows of targets, a piece at a time, and no [B, T, vocabulary] is ever made.

A vocabulary of 150,000 makes logits and their gradient the largest tensors of a step. Here the base model runs as it does, and
its hidden states stand where the logits would (so that every way puts them into packed order as it puts logits); then the
model's own forward, with the base held to a piece of them, makes the logits of that piece: its head, soft caps and scales.
Whether that is what the model does is found by experiment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cloison.exact.batches import read_batch
from cloison.exact.calling import call, lock_of, logits_of
from cloison.exact.collating import collated
from cloison.exact.outputs import changed
from cloison.exact.splitting import Split, splits_of
from cloison.exact.ways import Way
from cloison.losses import token_mean
from cloison.proof.blocks import synthetic, vocabulary
from cloison.proof.comparing import JITTER_MARGIN
from cloison.proof.setup import FAILURES

if TYPE_CHECKING:
    import torch

    from cloison.cross_entropy import UnmadeLogits

__all__ = ["Head", "heads_of", "misses"]


@dataclass(frozen=True)
class Head:
    """How a model makes logits of hidden states.

    Attributes:
        split: where the base ends, whose hidden states the head makes logits of.
        vocabulary: how many logits a token has.
    """

    split: Split
    vocabulary: int

    def logits(self, hidden: torch.Tensor, kind: type) -> torch.Tensor:
        """Return the logits [n, vocabulary] of ``hidden`` [n, width], as the model makes them; ``kind``: of base's outputs."""
        ids = hidden.new_zeros((1, hidden.shape[0])).long()
        with self.split.held(hidden[None], kind):
            return logits_of(call(self.split.whole, ids))[0]

    def run(self, model: torch.nn.Module, way: Way, batch: Any) -> tuple[Any, UnmadeLogits]:
        """Return the outputs of ``way`` without logits, and the logits that can be made of them."""
        from cloison.cross_entropy import UnmadeLogits

        with self.split.base_alone() as kinds:
            outputs = way.run(model, batch)
        hidden = logits_of(outputs)

        def logits(rows: torch.Tensor) -> torch.Tensor:
            with lock_of(model):  # also in the backward, on whatever thread
                return self.logits(rows, kinds[0])

        return changed(outputs, logits=None), UnmadeLogits(hidden, logits, self.vocabulary)


def heads_of(model: torch.nn.Module) -> list[Head]:
    """Return what may be the head of a transformers model, none where it names none: the experiment says which is."""
    splits = [(split, _embeddings_of(split)) for split in splits_of(model)]
    return [Head(split, int(head.weight.shape[0])) for split, head in splits if head is not None]


def _embeddings_of(split: Split) -> Any:
    whole: Any = split.whole
    return whole.get_output_embeddings()


def misses(model: torch.nn.Module, way: Way, head: Head) -> str:
    """Return what the loss without logits misses by under ``way``, "" where it is the loss with them.

    Allowed is what one rounding of the hidden states does to the logits, the loss, and the gradients of hidden states and head,
    times `JITTER_MARGIN`.
    """
    try:
        return _missed(model, way, head)
    except FAILURES as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _missed(model: torch.nn.Module, way: Way, head: Head) -> str:
    import torch

    ids = vocabulary(getattr(model, "config", None))
    blocks = synthetic(None, vocab_size=int(ids.max()) + 1)
    device = next(model.parameters()).device
    given = collated(blocks, way.layout)
    batch = read_batch({k: v.to(device) if isinstance(v, torch.Tensor) and k != "seq_lengths" else v for k, v in given.items()})
    assert batch.labels is not None
    labels = batch.labels
    with torch.no_grad():
        whole = logits_of(way.run(model, batch))
        _, unmade = head.run(model, way, batch)
    weights = [p for p in _embeddings_of(head.split).parameters() if p.requires_grad]

    def experiment(hidden: torch.Tensor, piece: int) -> list[torch.Tensor]:
        leaf = hidden.detach().requires_grad_()
        with torch.enable_grad():
            if piece:
                loss = token_mean(replace(unmade, hidden=leaf, piece=piece), labels)
            else:
                loss = token_mean(unmade.head(leaf.flatten(0, 1)).reshape(*leaf.shape[:2], -1), labels)
            return [loss.detach(), *torch.autograd.grad(loss, [leaf, *weights])]

    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, unmade.hidden.shape, generator=generator).to(unmade.hidden) * 2 - 1
        moved = unmade.hidden * (1 + torch.finfo(unmade.hidden.dtype).eps / 2 * signs)
        again, other = (unmade.head(hidden.flatten(0, 1)).reshape(whole.shape) for hidden in (unmade.hidden, moved))
    truth = [again, *experiment(unmade.hidden, 0)]
    floors = [other, *experiment(moved, 0)]
    found = [whole, *experiment(unmade.hidden, 16)]
    names = ("logits", "loss", "gradients of hidden states", "gradients of the head")
    for name, one, jittered, asked in zip(names, truth, floors, found, strict=False):
        error = float((asked.float() - one.float()).abs().max())
        floor = JITTER_MARGIN * float((jittered.float() - one.float()).abs().max())
        if not error <= floor + torch.finfo(one.dtype).eps * float(one.abs().max()):
            return f"its {name} are off by {error:.2g}, where {floor:.2g} is rounding"
    return ""
