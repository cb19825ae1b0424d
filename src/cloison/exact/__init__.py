"""The cheapest exact way to run packed blocks on a given model, found by experiment: `adapt`."""

from __future__ import annotations

from cloison.exact.adapter import Adapter
from cloison.exact.adapt import adapt

__all__ = ["Adapter", "adapt"]
