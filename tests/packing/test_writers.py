"""What wrote the bytes: the solver counts where the plan is its answer, and only there."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from cloison.packing.writers import versions
from cloison.planning import POLICIES
from cloison.spec import PackSpec


@pytest.mark.parametrize("policy", POLICIES)
def test_the_version_of_the_solver_counts_where_the_plan_is_its_answer(policy: str) -> None:
    found = versions(policy)
    assert found.get("scipy") == (version("scipy") if policy in ("optimal", "mixed", "auto") else None)
    assert {name: known for name, known in found.items() if name != "scipy"} == versions()
    spec = PackSpec(capacity=64, policy=policy)  # type: ignore[arg-type]
    other = spec.fingerprint("key", {**found, "scipy": "0"})
    assert (other != spec.fingerprint("key", found)) and spec.fingerprint("key", found) == spec.fingerprint(
        "key", versions(policy)
    )


def test_what_is_not_installed_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloison.packing.writers._WRITERS", ("no-such-library",))
    assert versions() == {"no-such-library": "unknown"}
