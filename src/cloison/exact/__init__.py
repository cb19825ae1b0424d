"""The cheapest exact way to run packed blocks on a given model, found by experiment: `adapt`."""

from __future__ import annotations

from cloison.exact.adapt import adapt
from cloison.exact.adapter import Adapter

__all__ = ["Adapter", "adapt"]
