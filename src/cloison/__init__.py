"""cloison: pack training samples into blocks, and prove on your own model that nothing bleeds.

The public names are found when first used, so ``import cloison`` loads numpy and little else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloison import errors as errors
    from cloison import forms as forms
    from cloison import losses as losses
    from cloison.blocks import Block as Block
    from cloison.checking.batch import check_batch as check_batch
    from cloison.checking.check import check as check
    from cloison.checking.report import CheckReport as CheckReport
    from cloison.exact import Adapter as Adapter
    from cloison.exact import adapt as adapt
    from cloison.formats.exporting import export as export
    from cloison.formats.importing import import_tokens as import_tokens
    from cloison.forms.hf import collate as collate
    from cloison.ledger import Ledger as Ledger
    from cloison.loading.anew import pair_anew as pair_anew
    from cloison.loading.loader import loader as loader
    from cloison.packing.job import pack as pack
    from cloison.packing.memory import pack_samples as pack_samples
    from cloison.packing.memory import unpack as unpack
    from cloison.planning.balancing import balance as balance
    from cloison.planning.planner import plan as plan
    from cloison.planning.plans import Plan as Plan
    from cloison.planning.sharding import merge_histograms as merge_histograms
    from cloison.planning.streams import stream as stream
    from cloison.proof.audit import Audit as Audit
    from cloison.proof.guard import Guard as Guard
    from cloison.proof.report import Verdict as Verdict
    from cloison.proof.report import VerifyReport as VerifyReport
    from cloison.proof.verify import verify as verify
    from cloison.proof.watch import watch as watch
    from cloison.samples import Sample as Sample
    from cloison.segments import Segments as Segments
    from cloison.spec import PackSpec as PackSpec
    from cloison.store.packed import Packed as Packed
    from cloison.store.packed import open as open
    from cloison.text.encode import encode as encode

__version__ = "0.1.0"

_HOMES = {
    "Audit": "proof.audit",
    "Adapter": "exact",
    "adapt": "exact",
    "Block": "blocks",
    "CheckReport": "checking.report",
    "Guard": "proof.guard",
    "Ledger": "ledger",
    "PackSpec": "spec",
    "Packed": "store.packed",
    "Plan": "planning.plans",
    "Sample": "samples",
    "Segments": "segments",
    "Verdict": "proof.report",
    "VerifyReport": "proof.report",
    "check": "checking.check",
    "check_batch": "checking.batch",
    "balance": "planning.balancing",
    "collate": "forms.hf",
    "encode": "text.encode",
    "loader": "loading.loader",
    "export": "formats.exporting",
    "import_tokens": "formats.importing",
    "open": "store.packed",
    "pack": "packing.job",
    "pair_anew": "loading.anew",
    "pack_samples": "packing.memory",
    "merge_histograms": "planning.sharding",
    "plan": "planning.planner",
    "stream": "planning.streams",
    "unpack": "packing.memory",
    "verify": "proof.verify",
    "watch": "proof.watch",
}
"""Public name to the module that defines it."""

_PACKAGES = ("errors", "forms", "losses")

__all__ = ["__version__", *_PACKAGES, *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"cloison.{_HOMES[name]}"), name)
    elif name in _PACKAGES:
        value = import_module(f"cloison.{name}")
    else:
        raise AttributeError(f"module 'cloison' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
