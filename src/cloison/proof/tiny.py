"""Tiny random models of every causal-LM type of the installed transformers, for experiments on code, not on weights.

A tiny model has the type's own code paths with small sizes: one layer of every kind that its configuration lists, windows and
chunks shorter than an ordinary sample, grouped heads, a few experts, a vocabulary of 96. Its weights are large enough that
attention is far from uniform and that every token matters, which an initialisation for training is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR
from typing import Any

from cloison.errors import InputError, require
from cloison.proof.tiny_configs import BY_FIELD, BY_TYPE, FLAGS, KIND_FIELDS, NONE_TOO, NOT_BUILT

__all__ = ["causal_types", "kept_layers", "livened", "tiny_config", "tiny_model"]

_PADDING = 0


def causal_types() -> dict[str, str]:
    """Return every causal-LM type of the installed transformers with "" or the reason why no tiny model of it is built."""
    require("transformers", "hf")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {model_type: NOT_BUILT.get(model_type, "") for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}


def tiny_config(model_type: str, **changes: Any) -> Any:
    """Return a small configuration of ``model_type``, with ``changes`` over it.

    Args:
        model_type: a key of transformers' causal-LM mapping, as "llama" or "gpt_oss".
        changes: fields of the configuration; a mapping for a nested one is merged into its tiny version.

    Raises:
        InputError: an unknown type.
    """
    require("transformers", "hf")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise InputError(
            f"{model_type!r} must be a model type of the installed transformers.",
            "It has none of that name.",
            "Pass a key such as 'llama'; causal_types() lists them.",
        )
    config_class = CONFIG_MAPPING[model_type]
    with _quiet():
        fields = _shrunk(config_class, model_type)
        for name, value in changes.items():
            nested = isinstance(value, Mapping) and isinstance(fields.get(name), dict)
            fields[name] = {**fields[name], **value} if nested else value
        return config_class(**fields)


def tiny_model(model_type: str, seed: int = 0, attn: str = "eager", **changes: Any) -> tuple[Any, Any]:
    """Return (model, config): a random tiny model of ``model_type`` in float32, in eval mode, the same for a seed.

    The global random state is left as it was.

    >>> model, config = tiny_model("llama")
    >>> config.hidden_size, config.num_key_value_heads
    (32, 2)
    """
    require("torch", "hf")
    import torch
    from transformers import AutoModelForCausalLM

    config = tiny_config(model_type, **changes)
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=attn, dtype=torch.float32
        )
    livened(model, seed)
    return model.eval(), config


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what transformers says of the ids and limits of the defaults, which a small vocabulary cannot meet."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(level)


# ---------------------------------------------------------------------- configurations


def _shrunk(config_class: Any, model_type: str) -> dict[str, Any]:
    """Return the constructor's arguments for a tiny configuration."""
    own = BY_TYPE.get(model_type, {})
    default = config_class(**own.get("_default", {}))
    plain = default.to_dict()
    layers = kept_layers(plain)
    fields: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict) and _is_config(getattr(default, name, None)):
            nested = getattr(default, name)
            fields[name] = _shrunk(type(nested), nested.model_type)
        elif name == "per_layer_config":
            fields[name] = {str(new): _override(plain, value[key]) for key in value for new in _places(layers, int(key))}
        elif name in BY_FIELD or name in NONE_TOO:
            fields[name] = _small(name, value)
        elif name in FLAGS and isinstance(value, bool):
            fields[name] = FLAGS[name]
        elif name == "pad_token_id":
            fields[name] = _PADDING
        if (
            layers
            and isinstance(value, (list, tuple))
            and len(value) == plain.get("num_hidden_layers")
            and name != "per_layer_config"
        ):
            whole = fields.get(name, value)
            fields[name] = [whole[layer] for layer in layers]
    if "kv_lora_rank" in plain and plain["kv_lora_rank"] is not None and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    if layers:
        fields["num_hidden_layers"] = len(layers)
    fields |= {name: value for name, value in own.items() if not name.startswith("_")}
    return {name: value for name, value in fields.items() if not _derived(config_class, name)}


def kept_layers(plain: Mapping[str, Any]) -> list[int]:
    """Return which layers stay in a small configuration: the first of every kind in every list, two at least.

    Without lists of layers the result is [].
    """
    depth = plain.get("num_hidden_layers")
    lists = [value for name in KIND_FIELDS if isinstance(value := plain.get(name), (list, tuple)) and len(value) == depth]
    if not lists or not isinstance(depth, int):
        return []
    kept = [layer for layer in range(depth) if any(kinds[layer] not in kinds[:layer] for kinds in lists)]
    return kept if len(kept) > 1 else [0, min(1, depth - 1)]


def _places(layers: list[int], old: int) -> list[int]:
    return [new for new, layer in enumerate(layers) if layer == old]


def _override(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return one layer's own settings, small, and still unlike those of the other layers where they were."""
    small = dict(changes)
    for name, value in changes.items():
        if name in BY_FIELD and not isinstance(value, bool):
            small[name] = BY_FIELD[name] * (2 if value != plain.get(name) else 1)
    heads = changes.get("num_attention_heads")
    if heads is not None and changes.get("num_key_value_heads") == heads:
        small["num_key_value_heads"] = small["num_attention_heads"]
    return small


def _derived(config_class: Any, name: str) -> bool:
    """Whether ``name`` is a property that the class computes from other fields."""
    member = getattr(config_class, name, None)
    return isinstance(member, property) and (member.fset is None)


def _is_config(value: Any) -> bool:
    from transformers import PretrainedConfig

    return isinstance(value, PretrainedConfig)


def _small(name: str, value: Any) -> Any:
    small = BY_FIELD.get(name, NONE_TOO.get(name))
    if isinstance(value, (list, tuple)):
        return [small if isinstance(entry, (int, float)) else entry for entry in value]
    if value is None:
        return NONE_TOO.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    return type(value)(small)


# ---------------------------------------------------------------------- weights


def livened(model: Any, seed: int) -> None:
    """Draw the weights anew, so that outputs depend strongly on content: matrices double the variance of what they read.

    Constant vectors (norms, biases, sinks, gates) are moved off their constants, so that none of them hides a fault; what the
    type initialises in a way of its own (decays, time steps) stays.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in embeddings:
                parameter.copy_(noise)
            elif parameter.dim() >= 2:
                fan_in = parameter[0].numel() if parameter.dim() == 2 or parameter.shape[-1] <= 8 else parameter.shape[-1]
                parameter.copy_(noise * 1.4 / max(fan_in, 1) ** 0.5)
            elif parameter.numel() == 0 or not torch.isfinite(parameter).all() or bool((parameter == parameter[0]).all()):
                start = parameter[0].item() if parameter.numel() and torch.isfinite(parameter[0]) else 0.0
                parameter.copy_(start + 0.1 * noise)
