"""Choices remembered by the key of a certificate: tried first the next time, and proven again, never believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloison.exact.certificate import Certificate

__all__ = ["remember", "remembered"]

_CHOICES: dict[str, dict[str, Any]] = {}
"""Those of this process."""


def remembered(key: str, cache: str | Path | None) -> dict[str, Any] | None:
    """Return the choice under ``key``, of this process or of the folder ``cache``, or None."""
    if key in _CHOICES:
        return _CHOICES[key]
    if cache is None:
        return None
    try:
        found = json.loads((Path(cache) / f"{key}.json").read_text(encoding="utf-8"))["choice"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def remember(key: str, cache: str | Path | None, certificate: Certificate) -> None:
    """Remember the choice of ``certificate`` under ``key``; with a folder, as the file ``<key>.json`` too."""
    _CHOICES[key] = dict(certificate.choice)
    if cache is not None:
        Path(cache).mkdir(parents=True, exist_ok=True)
        (Path(cache) / f"{key}.json").write_text(certificate.to_json(), encoding="utf-8")
