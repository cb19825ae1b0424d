"""Prefetching: a cache line is on its way before it is needed, where the code knows the place and the processor does not.

Filling a plan writes to thousands of places in turn. Above the cache, each of these waits for memory unless it was asked for
some dozens of steps before: that is half of the time there, and nothing below. An index outside of the array does no harm.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

__all__ = ["prefetch_read", "prefetch_write"]


def _prefetch(write: int) -> Any:
    """Return a function of (array, uint64 index) that asks for the line of that entry: LLVM's ``prefetch``, into all caches."""

    def typed(typing_context: Any, array: Any, index: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            place = builder.bitcast(builder.gep(data, [args[1]]), pointer)
            builder.call(function, [place, i32(write), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(array, types.uint64), build

    return intrinsic(typed)


prefetch_read = _prefetch(0)
prefetch_write = _prefetch(1)
