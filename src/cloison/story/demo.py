"""The main job from start to finish: pack, check and look, then a set-up that leaks beside one that does not."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloison.blocks import Block
from cloison.errors import InputError
from cloison.planning.planner import plan
from cloison.planning.plans import Plan
from cloison.spec import PackSpec
from cloison.story.corpus import chats

if TYPE_CHECKING:
    from cloison.checking.report import CheckReport
    from cloison.packing.tokens import Tokens
    from cloison.proof.report import VerifyReport
    from cloison.store.packed import Packed

__all__ = ["CAPACITY", "TOKENIZER", "Demo", "Judged", "run_demo", "trl_packing"]

CAPACITY = 4096
TOKENIZER = Path(__file__).parent / "tokenizer"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Judged:
    """One set-up and what `verify` said of it.

    Attributes:
        model_type: of transformers; the model is a tiny random one.
        report: the verdicts.
        seconds: wall time.
    """

    model_type: str
    report: VerifyReport
    seconds: float


@dataclass(frozen=True)
class Demo:
    """What the demo made and saw.

    Attributes:
        folder: where everything lies.
        packed, tokens, checked: the data set, what it was read from, and what `check` says.
        plans: other policies on the same lengths, by name.
        judged: verdicts on TRL's own packed batches, one a model; empty where torch or TRL is not installed (``missing``).
        missing: the name of the package that kept the models from being judged, or "".
        seconds: wall time of packing alone.
    """

    folder: Path
    packed: Packed
    tokens: Tokens
    checked: CheckReport
    plans: dict[str, Plan]
    judged: tuple[Judged, ...]
    missing: str
    seconds: float


def run_demo(out: Path, progress: Progress, model_types: Sequence[str] = ("gpt_oss", "llama")) -> Demo:
    """Run the demo in the folder ``out`` and return what it made. What an earlier demo left there is replaced.

    Raises:
        InputError: ``out`` holds something that no demo made.
    """
    from cloison.checking.check import check
    from cloison.packing.job import run_job

    _cleared(out)
    steps = 4 + len(model_types)
    progress("reading the standard library", 0, steps)
    source = out / "samples.jsonl"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats())
    progress("packing", 1, steps)
    began = time.perf_counter()
    spec = PackSpec(CAPACITY, carry=("source",))
    packed, tokens = run_job(str(source), str(out / "packed"), spec, tokenizer=str(TOKENIZER))
    seconds = time.perf_counter() - began
    progress("checking", 2, steps)
    checked = check(packed, tokenizer=str(TOKENIZER))
    progress("planning by other policies", 3, steps)
    lengths = tokens.store.lengths()
    plans = {policy: plan(lengths, CAPACITY, policy=policy, order="shuffled") for policy in ("look_ahead", "best_fit")}
    judged: list[Judged] = []
    missing = ""
    for index, model_type in enumerate(model_types):
        progress(f"TRL's packing on a tiny {model_type}", 4 + index, steps)
        try:
            judged.append(_judge(model_type))
        except ImportError as error:
            missing = (error.name or str(error)).split(".")[0]
            break
    progress("done", steps, steps)
    return Demo(out, packed, tokens, checked, plans, tuple(judged), missing, seconds)


def trl_packing(blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the batch that TRL's own collator makes of packed rows, as ``SFTConfig(packing=True)`` feeds them."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows = [
        {
            "input_ids": block.input_ids.tolist(),
            "labels": block.labels.tolist(),
            "seq_lengths": block.segments.seq_lengths.tolist(),
        }
        for block in blocks
    ]
    batch: dict[str, Any] = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    return batch | {"use_cache": False}  # as SFTTrainer passes it in every call


def _judge(model_type: str) -> Judged:
    from cloison.proof.tiny import tiny_model
    from cloison.proof.verify import verify

    began = time.perf_counter()
    model, _ = tiny_model(model_type)
    report = verify(model, collate=trl_packing)
    return Judged(model_type, report, time.perf_counter() - began)


_MADE = {"samples.jsonl", "packed", "tokens", "packed.html", "verdict.html"}


def _cleared(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    found = {path.name for path in out.iterdir()}
    if found and (found - _MADE or "samples.jsonl" not in found):
        raise InputError(
            f"the demo wants the folder {out} for itself.",
            f"It holds {min(found - _MADE or found)}.",
            "Name another with --out.",
        )
    for name in found:
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
