"""The pytest plugin: the fixture ``cloison_verify``, for tests that keep a model, a collator and a loss exact.

It is on where cloison is installed (entry point pytest11). Loading it imports pytest alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["cloison_verify"]


@pytest.fixture
def cloison_verify() -> Callable[..., Any]:
    """A function like `cloison.verify` that fails the test where something is wrong, and returns the report otherwise.

    Takes one more keyword, ``allow``: kinds of findings that do not fail (``allow=["mismatch"]``).

    ::

        def test_packing(cloison_verify):
            cloison_verify(model, blocks, collate=my_collate, loss=my_loss)
    """
    from cloison.proof.verify import verify

    def run(*args: Any, allow: tuple[str, ...] | list[str] = (), **kwargs: Any) -> Any:
        __tracebackhide__ = True
        report = verify(*args, **kwargs)
        wrong = [finding for finding in report.findings if finding.severity == "error" and finding.kind not in allow]
        if wrong:
            kinds = ", ".join(dict.fromkeys(finding.kind for finding in wrong))
            pytest.fail(f"cloison found: {kinds}\n{report}", pytrace=False)
        return report

    return run
