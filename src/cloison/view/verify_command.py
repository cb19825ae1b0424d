"""Prove by experiment that MODEL keeps the samples of a packed row apart, and treats each as if it were alone.

MODEL is a folder with weights, a config.json (random weights; a large one as a twin with one layer of each kind), or a model
type of transformers such as gpt_oss (a tiny random one).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from cloison.errors import InputError
from cloison.view.outcome import Outcome
from cloison.view.output_option import add_html_option, refuse_existing_page
from cloison.view.whole_number import whole_number

if TYPE_CHECKING:
    from cloison.blocks import Block

__all__ = ["add_arguments", "run"]

_SIGNALS = ("none", "positions", "positions-ones", "mask4d", "mask4d-bool", "flattening")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cloison verify``."""
    parser.add_argument("model", metavar="MODEL", help="a folder with weights, a config.json, or a model type as gpt_oss")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="a packed data set to take blocks from, its folder or URL (default: awkward synthetic ones)",
    )
    parser.add_argument("--blocks", type=whole_number, default=2, metavar="N", help="how many of its blocks (default: 2)")
    parser.add_argument(
        "--attn",
        metavar="IMPL",
        help="attention: eager, sdpa, flex_attention, flash_attention_2, ... (default: as it loads; a tiny random one: eager)",
    )
    parser.add_argument(
        "--signal",
        choices=_SIGNALS,
        default="positions",
        help="how packing is told to the model (default: positions): none; position_ids that restart; these and an all-ones "
        "2-D mask; these and an additive float 4-D mask; these and a bool 4-D mask; DataCollatorWithFlattening",
    )
    parser.add_argument(
        "--use-cache",
        choices=("off", "default", "on"),
        default="off",
        help="use_cache=False, not passed, or True (default: off)",
    )
    parser.add_argument("--adapt", action="store_true", help="adapt the model first, and verify the adapter")
    parser.add_argument("--bidirectional", action="store_true", help="the model may look ahead inside a sample")
    parser.add_argument("--dtype", metavar="D", help="float32, float64, bfloat16 or float16 (default: that of the weights)")
    parser.add_argument("--device", default="cpu", metavar="D", help="as torch names it (default: cpu)")
    parser.add_argument("--seed", type=whole_number, default=0, metavar="S", help="of everything drawn (default: 0)")
    add_html_option(parser)


def run(args: Namespace) -> Outcome:
    """Verify one model under one signal."""
    from cloison.proof.models import load_model
    from cloison.proof.signals import signal
    from cloison.proof.verify import verify
    from cloison.view.page import write_page
    from cloison.view.terminal_verdict import report_view
    from cloison.view.verdict import verdict_page

    refuse_existing_page(args)
    loaded = load_model(args.model, attn=args.attn, dtype=args.dtype, device=args.device, seed=args.seed)
    blocks = None if args.data is None else _blocks(args, loaded.model)
    if args.adapt:
        from cloison.exact import adapt

        adapter = adapt(loaded.model)
        report = verify(adapter, blocks, seed=args.seed, bidirectional=args.bidirectional)
        how = "adapted" if adapter.certificate is None else f"adapted: {adapter.certificate.way}"
    else:
        parameter = next(loaded.model.parameters())
        collate = signal(args.signal, args.use_cache, parameter.dtype)
        report = verify(loaded.model, blocks, collate=collate, seed=args.seed, bidirectional=args.bidirectional)
        how = f"signal {args.signal}, use_cache {args.use_cache}"
    attention = getattr(loaded.model.config, "_attn_implementation", None)
    title = f"{loaded.said}; {attention} attention; {how}"
    if args.html is not None:
        write_page(verdict_page(report, title), args.html, replace=args.force)
    plain = {"title": title, "signal": args.signal, "use_cache": args.use_cache, **report.to_dict()}
    return Outcome(0 if report.ok else 1, report_view(report, title), plain)


def _blocks(args: Namespace, model: Any) -> list[Block]:
    from cloison.store.packed import open

    packed = open(args.data)
    if args.blocks < 1 or not len(packed):
        raise InputError("verify needs a block.", f"{args.data} has {len(packed)}, --blocks is {args.blocks}.", "Pass more.")
    blocks = [packed[index] for index in range(min(args.blocks, len(packed)))]
    vocabulary = model.get_input_embeddings().num_embeddings
    highest = max(int(block.input_ids.max()) for block in blocks)
    if highest >= vocabulary:
        raise InputError(
            f"the ids of {args.data} must be in the model's vocabulary.",
            f"They go to {highest:,} and the model knows {vocabulary:,}.",
            "Verify the model that the data was tokenised for, or leave --data out.",
        )
    return blocks
