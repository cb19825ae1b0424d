"""From chats to packed blocks, beside the least that any way must do, and beside TRL's preparation of the same data.

    python benchmarks/end_to_end.py [--rounds 3] [--skip-trl] [--times 10]

gsm8k train as chats with the Qwen3 tokenizer, capacity 2048, assistant-only targets. All in this process after imports,
with the tokenizer loaded, and ``encode_batch`` on all cores on both sides. The rounds alternate; the best of each side counts.

- floor: every chat rendered once by ``apply_chat_template``, and one ``encode_batch`` of the texts;
- cloison: ``pack`` into empty folders: read, render, tokenise, store, plan, write, hash, manifest;
- TRL: what ``SFTTrainer(packing=True)`` does to the data before training (it refuses assistant-only targets on this template,
  so it trains everything; caching of ``datasets`` is off).

Then the same data ten times as long, on workers, and how busy they keep the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

SHARED = Path(os.environ.get("CLOISON_SHARED", Path(__file__).resolve().parents[2] / "shared"))
CAPACITY = 2048


def chats() -> list[list[dict[str, str]]]:
    """Return gsm8k's training set as chats."""
    lines = (SHARED / "data" / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = map(json.loads, lines)
    return [[{"role": "user", "content": r["question"]}, {"role": "assistant", "content": r["answer"]}] for r in rows]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that ``work`` takes, and what it returns."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def floor(tokenizer: Any, data: list[list[dict[str, str]]]) -> dict[str, float]:
    """Render every chat once and tokenise the texts once."""
    rendering, texts = timed(lambda: [tokenizer.apply_chat_template(chat, tokenize=False) for chat in data])
    encoding, _ = timed(lambda: tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False))
    return {"rendering": rendering, "encoding": encoding, "total": rendering + encoding}


def packing(source: Path, tokenizer: Any, folder: Path, workers: int = 1) -> tuple[float, Any]:
    """Pack into empty folders."""
    from cloison import PackSpec, pack

    return timed(
        lambda: pack(
            source,
            folder / "out",
            PackSpec(CAPACITY, train_on="assistant"),
            tokenizer=tokenizer,
            tokens=folder / "tokens",
            workers=workers,
        )
    )


class TrlPreparation:
    """The preparation that a real SFTTrainer makes, timed inside its construction."""

    def __init__(self, tokenizer: Any, data: list[list[dict[str, str]]]) -> None:
        import datasets
        from transformers import LlamaConfig, LlamaForCausalLM

        datasets.disable_caching()
        datasets.disable_progress_bars()
        self.tokenizer = tokenizer
        self.dataset = datasets.Dataset.from_list([{"messages": chat} for chat in data])
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, **sizes))

    def run(self, folder: Path) -> tuple[float, int]:
        """Return the seconds of the preparation, and the rows that come out."""
        from trl import SFTConfig, SFTTrainer

        took: list[float] = []

        class Timed(SFTTrainer):  # type: ignore[misc]
            def _prepare_dataset(self, *args: Any, **kwargs: Any) -> Any:
                seconds, prepared = timed(lambda: super(Timed, self)._prepare_dataset(*args, **kwargs))
                took.append(seconds)
                return prepared

        config = SFTConfig(
            output_dir=str(folder), packing=True, max_length=CAPACITY, report_to=[], use_cpu=True, bf16=False, disable_tqdm=True
        )
        trainer = Timed(self.model, args=config, train_dataset=self.dataset, processing_class=self.tokenizer)
        return sum(took), len(trainer.train_dataset)


def busy(work: Callable[[], Any]) -> tuple[float, float]:
    """Return wall seconds, and how many cores' worth of CPU time this process and its children used meanwhile."""

    def cpu() -> float:
        spent = 0.0
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            spent += used.ru_utime + used.ru_stime
        return spent

    before = cpu()
    seconds, _ = timed(work)
    return seconds, (cpu() - before) / seconds


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=10, help="how many times the data for the long run; 0: no long run")
    parser.add_argument("--skip-trl", action="store_true")
    args = parser.parse_args()

    import transformers

    import cloison.packing.job  # noqa: F401  (imports are not what is timed)
    from cloison import plan

    plan([3, 2, 1], 4)  # compiled code is loaded
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "qwen3")
    data = chats()
    trl = None if args.skip_trl else TrlPreparation(tokenizer, data)
    least: list[dict[str, float]] = []
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = folder / "gsm8k.jsonl"
        lines = [json.dumps({"messages": chat}) + "\n" for chat in data]
        source.write_text("".join(lines), encoding="utf-8")
        for number in range(args.rounds):
            least.append(floor(tokenizer, data))
            seconds, packed = packing(source, tokenizer, folder / f"round-{number}")
            ours.append(seconds)
            if trl is not None:
                seconds, rows = trl.run(folder / f"trl-{number}")
                theirs.append(seconds)
        bottom = min(least, key=lambda one: one["total"])
        print(f"{len(data):,} chats, {packed.manifest.num_tokens:,} tokens, capacity {CAPACITY}, best of {args.rounds}")
        print(f"floor    {bottom['total']:.2f} s (rendering {bottom['rendering']:.2f}, encode_batch {bottom['encoding']:.2f})")
        print(f"cloison  {min(ours):.2f} s = {min(ours) / bottom['total']:.2f} x floor; {len(packed)} blocks (bar: 1.5)")
        if trl is not None:
            print(f"TRL      {min(theirs):.2f} s = {min(theirs) / min(ours):.2f} x cloison; {rows} rows (bar: 2.3)")
        if args.times:
            long = folder / "long.jsonl"
            long.write_text("".join(lines * args.times), encoding="utf-8")
            cores = len(os.sched_getaffinity(0))
            path = str(SHARED / "tokenizers" / "qwen3")
            seconds, used = busy(lambda: packing(long, path, folder / "long", workers=cores))
            print(f"{args.times} times the data on {cores} workers: {seconds:.2f} s, {used:.2f} of {cores} cores busy")


if __name__ == "__main__":
    main()
