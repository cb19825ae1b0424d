"""The atlas: isolation and equality of every causal-LM type that a tiny configuration can build, under every signal.

``python -m cloison.proof.atlas docs/atlas.csv`` measures it anew (`make atlas`) and writes a page beside it: one process for
each core, started afresh, a model type at a time. Names after the path measure these only, into that file. Columns beyond
those of `COLUMNS` that the file has already are kept where the row is still there.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from cloison.proof.atlas_page import page
from cloison.proof.blocks import alone, block_of, vocabulary
from cloison.proof.comparing import JITTER_MARGIN, MARGIN, Comparison, gap, jittered, rounding_of
from cloison.proof.equality import Equality, twin_of
from cloison.proof.isolation import influence, scale_of
from cloison.proof.keep import kept
from cloison.proof.mismatches import classify
from cloison.proof.run import Subject, subject
from cloison.proof.setup import FAILURES, Setup, coupling, where
from cloison.proof.signals import SIGNALS, UseCache, signal

__all__ = ["ATTENTIONS", "COLUMNS", "Row", "entries", "measure", "write"]

LENGTHS = (7, 29, 1, 11)
"""Tokens of the four samples: longer and shorter than every window, chunk, convolution and scaling limit, and a single one."""

ATTENTIONS = ("eager", "sdpa")

CASES: tuple[tuple[str, UseCache], ...] = (*((name, "off") for name in SIGNALS), ("positions", "default"))
"""The signals with the cache off, and the one that depends on it most with the cache as the model has it."""

SMALL = 1e-3
"""A move of fewer standard deviations than this is held against the controls for coupling; no leak is that small."""


@dataclass(frozen=True)
class Row:
    """One line of the atlas. ``verdict`` is exact, leak, mismatch or error; ``place`` the module where a leak enters."""

    model_type: str
    attention: str
    signal: str
    use_cache: str
    verdict: str
    place: str = ""
    detail: str = ""


COLUMNS = tuple(field.name for field in fields(Row))


def entries() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return what is in the atlas: name to (model type, changes of its tiny configuration); types first, variants after."""
    from cloison.proof.tiny import causal_types
    from cloison.proof.tiny_configs import VARIANTS

    types: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name, reason in causal_types().items() if not reason}
    return {**types, **{name: (model_type, dict(changes)) for name, (model_type, changes) in VARIANTS.items()}}


def measure(name: str, model_type: str, changes: dict[str, Any]) -> list[Row]:
    """Return the rows of one entry: every attention, every case."""
    from cloison.proof.tiny import tiny_model

    out: list[Row] = []
    for attention in ATTENTIONS:
        try:
            model, config = tiny_model(model_type, attn=attention, **changes)
        except FAILURES as error:
            out += [Row(name, attention, case, cache, "error", "", f"not built: {_first(error)}") for case, cache in CASES]
            continue
        out += _of_model(name, attention, model, config)
    return out


def _of_model(name: str, attention: str, model: Any, config: Any) -> Iterator[Row]:
    import torch

    ids = vocabulary(config)
    drawn = np.random.default_rng(0).choice(ids, sum(LENGTHS))
    blocks = [block_of(LENGTHS, drawn)]
    with torch.no_grad():
        with kept(model):
            plain = subject(model, signal("none"))
            reference, native, allowed = _alone(plain, blocks)
        for case, cache in CASES:
            with kept(model) as notes:
                setup = Setup(subject(model, signal(case, cache)), blocks, ids, 0, notes)
                try:
                    verdict, place, detail = _verdict(setup, reference, native, allowed)
                except FAILURES as error:
                    verdict, place, detail = "error", "", _first(error)
            yield Row(name, attention, case, cache, verdict, place, detail)


