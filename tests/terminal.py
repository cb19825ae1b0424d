"""What a terminal of a given width shows of something that rich renders."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

__all__ = ["shown"]


def shown(renderable: Any, width: int = 80, colour: bool = False) -> str:
    """Return the text, with escape codes only where ``colour`` is set."""
    file = io.StringIO()
    system: Any = "truecolor" if colour else None
    Console(width=width, file=file, force_terminal=colour, color_system=system, highlight=False).print(renderable)
    return file.getvalue()
