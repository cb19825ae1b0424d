"""Progress on standard error: for what takes longer than a second, and only where somebody watches."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["ProgressLine"]

_PATIENCE_S = 1.0


class ProgressLine:
    """A callable for ``progress=``: draws a bar once a second has passed, nothing when standard error is no terminal."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._watched = sys.stderr.isatty()
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` pieces of ``what`` are through."""
        if not self._watched or time.monotonic() - self._began < _PATIENCE_S:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done, total=total)
