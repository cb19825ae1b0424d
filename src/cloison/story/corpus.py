"""Prompt/response samples made from the sources of the running Python's standard library.

Every machine with Python has them, they are real, and their lengths have a heavy tail. They depend on the version of Python
only: the same version gives the same samples in the same order.
"""

from __future__ import annotations

import ast
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["chats", "functions", "source_files"]

_LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib2to3",
    "turtledemo",
    "ensurepip",
}


def source_files() -> list[Path]:
    """Return the standard library's own source files, sorted by their path inside it; tests and installed packages left out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in root.rglob("*.py") if not _LEFT_OUT.intersection(path.relative_to(root).parts))
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def functions() -> Iterator[tuple[str, str, str, str]]:
    """Yield (module, qualified name, docstring, source without the docstring) of every documented function.

    Files that do not parse or decode are passed over: a vendor's library may hold templates and fixtures.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in source_files():
        try:
            text = path.read_text(encoding="utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError, OSError):
            continue
        module = path.relative_to(root).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        lines = text.splitlines()
        yield from _documented(tree, module, "", lines)


def _documented(node: ast.AST, module: str, prefix: str, lines: list[str]) -> Iterator[tuple[str, str, str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _documented(child, module, f"{prefix}{child.name}.", lines)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        doc = ast.get_docstring(child)
        if not doc or len(child.body) < 2:
            continue
        after = child.body[0].end_lineno or child.lineno
        head = lines[child.lineno - 1 : child.body[0].lineno - 1]
        body = lines[after : child.end_lineno]
        source = textwrap.dedent("\n".join(head + body)).strip()
        if source:
            yield module, prefix + child.name, doc, source


def chats(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield records of two messages: a docstring that asks for its function, and the function; ``source`` is the module.

    Args:
        limit: how many at most, spread evenly over the library; None: all (some thousands).
    """
    found = list(functions())
    step = 1.0 if limit is None else max(1.0, len(found) / limit)
    picked = (found[int(index * step)] for index in range(int(len(found) / step)))
    for module, name, doc, source in picked:
        ask = f"Write the function {name} of the module {module}.\n\n{doc}"
        yield {
            "messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": source}],
            "source": module.split(".")[0],
        }
