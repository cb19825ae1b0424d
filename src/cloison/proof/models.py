"""The model that a user names: a folder with weights, a config.json, or a model type; never code from outside."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cloison.errors import InputError, require

__all__ = ["DTYPES", "Loaded", "load_model"]

DTYPES = ("float32", "float64", "bfloat16", "float16")

TWIN_PARAMETERS = 300_000_000
"""A configuration without weights is built whole up to this many parameters; above, as a twin."""

TWIN_VOCABULARY = 8192
"""The ids that a twin knows."""


@dataclass(frozen=True)
class Loaded:
    """A model and what it is.

    Attributes:
        model: in eval mode, on the device and in the dtype that were asked for.
        said: what it is, in a line: which weights, or that they are random, and what a twin leaves out.
    """

    model: Any
    said: str


def load_model(name: str, *, attn: str | None = None, dtype: str | None = None, device: str = "cpu", seed: int = 0) -> Loaded:
    """Return the model ``name``: a folder with weights, a config.json (or its folder), or a model type of transformers.

    A type gives a tiny random model of it. A configuration without weights gives a random model; one of more than 300 million
    parameters a *twin*: one layer of each kind, real widths and heads, and 8,192 of its ids.

    Args:
        attn: attention implementation; None: the configuration's default (a tiny model's is eager).
        dtype: one of `DTYPES`; None: what the weights have, float32 where there are none.
        device: as torch names it.
        seed: of random weights.

    Raises:
        InputError: nothing of that name, weights that need code of their own, or an attention that cannot run here.
    """
    require("transformers", "hf")
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype is one of {', '.join(DTYPES)}.", f"{dtype!r} is none.", "Pass one of them.")
    path = Path(name)
    try:
        if path.is_dir() and list(path.glob("*.safetensors")):
            return _placed(_with_weights(path, attn, dtype), device, None)
        if path.is_dir() and list(path.glob("*.bin")):
            raise InputError(f"{name} must hold *.safetensors.", "Its weights are pickles, which run code.", "Convert them.")
        if path.is_file() or (path / "config.json").is_file():
            return _placed(_from_config(path, attn, seed), device, dtype)
        if path.is_dir():
            raise InputError(f"{name} must be a model.", "The folder has no config.json.", "Pass the folder of a model.")
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        from cloison.proof.tiny import tiny_model

        if name not in CONFIG_MAPPING:
            near = get_close_matches(name, list(CONFIG_MAPPING.keys()), 1)
            raise InputError(
                f"{name} must be the folder of a model, a config.json, or a model type of the installed transformers.",
                "There is no such path and no such type.",
                f"Is it {near[0]}?" if near else "Check the path. Names of hubs are not looked up: save the model to a folder.",
            )
        model, _ = tiny_model(name, seed, attn or "eager")
        return _placed(Loaded(model, f"a tiny random {name}"), device, dtype)
    except (ImportError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        said = (str(error).strip().splitlines() or [""])[0][:300]
        raise InputError(
            f"{name} must load as a causal language model.", said, "Try another --attn, or another model."
        ) from error


def _with_weights(path: Path, attn: str | None, dtype: str | None) -> Loaded:
    from transformers import AutoModelForCausalLM

    given: dict[str, Any] = {} if attn is None else {"attn_implementation": attn}
    model = AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype or "auto", **given
    )
    return Loaded(model, f"{model.config.model_type} with the weights of {path.name}")


def _from_config(path: Path, attn: str | None, seed: int) -> Loaded:
    import torch
    from transformers import AutoConfig
    from transformers import AutoModelForCausalLM as Auto

    build: Any = Auto.from_config

    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    given: dict[str, Any] = {} if attn is None else {"attn_implementation": attn}
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build(config, **given).parameters())
    said = f"{config.model_type}, random weights"
    if parameters > TWIN_PARAMETERS:
        kept, of = _shorten(config)
        said = f"a twin of {config.model_type}, random weights: {kept} of {of} layers, {config.vocab_size:,} ids, real widths"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(config, dtype=torch.float32, **given)
    return Loaded(model, said)


def _shorten(config: Any) -> tuple[int, int]:
    """Leave one layer of each kind, two at least, and the first ids, in ``config``; return (layers kept, layers before)."""
    text = config.get_text_config()
    layers = int(text.num_hidden_layers)
    plain = text.to_dict()
    lists = {name: value for name, value in plain.items() if isinstance(value, (list, tuple)) and len(value) == layers}
    kinds = list(zip(*(map(str, value) for value in lists.values()), strict=True)) or [()] * layers
    kept = [layer for layer in range(layers) if kinds[layer] not in kinds[:layer]][:8]
    if len(kept) < 2:
        kept = [0, min(1, layers - 1)]
    for name, value in lists.items():
        setattr(text, name, [value[layer] for layer in kept])
    text.num_hidden_layers = len(kept)
    text.vocab_size = min(int(text.vocab_size), TWIN_VOCABULARY)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(getattr(text, name, None), int) and getattr(text, name) >= text.vocab_size:
            setattr(text, name, None)
    return len(kept), layers


def _placed(loaded: Loaded, device: str, dtype: str | None) -> Loaded:
    import torch

    try:
        model = loaded.model.to(device=torch.device(device), dtype=None if dtype is None else getattr(torch, dtype))
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the model must go to {device}.", str(error).splitlines()[0], "Pass another --device.") from error
    return Loaded(model.eval(), loaded.said)
