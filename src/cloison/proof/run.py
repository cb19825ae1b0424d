"""Subject: what is under test, as one function from blocks to outputs in packed row order.

A module with a collate function, a bare callable and an Adapter are the same to every experiment: `Subject.run(blocks)` gives
the outputs of every valid token, block after block and segment after segment, whatever the batch looked like on the way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.proof.blocks import lengths_of

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["OF_SAMPLES", "Outputs", "Subject", "ids_of", "logits_of", "on_device", "places", "single_batch", "subject"]

Batch = Mapping[str, Any]

NOT_PASSED = ("labels", "num_items_in_batch", "shift_labels")
"""Keys of a batch that ask a Hugging Face model for a loss; without them a forward gives logits on every path."""

OF_SAMPLES = "outputs of samples"
"""The kind of outputs that have one row a sample."""


@dataclass(frozen=True)
class Outputs:
    """What one forward gave, the rows of tokens in packed row order.

    Attributes:
        logits: [tokens, features], any float dtype; hidden states where the model has no head.
        hidden: [tokens, width] what entered the head, or None where the model does not say which module that is.
        batch: what the model was called with.
        places: int64 [tokens], where each token lies in the flattened ids of the batch, or None where outputs came in order.
        kind: "logits", "hidden states" where the model has no head, or `OF_SAMPLES`: one row a sample, which each of its tokens
            is given here.
    """

    logits: Tensor
    hidden: Tensor | None
    batch: Batch
    places: npt.NDArray[np.int64] | None
    kind: str = "logits"


@dataclass(frozen=True)
class Subject:
    """What is under test.

    Attributes:
        call: batch to the model's output.
        collate: blocks to batch.
        module: the torch module inside, or None for a callable that shows none (then there are no hooks and no gradients).
        single: block of one segment to the batch of that sample alone, not packed.
        call_single: batch of a sample alone to the model's output.
        name: for reports.
        retarget: gives the same subject over another module (a copy in another dtype), or None where that cannot be done.
        packs: whether it runs packed blocks; a copy of the module inside an Adapter only runs samples alone.
    """

    call: Callable[[Batch], Any]
    collate: Callable[[Sequence[Block]], Batch]
    module: nn.Module | None
    single: Callable[[Block], Batch]
    call_single: Callable[[Batch], Any]
    name: str
    retarget: Callable[[nn.Module], Subject] | None = None
    packs: bool = True

    def run(self, blocks: Sequence[Block]) -> Outputs:
        """Return the outputs of ``blocks`` packed as the user packs them."""
        return self._outputs(self.call, self.collate(blocks), blocks)

    def run_alone(self, block: Block) -> Outputs:
        """Return the outputs of a block of one segment, not packed at all: ids in a row of their own."""
        return self._outputs(self.call_single, self.single(block), [block])

    def run_batch(self, batch: Batch, blocks: Sequence[Block]) -> Outputs:
        """Return the outputs of a batch that holds ``blocks``, made by someone else."""
        return self._outputs(self.call, batch, blocks)

    def _outputs(self, call: Callable[[Batch], Any], batch: Batch, blocks: Sequence[Block]) -> Outputs:
        import torch

        batch = on_device(batch, self.module)
        head = _head(self.module)
        seen: list[Tensor] = []
        hook = None if head is None else head.register_forward_pre_hook(lambda _, args: seen.append(args[0]) if args else None)
        try:
            output = call(batch)
        finally:
            if hook is not None:
                hook.remove()
        logits = logits_of(output)
        at = places(batch, blocks)
        tokens = sum(lengths_of(blocks))
        hidden = seen[-1] if seen and seen[-1].shape[:-1] == logits.shape[:-1] else None
        kind = "hidden states" if logits is _field(output, "last_hidden_state") else "logits"
        lengths = lengths_of(blocks)
        if logits.dim() == 2 and logits.shape[0] == len(lengths) != tokens:
            spread = logits.repeat_interleave(torch.tensor(lengths, device=logits.device), dim=0)
            return Outputs(spread, None, batch, at, OF_SAMPLES)
        inner = None if hidden is None else _packed(hidden, at, tokens)
        return Outputs(_packed(logits, at, tokens), inner, batch, at, kind)


def subject(
    model: Any,
    collate: Callable[[Sequence[Block]], Batch] | None = None,
    alone: Callable[[Block], Batch] | None = None,
) -> Subject:
    """Return the Subject of ``model``: a torch module, a callable from batch to logits, or an Adapter.

    Args:
        model: a module is called with the batch as keywords; so is an Adapter (it has ``collate`` and is callable); any other
            callable gets the batch as its one argument.
        collate: how the user signals packing. Left out, an Adapter's own, and else `cloison.collate`'s.
        alone: block of one segment to the batch of that sample alone. Left out, a module gets the bare ``input_ids`` (and
            ``use_cache=False`` where it takes that), any other callable gets ``collate([block])``.
    """
    import torch

    if not callable(model):
        raise InputError(
            "verify takes a module, a callable from batch to logits, or an Adapter.",
            f"It got a {type(model).__name__}.",
            "Load the model first (AutoModelForCausalLM.from_pretrained or from_config), or run: cloison verify NAME.",
        )
    if hasattr(model, "encode") and hasattr(model, "decode"):
        raise InputError("verify takes a model.", f"It got a tokenizer ({type(model).__name__}).", "Pass the model.")
    owner = getattr(model, "__self__", None)
    if isinstance(owner, torch.nn.Module) and getattr(model, "__name__", "") in ("forward", "__call__"):
        model = owner
    name = type(model).__name__ if not inspect.isfunction(model) else model.__name__
    if isinstance(model, torch.nn.Module):
        return _of_module(model, collate or _default_collate(), alone or single_batch(model, collate), name)
    if hasattr(model, "collate"):
        own = collate or model.collate
        call = _caller(model)
        if not isinstance(getattr(model, "model", None), torch.nn.Module):
            return Subject(call, own, None, alone or (lambda block: own([block])), call, name)
        inner = _of_module(model.model, own, alone or single_batch(model.model, own), name)
        return replace(inner, call=call, retarget=lambda other: replace(_retargeted(inner, other), packs=False))
    if collate is None:
        raise InputError("a callable needs collate=.", "It was left out.", "Pass the function from blocks to its batch.")
    module = _module_behind(model)
    return Subject(model, collate, module, alone or (lambda block: collate([block])), model, name)


def _module_behind(call: Any) -> nn.Module | None:
    """Return the torch module that a callable calls: an attribute of it, its owner, or what a function closes over."""
    import torch

    if isinstance(call, partial):
        return _module_behind(call.func)
    owner = getattr(call, "__self__", None)
    held = [call, owner, *getattr(owner, "__dict__", {}).values(), *getattr(call, "__dict__", {}).values()]
    if inspect.isfunction(call):
        closed = inspect.getclosurevars(call)
        held += [*closed.nonlocals.values(), *closed.globals.values()]
    found = {id(value): value for value in held if isinstance(value, torch.nn.Module)}
    return next(iter(found.values())) if len(found) == 1 else None  # of several nobody says which it is


def _of_module(
    module: nn.Module, collate: Callable[[Sequence[Block]], Batch], single: Callable[[Block], Batch], name: str
) -> Subject:
    call = _caller(module)
    return Subject(call, collate, module, single, call, name, retarget=lambda other: _of_module(other, collate, single, name))


def _retargeted(subject: Subject, other: nn.Module) -> Subject:
    return _of_module(other, subject.collate, subject.single, subject.name)


def logits_of(output: Any) -> Tensor:
    """Return the logits of what a model returned: a tensor, or ``.logits``, ``["logits"]``, ``.last_hidden_state``.

    Of a tuple it is the first float tensor with two axes or more.

    Raises:
        InputError: none of these is there.
    """
    import torch

    if isinstance(output, torch.Tensor):
        found: Any = output
    elif isinstance(output, Mapping) or hasattr(output, "logits") or hasattr(output, "last_hidden_state"):
        found = None
        for name in ("last_hidden_state", "logits"):
            value = _field(output, name)
            found = found if value is None else value
    elif isinstance(output, (tuple, list)):
        found = next((v for v in output if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dim() >= 2), None)
    else:
        found = None
    if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.dim() < 2:
        raise InputError(
            "the model must return something for every token.",
            f"It returned {type(output).__name__} without logits or hidden states.",
            "Pass a callable from batch to logits, or switch on the model's logits.",
        )
    return found


def _field(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def ids_of(batch: Batch) -> Any:
    """Return the token ids of ``batch``: its ``input_ids``, or what models of one's own call them, or None."""
    names = ("input_ids", "idx", "tokens", "token_ids", "ids", "inputs", "x")
    for name in names if isinstance(batch, Mapping) else ():
        value: Any = batch.get(name)
        if hasattr(value, "dtype") and "int" in str(value.dtype) and value.ndim in (1, 2):
            return value
    return None


