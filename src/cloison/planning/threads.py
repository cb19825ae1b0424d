"""Threads: work on several of them, with its results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["spread"]


def spread(threads: int, work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return ``work(*job)`` for each job, in order, on up to ``threads`` threads."""
    listed = list(jobs)
    if threads == 1 or len(listed) < 2:
        return [work(*job) for job in listed]
    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(work, *job) for job in listed]]
