"""Rendering, tokenising and finding what is trained, beside rendering every chat once and one `encode_batch`.

    python benchmarks/text.py [--tokenizer FOLDER] [--chats FILE] [--rounds N]

Both sides run in this process, in turns, on as many threads as the tokenizer takes; the ratio is of the fastest rounds. The
peer compiles the template once and does nothing else: no spans, no labels.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
SHARED = Path(os.environ.get("CLOISON_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def chats(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; question and answer become a chat of two turns."""
    from cloison.text.sources import open_sources, read_chunk

    found = []
    for job in open_sources([path]).jobs:
        for _, record in read_chunk(job):
            assert isinstance(record, dict), record
            if "question" in record:
                turns = (("user", record["question"]), ("assistant", record["answer"]))
                record = {"messages": [{"role": role, "content": words} for role, words in turns]}
            found.append(record)
    return found


def main() -> None:
    """Print the times of each round, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=SHARED / "tokenizers" / "qwen3")
    parser.add_argument("--chats", type=Path, default=SHARED / "data" / "gsm8k" / "train.jsonl")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    from cloison.spec import PackSpec
    from cloison.text.encoder import Encoded, Encoder
    from cloison.text.renderer import environment
    from cloison.text.shapes import read_record

    records = chats(options.chats)
    encoder = Encoder(options.tokenizer, PackSpec(capacity=2048))
    template = environment("2024-01-01").from_string(encoder.vocabulary.templates["default"])
    examples = [read_record(record, encoder.reading(record)) for record in records]
    special = dict(encoder.vocabulary.special)
    encoder.encode_batch(records[:2])

    def peer() -> None:
        texts = [
            template.render(messages=one.messages, tools=one.tools, documents=None, add_generation_prompt=False, **special)
            for one in examples
        ]
        encoder.vocabulary.backend.encode_batch(texts, add_special_tokens=False)

    def ours() -> list[Any]:
        return encoder.encode_batch(records)

    best = {"peer": float("inf"), "ours": float("inf")}
    done: list[Any] = []
    for number in range(options.rounds):
        for name, run in (("peer", peer), ("ours", ours)):
            gc.collect()
            begin = time.perf_counter()
            done = run() or done
            took = time.perf_counter() - begin
            best[name] = min(best[name], took)
            print(f"round {number}: {name} {took:.3f} s")
    good = [one for one in done if isinstance(one, Encoded)]
    tokens = sum(one.input_ids.size for one in good)
    marked = encoder._locator.renderings if encoder._locator else 0
    print(f"{len(records)} records, {len(good)} encoded, {tokens:,} tokens, {marked} marked renderings in all rounds")
    print(f"fastest: peer {best['peer']:.3f} s, ours {best['ours']:.3f} s, ratio {best['ours'] / best['peer']:.2f}")
    encoder.close()


if __name__ == "__main__":
    main()