def places(batch: Batch, blocks: Sequence[Block]) -> npt.NDArray[np.int64] | None:
    """Return int64 [tokens]: where the valid tokens of ``blocks`` lie among the flattened ids of ``batch``.

    Found by the tokens themselves: flat rows, padded rows on either side, a row a sample, in any order. None where the batch
    shows no ids, or not these.
    """
    ids = ids_of(batch)
    if ids is None or not hasattr(ids, "detach"):
        return None
    rows = ids.detach().reshape(-1, ids.shape[-1]).cpu().numpy()
    samples = [sample.input_ids for block in blocks for sample in block.samples()]
    for parts in ([np.concatenate(samples)], [block.input_ids for block in blocks], samples):
        for right in (True, False):
            found = _one_a_row(rows, parts, right)
            if found is not None:
                return found
    return _anywhere(rows.reshape(-1), samples)


def _one_a_row(rows: npt.NDArray[Any], parts: list[npt.NDArray[Any]], right: bool) -> npt.NDArray[np.int64] | None:
    """Return the places where each part fills a row from its start (``right``: padding follows) or up to its end."""
    width = rows.shape[1]
    if len(rows) != len(parts) or any(part.size > width for part in parts):
        return None
    starts = [index * width + (0 if right else width - part.size) for index, part in enumerate(parts)]
    out = np.concatenate([np.arange(start, start + part.size) for start, part in zip(starts, parts, strict=True)])
    return out if np.array_equal(rows.reshape(-1)[out], np.concatenate(parts)) else None


