"""The garbage collector while many records are read and dropped: it comes when that many are alive, not every few hundred.

Records are trees, which reference counts free. But those alive when the collector comes count as long-lived for it, and some
thousands of them make it walk over all that the process holds: 0.2 s where a training library has been imported.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["fewer_collections"]

_ALIVE = 200_000
"""More new objects than a job has alive at once; garbage in cycles beyond that is still found."""

_lock = threading.Lock()
_inside = 0
_before = (0, 0, 0)


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Let the collector come after `_ALIVE` new objects until the last such block ends; then as often as before."""
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = gc.get_threshold()
            if _before[0]:  # 0: the caller switched it off
                gc.set_threshold(max(_before[0], _ALIVE), *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_before)
