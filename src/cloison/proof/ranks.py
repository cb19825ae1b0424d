"""Ranks: experiments inside a distributed run, with as many forwards on every rank, and one verdict that all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Lockstep", "gathered", "world"]


def world() -> tuple[int, int]:
    """Return (rank, ranks) of torch's default process group, (0, 1) where there is none."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gathered(value: Any) -> list[Any]:
    """Return ``value`` of every rank, in order. All ranks must call it; the value must pickle."""
    import torch.distributed as dist

    _, ranks = world()
    if ranks == 1:
        return [value]
    out: list[Any] = [None] * ranks
    dist.all_gather_object(out, value)
    return out


class Lockstep:
    """Forwards that every rank runs together, though each decides for itself how many it needs.

    Before each forward the ranks say whether they still work; those that are done run ``idle`` along, so that collectives
    inside the model always meet. Use as a context manager around everything that calls it: leaving it waits for the others,
    also when this rank failed.
    """

    def __init__(self, idle: Callable[[], Any]) -> None:
        self._idle = idle
        self.forwards = 0

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, one forward, in step with the other ranks."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._working(True)
            self.forwards += 1
            return call(*args, **kwargs)

        return run

    def __enter__(self) -> Lockstep:
        return self

    def __exit__(self, *_: object) -> None:
        while self._working(False):
            self._idle()

    def _working(self, here: bool) -> bool:
        """Tell the others, and return whether any rank still works."""
        import torch
        import torch.distributed as dist

        _, ranks = world()
        if ranks == 1:
            return here
        backend = dist.get_backend()
        device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        count = torch.tensor([int(here)], device=device)
        dist.all_reduce(count)
        return bool(count.item())