def _anywhere(flat: npt.NDArray[Any], parts: list[npt.NDArray[Any]]) -> npt.NDArray[np.int64] | None:
    """Return the places of the parts, the longest first, each where it fits and no other part lies."""
    free = np.ones(flat.size, bool)
    found: dict[int, npt.NDArray[np.int64]] = {}
    for index in sorted(range(len(parts)), key=lambda i: -parts[i].size):
        part = parts[index]
        for start in np.flatnonzero(flat[: flat.size - part.size + 1] == part[0]).tolist():
            place = slice(start, start + part.size)
            if free[place].all() and np.array_equal(flat[place], part):
                free[place] = False
                found[index] = np.arange(start, start + part.size)
                break
        else:
            return None
    return np.concatenate([found[index] for index in range(len(parts))])


def _packed(values: Tensor, at: npt.NDArray[np.int64] | None, tokens: int) -> Tensor:
    """Return [tokens, features] of outputs [..., features]: by their places, or as they come where there are none."""
    import torch

    flat = values.reshape(-1, values.shape[-1])
    if at is not None and flat.shape[0] > int(at.max()):
        first, last = int(at[0]), int(at[-1])
        if np.array_equal(at, np.arange(first, last + 1)):
            return flat[first : last + 1].clone()  # a copy: a model may write its next outputs in the same place
        return flat.index_select(0, torch.from_numpy(at).to(flat.device))
    if at is None and flat.shape[0] == tokens:
        return flat
    raise InputError(
        f"the model must return something for each of the {tokens} tokens.",
        f"Its outputs have the shape {list(values.shape)}, which is not that of the ids in the batch.",
        "Return outputs with the index of input_ids, or in packed row order.",
    )


