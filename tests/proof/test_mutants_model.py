"""Every planted fault of masks, positions, mixers and kernels is found and named rightly; no right version is accused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.proof.mutants_model import COUPLED, MUTANTS, verify_built

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found_and_named_and_its_right_version_is_not_accused(mutant):
    found, said = mutant.found()
    assert found, said
    accused, said = mutant.accused()
    assert not accused, said


@pytest.mark.parametrize("name", COUPLED)
def test_coupling_is_no_leak(name):
    report = verify_built(COUPLED[name])
    assert report["isolation"].status == "coupled"
    assert report["isolation"].evidence["cells_moved"] > 0
    assert report.ok
    assert [finding.kind for finding in report.findings] == ["coupled"]


def test_there_are_sixty_faults_of_different_names():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
