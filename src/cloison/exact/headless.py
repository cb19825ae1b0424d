"""The loss without the logits: the head runs on the rows of targets, a piece at a time, and no [B, T, vocabulary] is ever made.

A vocabulary of 150,000 makes logits and their gradient the largest tensors of a step. Here the base model runs as it does, and
its hidden states stand where the logits would (so that every way puts them into packed order as it puts logits); then the
model's own forward, with the base held to a piece of them, makes the logits of that piece: its head, soft caps and scales.
Whether that is what the model does is found by experiment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cloison.exact.batches import read_batch
from cloison.exact.calling import call, lock_of, logits_of, replaced
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
        causal: the module whose forward calls the base and then the head.
        base: the module that gives the hidden states.
        vocabulary: how many logits a token has.
    """

    causal: torch.nn.Module
    base: torch.nn.Module
    vocabulary: int

    @contextmanager
    def left_out(self) -> Iterator[list[type]]:
        """Hold the model to return hidden states where its logits would be; yields the classes of the base's outputs."""
        from transformers.modeling_outputs import CausalLMOutput

        kinds: list[type] = []
        base = self.base

        def forward(*args: Any, **kwargs: Any) -> Any:
            outputs = base(*args, **kwargs)
            kinds.append(type(outputs))
            return CausalLMOutput(logits=outputs.last_hidden_state, hidden_states=getattr(outputs, "hidden_states", None))

        with replaced(self.causal, "forward", forward):
            yield kinds

    def logits(self, hidden: torch.Tensor, kind: type) -> torch.Tensor:
        """Return the logits [n, vocabulary] of ``hidden`` [n, width], as the model makes them; ``kind``: see `left_out`."""
        ids = hidden.new_zeros((1, hidden.shape[0])).long()
        held: Any = kind
        with replaced(self.base, "forward", lambda *_, **__: held(last_hidden_state=hidden[None])):
            return logits_of(call(self.causal, ids))[0]

    def run(self, model: torch.nn.Module, way: Way, batch: Any) -> tuple[Any, UnmadeLogits]:
        """Return the outputs of ``way`` without logits, and the logits that can be made of them."""
        from cloison.cross_entropy import UnmadeLogits

        with self.left_out() as kinds:
            outputs = way.run(model, batch)
        hidden = logits_of(outputs)
        outputs.logits = None

        def logits(rows: torch.Tensor) -> torch.Tensor:
            with lock_of(model):  # also in the backward, on whatever thread
                return self.logits(rows, kinds[0])

        return outputs, UnmadeLogits(hidden, logits, self.vocabulary)


def heads_of(model: torch.nn.Module) -> list[Head]:
    """Return what may be the head of a transformers model, none where it names none: the experiment says which is.

    A few families call the decoder inside their base, and not the base (BART and its kin, transformers 5.24).
    """
    import torch
    from transformers import PreTrainedModel

    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        named: Any = module
        base, head = getattr(module, module.base_model_prefix, None), named.get_output_embeddings()
        if base is module or not isinstance(base, torch.nn.Module) or not isinstance(head, torch.nn.Module):
            continue
        bases = [inner for inner in (base, getattr(base, "decoder", None)) if isinstance(inner, torch.nn.Module)]
        return [Head(module, inner, int(named.get_output_embeddings().weight.shape[0])) for inner in bases]
    return []


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

    from cloison.exact.adapter import Adapter

    ids = vocabulary(getattr(model, "config", None))
    blocks = synthetic(None, vocab_size=int(ids.max()) + 1)
    device = next(model.parameters()).device
    given = Adapter(model, way).collate(blocks)
    batch = read_batch({k: v.to(device) if isinstance(v, torch.Tensor) and k != "seq_lengths" else v for k, v in given.items()})
    assert batch.labels is not None
    labels = batch.labels
    with torch.no_grad():
        whole = logits_of(way.run(model, batch))
        _, unmade = head.run(model, way, batch)
    weights = [p for p in head.causal.get_output_embeddings().parameters() if p.requires_grad]  # type: ignore[operator]

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
