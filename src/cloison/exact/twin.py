"""A twin: the user's model with one layer of each kind and limits that short samples reach, to choose a way on.

Width, heads, head size, dtype, device, attention and expert kernels are the model's own. What is cut: layers, the vocabulary,
the number of experts, and the lengths at which something changes (windows, chunks, scaling), so that samples of a few dozen
tokens lie on both sides of each.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloison.errors import InputError
from cloison.exact.sharding import is_sharded, own_class
from cloison.proof.blocks import LONGEST_TOKENS
from cloison.proof.limits import limits
from cloison.proof.setup import FAILURES
from cloison.proof.tiny import kept_layers, livened

if TYPE_CHECKING:
    import torch

__all__ = ["LARGEST_PARAMETERS", "needs_twin", "stand_in", "twin_of"]

LARGEST_PARAMETERS = 20_000_000
"""Up to this size the ways are tried on the model itself."""

SHORT_TOKENS = 16
"""What windows, chunks and scaling limits become."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOWER_DEPTHS = ("num_hidden_layers", "depth", "num_layers", "encoder_layers")
_LIMITS = (
    "sliding_window",
    "sliding_window_size",
    "attention_window_size",
    "window_size",
    "attention_chunk_size",
    "local_attention",
    "original_max_position_embeddings",
)


def stand_in(model: torch.nn.Module, seed: int = 0, cut: bool = True) -> tuple[torch.nn.Module, str]:
    """Return (what to try ways on, what it is): a twin (only with ``cut``), a float32 copy, or the model itself with "".

    In bfloat16 rounding may move outputs by more than a wrong window does (2 standard deviations were seen on a small mixture
    of experts): which way is right is found in float32, where the kernels run in it, and the model's own dtype is tried
    afterwards.
    """

    made = twin_of(model, seed) if cut and needs_twin(model) else None
    if made is not None:
        return made
    if is_sharded(model):
        raise InputError(
            "a sharded model is adapted by a twin of its configuration.",
            f"None can be made of this {own_class(model).__name__}." if cut else "With blocks= there is no twin.",
            "Call cloison.adapt(model) before fully_shard: the adapter runs on." if cut else "Leave blocks out.",
        )
    if _precise(model) in (None, next(p.dtype for p in model.parameters() if p.is_floating_point())):
        return model, ""
    if sum(p.numel() for p in model.parameters()) > LARGEST_PARAMETERS:
        return model, ""
    try:
        return copy.deepcopy(model).float(), "chosen on a float32 copy"
    except FAILURES:  # quantised weights, and what else cannot be cast
        return model, ""


def _precise(model: torch.nn.Module) -> torch.dtype | None:
    """Return the dtype in which ways are told apart best, or None where the attention's kernels refuse any but the model's."""
    import torch

    if "flash" in (getattr(getattr(model, "config", None), "_attn_implementation", None) or ""):
        return None
    return torch.promote_types(next(p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def needs_twin(model: torch.nn.Module) -> bool:
    """Whether ``model`` is too large, or its limits too long, to try ways on itself."""
    config = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        return False
    if is_sharded(model):
        return True
    large = sum(p.numel() for p in model.parameters()) > LARGEST_PARAMETERS
    return large or any(value * 2 + 3 > LONGEST_TOKENS for value in limits(config).values())


def twin_of(model: torch.nn.Module, seed: int = 0) -> tuple[torch.nn.Module, str] | None:
    """Return (twin, what it is), or None where the class cannot be built from a cut configuration."""
    twin = _built(model, seed, towers=True) or _built(model, seed, towers=False)
    if twin is None:
        return None
    livened(twin, seed)
    for module in twin.modules():
        module.training = model.training
    depth = _depth(getattr(twin, "config").get_text_config(decoder=True))  # noqa: B009 - no attribute of every module
    return twin, f"chosen on a twin of {depth} layers, {sum(p.numel() for p in twin.parameters()):,} parameters"


def _built(model: torch.nn.Module, seed: int, towers: bool) -> Any:
    """Return a model of the cut configuration of ``model``, with ``towers`` those of images and sounds cut too, or None."""
    import torch

    inner = _unwrapped(model)
    config = copy.deepcopy(inner.config)
    text = config.get_text_config(decoder=True)
    layers = kept_layers(text.to_dict())
    parameter = next(p for p in model.parameters() if p.is_floating_point())
    try:
        _cut(text, layers or list(range(min(2, _depth(text)))))
        if towers:
            _cut_towers(config, text)
        with torch.random.fork_rng(devices=[]), torch.device(parameter.device):
            torch.manual_seed(seed)
            return own_class(inner)(config).to(_precise(model) or parameter.dtype)
    except FAILURES:  # what a configuration's own rules say to being cut
        return None


def _unwrapped(model: torch.nn.Module) -> Any:
    """Return the transformers model inside a PEFT wrapper, or the model itself."""
    get = getattr(model, "get_base_model", None)
    return get() if get is not None else model


def _depth(config: Any) -> int:
    return int(getattr(config, "num_hidden_layers", 0))


def _cut(config: Any, layers: list[int]) -> None:
    """Cut a text configuration in place."""
    plain: Mapping[str, Any] = config.to_dict()
    depth = plain.get("num_hidden_layers")
    for name, value in plain.items():
        if isinstance(value, (list, tuple)) and len(value) == depth and layers:
            _try(config, name, [value[layer] for layer in layers])
        elif name in _LIMITS and isinstance(value, int) and not isinstance(value, bool) and value > SHORT_TOKENS:
            _try(config, name, SHORT_TOKENS)
        elif name in _EXPERTS and isinstance(value, int) and value > 8:
            _try(config, name, max(8, int(plain.get("num_experts_per_tok") or 0)))
    config.num_hidden_layers = len(layers)
    config.vocab_size = min(config.vocab_size, 1024)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(plain.get(name), int) and plain[name] >= config.vocab_size:
            _try(config, name, {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}[name])
    rope = plain.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "dynamic" and "original_max_position_embeddings" not in rope:
        config.max_position_embeddings = SHORT_TOKENS
    if isinstance(rope, dict) and isinstance(rope.get("original_max_position_embeddings"), int):
        _try(config, "rope_parameters", {**rope, "original_max_position_embeddings": SHORT_TOKENS})


def _cut_towers(config: Any, text: Any) -> None:
    """Leave one layer in what reads images and sounds: text does not go through it."""
    for name in getattr(config, "sub_configs", ()):
        tower = getattr(config, name, None)
        for field in _TOWER_DEPTHS if tower is not None and tower is not text else ():
            if isinstance(getattr(tower, field, None), int) and getattr(tower, field) > 1:
                _try(tower, field, 1)


def _try(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, TypeError, ValueError):  # a property that the class derives from other fields
        return
