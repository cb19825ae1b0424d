"""Sandbox: chat templates rendered in a process of their own, which is killed when it does not answer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloison.errors import TemplateError
from cloison.text import renderer

__all__ = ["Job", "Sandbox"]

Job = tuple[str, list[Any], Any, Any, dict[str, Any]]
"""What is rendered: template name, messages, tools, documents, further variables."""

_KEPT = ("PATH", "SYSTEMROOT", "LANG", "TMPDIR", "TEMP", "TMP")
_KEPT_PREFIXES = ("PYTHON", "LC_", "LD_", "DYLD_")


def _environment() -> dict[str, str]:
    """Return what Python needs to start, and no secrets."""
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


class Sandbox:
    """A renderer process for one tokenizer's templates. It starts at once and runs beside its parent; `close` ends it.

    A record may take ``seconds`` and give ``characters``; the process may use ``limit_bytes`` of memory, and is killed where it
    does not stop by itself within ``patience`` seconds more. A record that
    breaks a limit is a TemplateError and the others go on: the process is started anew where it had to be killed.
    One thread at a time may call `render`.

    Cost: one Python process with jinja2 (about 25 MB); a record crosses the pipe as JSON twice, 20 microseconds for a
    chat of 600 characters.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        variables: Mapping[str, Any],
        date: str,
        seconds: float = 10.0,
        characters: int = 1 << 26,
        limit_bytes: int = 4 << 30,
        patience: float = 20.0,
    ) -> None:
        self._setting = {
            "templates": dict(templates),
            "variables": dict(variables),
            "date": date,
            "seconds": seconds,
            "characters": characters,
            "bytes": limit_bytes,
        }
        self._seconds = seconds
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: Any = None
        self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: the folder of the program would else come first on the path, and its files' names are those of other modules.
        command = [sys.executable, "-P", "-X", "utf8", renderer.__file__]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())
        self._process = process
        self._finalizer = weakref.finalize(self, _stop, process)
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it died at once; the first render says so
            renderer.write_frame(process.stdin, self._setting, default=_placeholder)  # type: ignore[arg-type]
        return process

    def close(self) -> None:
        """End the process."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = None

    def tags(self, name: str) -> list[str]:
        """Return the strings that template ``name`` looks for in texts, as ``</think>``; none where it does not parse."""
        answer, _ = self._exchange({"tags": name}, 1, None)
        return [str(tag) for tag in answer]

    def render(self, jobs: Sequence[Job], marked: bool = False) -> list[str | TemplateError]:
        """Return for each job its text, or the TemplateError that says why there is none."""
        results: list[str | TemplateError] = []
        flush = 256
        while len(results) < len(jobs):
            done, why = self._ask(jobs[len(results) :], marked, flush)
            results += done
            if why is None:
                continue
            if flush == 1 or len(jobs) - len(results) == 1:
                results.append(_error(why))
                flush = 256
            else:
                flush = 1  # ask again one by one, so that the record at fault is the first without an answer
        return results

    def _ask(self, jobs: Sequence[Job], marked: bool, flush: int) -> tuple[list[str | TemplateError], str | None]:
        """Return the answers that came, and why no more did."""
        frames, why = self._exchange({"records": jobs, "marked": marked, "flush": flush}, min(flush, 16), len(jobs))
        return [_error(error) if error is not None else text for text, error in frames], why

    def _exchange(self, request: dict[str, Any], share: int, count: int | None) -> tuple[list[Any], str | None]:
        """Send a request; return the items of its answers, ``count`` of them or one frame's, and why no more came."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        items: list[Any] = []
        limit = self._seconds * share + self._patience
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        def guarded(step: Callable[[], Any]) -> Any:
            watch = threading.Timer(limit, end)
            watch.daemon = True
            watch.start()
            try:
                return step()
            finally:
                watch.cancel()

        try:
            guarded(lambda: renderer.write_frame(process.stdin, request, default=_placeholder))  # type: ignore[arg-type]
            while count is None or len(items) < count:
                frame = guarded(lambda: renderer.read_frame(process.stdout))  # type: ignore[arg-type]
                if frame is None:
                    raise EOFError
                items += frame
                if count is None:
                    break
        except (OSError, EOFError, ValueError):
            killed = late.is_set()
            self.close()
            return items, f"it ran for more than {limit:g} s and was killed" if killed else "its process died"
        return items, None


def _placeholder(value: Any) -> Any:
    """Return what a template sees of a value that is no JSON: a name of its type, which runs nothing."""
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    if type(value).__module__ == "numpy" and callable(item) and getattr(value, "ndim", 1) == 0:
        return item()
    return f"<{type(value).__name__}>"


def _error(why: str) -> TemplateError:
    remedy = "Mend the record, or pass another chat_template."
    if "'list object'" in why or '"list"' in why:
        remedy = f"Where messages hold lists of parts, and the template takes texts: join the texts of the parts. {remedy}"
    return TemplateError("the chat template must render the record.", f"It does not: {why}.", remedy)