def on_device(batch: Batch, module: nn.Module | None) -> dict[str, Any]:
    """Return ``batch`` with its tensors (nested ones too) where the module's first parameter is."""
    import torch

    parameter = next(module.parameters(), None) if module is not None else None
    if parameter is None:
        return dict(batch)

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(parameter.device)
        if isinstance(value, Mapping):
            return {key: move(entry) for key, entry in value.items()}
        return value

    return {key: move(value) for key, value in batch.items()}


def _without_labels(batch: Batch) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key not in NOT_PASSED}


def _caller(model: Any) -> Callable[[Batch], Any]:
    return lambda batch: model(**_without_labels(batch))


def single_batch(module: nn.Module, collate: Callable[[Sequence[Block]], Batch] | None = None) -> Callable[[Block], Batch]:
    """Return the function that gives the bare ids of one sample, by the name that the module takes them by."""
    import torch

    parameters = inspect.signature(module.forward).parameters
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    # A wrapper that hands on what it gets says nothing of what is inside; a configuration does.
    caches = "use_cache" in parameters or (any_name and hasattr(getattr(module, "config", None), "use_cache"))

    by_embeds: list[bool] = []  # whether the user's batches are embeddings alone, once that is known

    def batch(block: Block) -> Batch:
        if collate is not None and (not by_embeds or by_embeds[0]):
            embeds = _embeddings_alone(collate, block)
            by_embeds[:] = [embeds is not None]
            if embeds is not None:  # the sample's own, which may be of another source than a table
                return {"inputs_embeds": embeds, "use_cache": False} if caches else {"inputs_embeds": embeds}
        ids = torch.from_numpy(block.input_ids.astype(np.int64))
        known = "input_ids" in parameters or any_name
        name = "input_ids" if known else _name_of_ids(set(parameters), ids, collate, block)
        return {name: ids[None], "use_cache": False} if caches else {name: ids[None]}

    return batch


def _embeddings_alone(collate: Callable[[Sequence[Block]], Batch], block: Block) -> Any:
    """Return the embeddings of a sample whose batch has no ids, or None; a collator need not take one sample."""
    try:
        given = collate([block])
    except Exception:  # whatever the user's own code raises
        return None
    return given.get("inputs_embeds") if isinstance(given, Mapping) and ids_of(given) is None else None


def _name_of_ids(takes: set[str], ids: Tensor, collate: Callable[[Sequence[Block]], Batch] | None, block: Block) -> str:
    """Return the name by which ``collate`` passes ids, where a model calls them otherwise than `input_ids`."""
    for name, value in ({} if collate is None else collate([block])).items():
        same = hasattr(value, "numel") and value.numel() == ids.numel() and bool((value.reshape(-1).to(ids) == ids).all())
        if name in takes and same:
            return str(name)
    raise InputError(
        "a model is called with input_ids=.",
        f"This one takes {', '.join(sorted(takes)) or 'nothing by name'}.",
        "Pass a callable from batch to logits: verify(lambda batch: model(batch['input_ids']), collate=cloison.collate).",
    )


def _default_collate() -> Callable[[Sequence[Block]], Batch]:
    from importlib import import_module

    flat: Callable[[Sequence[Block]], Batch] = import_module("cloison.forms.hf").flat
    return flat


def _head(module: nn.Module | None) -> nn.Module | None:
    """Return the module that makes logits of hidden states, where the model names it."""
    get = getattr(module, "get_output_embeddings", None)
    if get is None:
        return None
    try:
        head = get()
    except (NotImplementedError, AttributeError):
        return None
    import torch

    return head if isinstance(head, torch.nn.Module) else None
