"""Adapter: a model together with the way that was proven exact for it, called like the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.exact.batches import read_batch
from cloison.exact.calling import lock_of, logits_of, standing_in
from cloison.exact.certificate import Certificate, Vitals, check_surroundings, check_vitals, vitals
from cloison.exact.collating import collated
from cloison.exact.labels import Asks
from cloison.exact.outputs import changed
from cloison.exact.pooled import POOLED
from cloison.exact.router_loss import auxiliary, router_logits, wants_router_loss
from cloison.exact.ways import Way
from cloison.losses import token_mean
from cloison.proof.stand_ins import is_recorded

if TYPE_CHECKING:
    import torch

    from cloison.exact.headless import Head

__all__ = ["Adapter"]


@dataclass(eq=False, repr=False)
class Adapter:
    """A model and the way in which it runs packed batches exactly. `cloison.adapt` makes it.

    ``adapter(**batch)`` returns the model's own output object, with the index of ``batch["input_ids"]`` whatever ran inside,
    and with ``loss`` where ``labels`` are given. Outside that call the model is untouched: its weights, configuration and
    forward are those that it had, and copying, saving or generating with it is as ever.

    An adapter is copied and pickled with its model, its proof included (`copy.deepcopy`, `torch.save`, processes that are
    spawned); `collate` travels without it.

    Attributes:
        model: the model itself.
        way: how packed batches run.
        certificate: what was proven, on what, and what was not tested; None while it is being proven.
        head: where the loss is computed without logits (``adapt(model, keep_logits=False)``), how; else None.
        asks: what labels ask of the model, see `exact.labels`.
    """

    model: torch.nn.Module
    way: Way
    certificate: Certificate | None = None
    head: Head | None = None
    asks: Asks = "next tokens"
    _vitals: Vitals | None = None

    def __post_init__(self) -> None:
        self._vitals = vitals(self.model)

    def __call__(self, **batch: Any) -> Any:
        """Return the model's outputs for a packed batch, in packed row order; of a model that gives one output a sample, those,
        [segments, features], in the order of the segments.

        Args:
            input_ids: int64 [B, T], packed rows.
            labels: int64 [B, T], same index, -100 where not a target (causal models: the adapter shifts; masked models and
                token classifiers: a label is the id or class of its own token); then the output has a ``loss``: the
                mean over targets (`cloison.losses.token_mean`), or their sum over ``num_items_in_batch`` where that is given;
                with ``loss_weights`` [B, T] each target counts by its weight. Where ``output_router_logits`` is passed, or
                set in the configuration, the loss of balance over the valid tokens is added as the model adds it.
            seq_lengths, cu_seqlens, segment_ids, position_ids, attention_mask: the boundaries, see `read_batch`.
            **: anything else goes to the model.

        Raises:
            InputError, BoundaryError: see `read_batch`; or the model is not what was certified.
        """
        if is_recorded(self.model):
            return self._through(self.model, **batch)  # what is recorded is this call, and not what it makes of it
        return self._direct(**batch)

    def _direct(self, **batch: Any) -> Any:
        if self._vitals is None:
            raise InputError("this adapter runs no more.", "restore() gave its model back.", "Call cloison.adapt(model) again.")
        with lock_of(self.model):
            return self._run(self._vitals, batch)

    def within(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable that runs packed batches like the adapter, and through ``wrapper``, which calls the model.

        Whatever wraps the model later (DistributedDataParallel, accelerate, a Trainer) does its part when *it* is called:
        calling the adapter would pass it by, and gradients of ranks would not meet.

        Raises:
            InputError: ``wrapper`` does not hold the model.
        """
        import torch

        inside = wrapper.modules() if isinstance(wrapper, torch.nn.Module) else ()
        if not any(module is self.model for module in inside):
            raise InputError(
                "within takes what wraps the adapter's model.",
                f"This {type(wrapper).__name__} does not hold the {type(self.model).__name__} that was adapted.",
                "Pass the wrapper of adapter.model, or adapt the model that is inside it.",
            )
        return partial(self._through, wrapper)

    def _through(self, wrapper: Callable[..., Any], **batch: Any) -> Any:
        with lock_of(self.model), standing_in(self.model, self._direct):
            return wrapper(**batch)

    def __getstate__(self) -> dict[str, Any]:
        if self._vitals is not None:
            check_vitals(self._vitals, self.model, self.certificate)
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a copy; in another process classes are others, so that the model is looked at anew."""
        vars(self).update(state)
        if self._vitals is not None:
            self._vitals = vitals(self.model)
        if self.certificate is not None:
            check_surroundings(self.certificate, self.model)

    def _run(self, then: Vitals, batch: dict[str, Any]) -> Any:
        check_vitals(then, self.model, self.certificate)
        items = batch.pop("num_items_in_batch", None)
        balanced = wants_router_loss(self.model, batch)
        packed = read_batch(batch, shifts=self.asks == "next tokens")
        if self.asks == "nothing" and packed.labels is not None:
            raise InputError(
                "labels ask for tokens, or for a class of each.",
                f"{type(self.model).__name__} returns {_given(self.way)}.",
                "Leave labels out, and compute the loss of what the adapter returns.",
            )
        collecting: Any = router_logits(self.model) if balanced else nullcontext([])
        logits: Any = None
        with collecting as found:
            if self.head is not None and packed.labels is not None:
                outputs, logits = self.head.run(self.model, self.way, packed)
            else:
                outputs = self.way.run(self.model, packed)
        if getattr(outputs, "pooler_output", None) is not None:
            outputs = changed(outputs, pooler_output=None)  # made of the first token of each row, which is one sample's of many
        if packed.labels is None and not balanced:
            return outputs
        loss = None
        if packed.labels is not None:
            asked = {"labels": packed.labels, "loss_weights": packed.loss_weights, "num_items_in_batch": items}
            loss = self.loss_of(outputs if logits is None else logits, asked)
        if balanced:
            aux, coefficient = auxiliary(self.model, self.way, packed, found)
            outputs = changed(outputs, aux_loss=aux)
            loss = None if loss is None else loss + coefficient * aux
        return _with_loss(outputs, loss)

    def loss_of(self, outputs: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the loss that a call gives for ``outputs`` and the ``labels`` of ``batch`` (the loss of balance aside).

        ``outputs``: what a call without labels returned, or its logits.
        """
        logits = logits_of(outputs) if not hasattr(outputs, "cross_entropy") else outputs
        items = batch.get("num_items_in_batch")
        same = self.asks != "next tokens"
        return token_mean(logits, batch["labels"], batch.get("loss_weights"), denominator=items, shifted=same)

    @property
    def collate(self) -> Callable[[Iterable[Block] | Block], dict[str, Any]]:
        """The function from blocks to their batch in the layout that suits the way, boundaries included: ``adapter(**batch)``.

        It has ``labels`` where labels ask for tokens (`asks`), and can be sent to workers without the model.
        """
        return partial(collated, layout=self.way.layout, labels=self.asks not in ("classes", "nothing"))

    def restore(self) -> torch.nn.Module:
        """Return the model as it was before `adapt`; this adapter refuses further calls."""
        self._vitals = None
        return self.model

    def __repr__(self) -> str:
        return f"Adapter({self.certificate.line() if self.certificate is not None else self.way.name})"


def _given(way: Way) -> str:
    return "one output a sample" if POOLED in way.choice else "hidden states, or scores that no loss of its own reads"


def _with_loss(outputs: Any, loss: Any) -> Any:
    if hasattr(outputs, "logits") or isinstance(outputs, dict):
        return changed(outputs, loss=loss)
    return SimpleNamespace(loss=loss, logits=logits_of(outputs))
