"""Give the samples of the packed data set DIR back, in source order, as JSON lines at DEST."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

import numpy as np

from cloison.errors import InputError
from cloison.places import place
from cloison.view.outcome import Outcome
from cloison.view.output_option import refuse_existing

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison unpack``."""
    parser.add_argument("path", metavar="DIR", help="a packed data set, its folder or URL")
    parser.add_argument("dest", metavar="DEST", help="the file of JSON lines to write")
    parser.add_argument("--force", action="store_true", help="replace DEST if it is there")
    parser.add_argument("--tokenizer", metavar="T", help="add the text of each sample, decoded by this tokenizer")


def run(args: Namespace) -> Outcome:
    """Write one line a sample: sample_id, input_ids, labels, what was carried, and with a tokenizer the text."""
    from cloison.packing.unpacking import unpack_in_order
    from cloison.store.files import replacing
    from cloison.store.packed import open

    if args.dest == "-":
        raise InputError("unpack writes a file.", "DEST is -.", "Name a file, as samples.jsonl.")
    refuse_existing(args.dest, replace=args.force)
    packed = open(args.path)
    backend = None
    if args.tokenizer is not None:
        from cloison.text.tokenizer import load_tokenizer

        backend = load_tokenizer(args.tokenizer).backend
    count = tokens = 0
    dest = place(args.dest)
    with replacing(dest) as part, part.open("w", encoding="utf-8", errors="surrogatepass") as file:
        for sample_id, sample in unpack_in_order(packed):
            line: dict[str, Any] = {
                "sample_id": sample_id,
                "input_ids": sample.input_ids.tolist(),
                "labels": sample.labels.tolist(),
            }
            if sample.loss_weights is not None:
                line["loss_weights"] = sample.loss_weights.tolist()
            line |= {name: _plain(value) for name, value in sample.columns.items()}
            if backend is not None:
                line["text"] = backend.decode(line["input_ids"], skip_special_tokens=False)
            file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
            count += 1
            tokens += len(sample)
    return Outcome(
        0, f"{count:,} samples, {tokens:,} tokens: {dest}", {"path": str(dest), "num_samples": count, "num_tokens": tokens}
    )


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
