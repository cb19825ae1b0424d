"""The mutation score of the audit: every planted fault found and named, no right version accused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from cloison.proof.audit import Audit
from tests.proof.mutants_training import MUTANTS, Mutant


def errors(mutant: Mutant, tmp: Path, wrong: bool) -> tuple[str, ...]:
    trainer: Any = mutant.make(tmp, wrong)
    audit = Audit(weights=mutant.claim)  # type: ignore[arg-type]
    trainer.add_callback(audit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    assert audit.report is not None
    return tuple(sorted(f.kind for f in audit.report.findings if f.severity == "error"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_fault_is_found_and_named(mutant: Mutant, tmp_path: Path) -> None:
    assert errors(mutant, tmp_path, wrong=True) == tuple(sorted(mutant.kinds))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_right_version_is_not_accused(mutant: Mutant, tmp_path: Path) -> None:
    assert errors(mutant, tmp_path, wrong=False) == ()
