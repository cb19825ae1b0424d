"""What labels ask of a model: the next token, the token itself, a class of the token, or nothing. Found by its own loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from cloison.exact.calling import accepted, call, logits_of
from cloison.losses import token_mean
from cloison.proof.setup import FAILURES

if TYPE_CHECKING:
    import torch

__all__ = ["Asks", "asked_by_labels"]

Asks = Literal["next tokens", "same tokens", "classes", "nothing"]
"""What a label asks for: the token after the one whose outputs it scores (causal models; the adapter shifts), the token at its
own index (masked modelling), a class of that token (token classifiers), or nothing (hidden states, scores of whole samples)."""


def asked_by_labels(model: torch.nn.Module, sample: torch.Tensor, looks_ahead: bool, ids: int) -> Asks:
    """Return what labels ask of ``model``, from its outputs of ``sample`` [1, n].

    Logits that have an entry for every id below ``ids`` predict tokens: the next ones where the model is causal (whatever its
    own loss does: bart's and others' leave the shift to the caller, transformers 5.24), and where it looks ahead those that its
    own loss asks for. Outputs with fewer entries are classes where the model's own loss says so.
    """
    import torch

    with torch.no_grad():
        outputs = call(model, sample)
        logits = logits_of(outputs)
        features = int(logits.shape[-1])
        if logits.dim() != 3 or getattr(outputs, "last_hidden_state", None) is logits:
            return "nothing"
        if features >= ids and not looks_ahead:
            return "next tokens"
        labels = torch.arange(sample.shape[1], device=sample.device)[None] % features
        same = _is(_own_loss(model, sample, labels), token_mean(logits, labels, shifted=True))
        shifted = _is(_own_loss(model, sample, labels), token_mean(logits, labels))
    if features >= ids:
        return "same tokens" if same and not shifted else "next tokens"
    return "classes" if same else "nothing"


def _own_loss(model: torch.nn.Module, sample: torch.Tensor, labels: torch.Tensor) -> Any:
    if not accepted(model, {"labels": None}):
        return None
    try:
        return getattr(call(model, sample, labels=labels), "loss", None)
    except FAILURES:  # labels of another kind
        return None


def _is(own: Any, candidate: torch.Tensor) -> bool:
    """Whether two losses are the same but for rounding: of labels that run through all classes others differ by per cents."""
    return own is not None and abs(float(own) - float(candidate)) <= 1e-3 * abs(float(candidate))
