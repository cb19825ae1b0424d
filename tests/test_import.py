"""``import cloison`` is light, its public names are found when first used, and each of them is typed."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import cloison

HEAVY = {
    "torch",
    "transformers",
    "pyarrow",
    "numba",
    "scipy",
    "ray",
    "pandas",
    "datasets",
    "trl",
    "tokenizers",
    "jinja2",
    "rich",
}
SOURCE = Path(cloison.__file__).read_text(encoding="utf-8")


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split())


def test_import_loads_no_heavy_package() -> None:
    assert not loaded_by("import cloison") & HEAVY


def test_segments_and_spec_need_numpy_only() -> None:
    used = "import cloison\ncloison.Segments.from_lengths([3, 2]).cu_seqlens()\ncloison.PackSpec(capacity=8)"
    assert not loaded_by(used) & HEAVY


def test_the_test_of_lightness_can_fail() -> None:
    assert "jinja2" in loaded_by("import cloison, jinja2") & HEAVY


@pytest.mark.parametrize("name", [name for name in cloison.__all__ if name != "__version__"])
def test_every_public_name_is_found_where_it_is_said_to_be(name: str) -> None:
    home = cloison._HOMES.get(name)
    if home is None:
        assert getattr(cloison, name) is import_module(f"cloison.{name}")
    else:
        module = import_module(f"cloison.{home}")
        assert getattr(cloison, name) is getattr(module, name)
        assert name in module.__all__


def test_every_public_name_is_typed() -> None:
    block = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    typed = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(cloison.__all__) - {"__version__"}


def test_no_public_name_is_also_a_package() -> None:
    packages = {path.parent.name for path in Path(cloison.__file__).parent.glob("*/__init__.py")}
    assert not packages & set(cloison._HOMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        cloison.nonsense  # noqa: B018
