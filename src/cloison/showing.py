"""How values show themselves in a notebook: a method that low layers carry, and a hook that finds what draws it when asked.

`cloison.view.notebook` draws; it lies above everything that is shown, so it is found by name when a notebook first asks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["DRAWN_BY", "repr_html"]

DRAWN_BY = "cloison.view.notebook"
"""The module whose ``html_of(value)`` returns the HTML of a value."""


def repr_html(value: Any) -> str:
    """Return the HTML of ``value``; classes carry it as ``_repr_html_``, which Jupyter calls."""
    html: str = import_module(DRAWN_BY).html_of(value)
    return html
