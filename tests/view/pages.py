"""A real browser for the tests of pages, and what a page must never do in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str:
    """The system's browser, or skip and say so."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("CLOISON_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if not found:
        pytest.skip(f"no browser is installed (looked for {', '.join(_NAMES)}; set CLOISON_BROWSER)")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    path = browser_path()
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=path, args=quiet)
        yield opened
        opened.close()


@contextmanager
def opened(chromium: Any, path: Path, width: int = 1440, scheme: str = "light") -> Iterator[Any]:
    """The page at ``path``, opened from disk; at the end: no console message, no error, no request but the file itself."""
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: noise.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
    page.on("dialog", lambda dialog: (noise.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    yield page
    assert noise == []
    page.close()


def serious(page: Any) -> list[str]:
    """What axe-core finds of impact serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    # The page's own content policy forbids injected scripts, so axe runs in the tester's world, through evaluate.
    results = axe.run(page).response
    return [
        f"{violation['id']}: {node['html'][:120]}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
