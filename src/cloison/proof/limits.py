"""The lengths at which a model changes its behaviour, and how long samples may be so that trying them stays cheap."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["affordable_tokens", "limits", "position_table"]

_NAMES = re.compile(
    r"(?:sliding|local|attention|attn|keep|swa)_?\w*(?:window|chunk|span|block|context)\w*"
    r"|(?:\w+_)?(?:window|chunk)(?:_size|_sizes|_len|_length|_width|s)?"
    r"|(?:relative_attention_|relative_|position_bias_)?max_distance|local_attention|local_radius|(?:global|index)_block_size|index_topk"
    r"|(?:\w+_)?conv_?(?:kernel|kernel_size|kernel_dim|1d_width|width|_L_cache|L_cache)|(?:mamba_)?d_conv"
    r"|original_max_position_embeddings"
)
"""Fields of configurations, and attributes of modules, that say how far a mechanism reaches."""

_ELSEWHERE = re.compile(
    "layer|pattern|indices|prob|drop|num|^n_|image|audio|vision|video|speech|acoustic|patch|infer|encoder|lm_head|outer|"
    "chunks_(?:before|after)|_left|_right|background"
)
"""What such names say of other things: which layers, how many, other parts than the text's decoder."""

_WORK_S = 8.0
"""Seconds of one CPU core that a verification may take; a device with its own memory is given 50 times the work."""

_FLOP_S, _PAIR_S = 1 / 3e10, 6.5e-9
"""What an operation of a matrix product takes there, and a pair of positions in one head of eager attention (measured)."""

_BYTES = 2**28
"""What one tensor of scores or of logits may take, in float64."""

_FORWARDS = 60
"""Forwards' worth of work in one verification, backwards and the copy in float64 included."""


def limits(config: Any, module: Any = None) -> dict[str, int]:
    """Return the lengths at which a model changes its behaviour: windows, chunks, convolutions, scaling.

    Args:
        config: a configuration, or None.
        module: the model; where its configuration is none of transformers', the attributes of its modules are read.
    """
    found: dict[str, int] = {}
    for fields in _fields(config):
        for name, value in fields.items():
            reach = _reach(name, value)
            if reach is not None:
                found[name] = reach
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        if isinstance(rope, dict) and rope.get("rope_type") in ("dynamic", "longrope", "yarn", "llama3"):
            original = rope.get("original_max_position_embeddings") or fields.get("max_position_embeddings")
            if isinstance(original, int):
                found["original_max_position_embeddings"] = original
    if module is not None and not hasattr(config, "to_dict"):
        for inner in module.modules():
            for name, value in vars(inner).items():
                reach = _reach(name, value) if name != "kernel_size" else _largest(value)
                if reach is not None and not name.startswith("_"):
                    found[name] = max(found.get(name, 0), reach)
    return found


def position_table(config: Any) -> int | None:
    """Return how many positions a model of ``config`` has at most; None where nothing says so, or scaling goes beyond."""
    most = getattr(config, "max_position_embeddings", None)
    known = isinstance(most, int) and most > 0 and "original_max_position_embeddings" not in limits(config)
    return most if known else None


def affordable_tokens(module: Any) -> int:
    """Return how many tokens a verification of ``module`` may pack: some seconds of work on a CPU core, by its own sizes.

    Work is counted from the parameters, memory from the heads and the vocabulary, so that the answer is the same everywhere.
    """
    parameters = list(module.parameters())
    weights = sum(parameter.numel() for parameter in parameters) or 1
    away = bool(parameters) and parameters[0].device.type not in ("cpu", "meta")
    sizes: dict[str, int] = {}
    for fields in _fields(getattr(module, "config", None)):
        for ours, names in (
            ("heads", ("num_attention_heads", "n_head")),
            ("layers", ("num_hidden_layers", "n_layer")),
            ("vocabulary", ("vocab_size",)),
        ):
            sizes.update((ours, fields[name]) for name in names if isinstance(fields.get(name), int))
    work, memory = _WORK_S * (50 if away else 1) / _FORWARDS, _BYTES * (8 if away else 1) / 8
    per_token = 2 * weights * _FLOP_S
    per_pair = sizes.get("heads", 8) * sizes.get("layers", 2) * _PAIR_S
    # per_token * n + per_pair * n * n = work
    by_work = ((per_token**2 + 4 * per_pair * work) ** 0.5 - per_token) / (2 * per_pair)
    by_scores = (memory / sizes.get("heads", 8)) ** 0.5
    by_logits = memory / sizes.get("vocabulary", 1000)
    return int(min(by_work, by_scores, by_logits))


def _fields(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of a configuration, and those of the text's decoder inside it."""
    if config is None:
        return
    plain = config.to_dict() if hasattr(config, "to_dict") else dict(vars(config)) if hasattr(config, "__dict__") else {}
    yield plain
    if hasattr(config, "get_text_config"):
        text = config.get_text_config(decoder=True)
        if text is not config:
            yield text.to_dict()
    elif isinstance(plain.get("text_config"), dict):
        yield plain["text_config"]


def _reach(name: str, value: Any) -> int | None:
    return _largest(value) if _NAMES.fullmatch(name) and not _ELSEWHERE.search(name) else None


def _largest(value: Any) -> int | None:
    if isinstance(value, (list, tuple)):
        value = max((entry for entry in value if isinstance(entry, int)), default=None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 1 else None