def _alone(plain: Subject, blocks: Sequence[Any]) -> tuple[Any, Any, float]:
    """Return (outputs alone in float64 where they run, the same in the model's dtype, what a packed run may differ by)."""
    import torch

    def joined(which: Subject) -> Any:
        return torch.cat([which.run_alone(block).logits for block in alone(blocks)])

    own = joined(plain)
    try:
        twin = twin_of(plain)
        exact = None if twin is None else joined(twin)
    except FAILURES:
        exact = None
    if exact is not None and (bool(torch.isfinite(exact).all()) or not bool(torch.isfinite(own).all())):
        return exact, own, MARGIN * gap(own, exact)
    with jittered(plain, rounding_of(own.dtype)):
        return own, own, JITTER_MARGIN * gap(joined(plain), own)


def _verdict(setup: Setup, reference: Any, native: Any, allowed: float) -> tuple[str, str, str]:
    base = setup.logits(setup.blocks)
    scale = scale_of(reference)
    moved = influence(setup.logits, setup.blocks, setup.ids, base=base, matrix=True)
    if not moved.isolated:
        place = where(setup, moved)
        coupled = coupling(setup, moved, place, allowed / scale) if moved.worst[2] < SMALL else ""
        if not coupled:
            source, destination, size = moved.worst
            nature = "" if place is None else f", {place.nature}"
            cells = f"{int(moved.cells.sum())} of {moved.cells.size - len(moved.cells)} cells"
            detail = f"{cells}, segment {source} moves segment {destination} by {size:.1g} sigma{nature}"
            return "leak", "" if place is None else place.module or "(between modules)", detail
    error = gap(base, reference)
    if error <= allowed:
        return "exact", "", ""
    compared = Comparison("logits", error / scale, allowed / scale, allowed / scale)
    errors = (base.double() - native.double()).abs().amax(-1).cpu().numpy() / scale
    found = classify(setup, Equality((compared,), errors, allowed / scale, "", (), native))
    return "mismatch", "", f"{error / scale:.1g} sigma, {found.kind}"


def _first(error: BaseException) -> str:
    said = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return " ".join(said.split())[:160]


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write ``rows`` to the CSV file ``path``, with the columns that others added to it."""
    before: dict[tuple[str, ...], dict[str, str]] = {}
    added: list[str] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            added = [name for name in reader.fieldnames or () if name not in COLUMNS]
            before = {tuple(line[name] for name in COLUMNS[:4]): line for line in reader}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *added])
        for row in rows:
            values = astuple(row)
            writer.writerow([*values, *(before.get(values[:4], {}).get(name, "") for name in added)])


def _worker(entry: tuple[str, tuple[str, dict[str, Any]]]) -> list[Row]:
    import warnings

    import torch
    from transformers import logging

    torch.set_num_threads(1)
    logging.set_verbosity(50)
    warnings.simplefilter("ignore")
    name, (model_type, changes) = entry
    return measure(name, model_type, changes)


def _main(arguments: Sequence[str]) -> int:
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor
    from time import monotonic

    from cloison.proof.tiny import causal_types

    started = monotonic()
    path, wanted = Path(arguments[0]), set(arguments[1:])
    listed = [(name, entry) for name, entry in entries().items() if not wanted or name in wanted]
    rows: list[Row] = []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done, found in enumerate(pool.map(_worker, listed), 1):
            rows += found
            sys.stderr.write(f"\r{done} of {len(listed)} entries, {monotonic() - started:.0f} s ")
            sys.stderr.flush()
    not_built = {name: reason for name, reason in causal_types().items() if reason and not wanted}
    rows += [Row(name, "", "", "", "error", "", f"not built: {reason}") for name, reason in not_built.items()]
    if wanted and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            fresh = {astuple(row)[:4]: row for row in rows}
            told = [Row(*(line[name] for name in COLUMNS)) for line in csv.DictReader(file)]
        rows = [fresh.pop(astuple(row)[:4], row) for row in told] + list(fresh.values())
    write(path, rows)
    if not wanted:
        from importlib.metadata import version

        from cloison.proof.tiny_configs import VARIANTS

        path.with_suffix(".md").write_text(page(rows, version("transformers"), list(VARIANTS)), encoding="utf-8")
    sys.stderr.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
