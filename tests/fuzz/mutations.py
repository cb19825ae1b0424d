"""Changes of whole files: bytes flipped, cut, spliced and overwritten, and JSON with one value made hostile."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

__all__ = ["HOSTILE", "changed_bytes", "changed_json"]

_TELLING = (
    b"\x00" * 4,
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    b"\x00\x00\x00\x00\x00\x00\x00\x80",
    b"\n",
    b"[" * 64,
    b'{"a":' * 64,
    b"\xc3",
    b"\xef\xbb\xbf",
    b'"',
    b"\\ud800",
    b"1e999",
    b"NaN",
    b"-1",
    b"99999999999999999999999",
)
"""Bytes at which readers go wrong: edges of integers, halves of characters, brackets without an end."""

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 31,
    1 << 63,
    -(1 << 63) - 1,
    10**30,
    10**5000,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../../x",
    "/etc/passwd",
    "a\x00b",
    "\ud800",
    "\x1b[31m",
    "é" * 300,
    [],
    {},
    [[]],
    [None],
    ["x", 1],
    {"a": {"b": []}},
    [1 << 40] * 3,
)
"""Values that a field of a file of ours should not have."""


@st.composite
def changed_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw ``whole`` with one to four changes."""
    body = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        size = len(body)
        at = draw(st.integers(0, max(0, size - 1)))
        kind = draw(st.sampled_from(("flip", "set", "cut", "head", "drop", "telling", "insert", "splice", "twice")))
        if kind == "flip" and size:
            body[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and size:
            body[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del body[at:]
        elif kind == "head":
            del body[:at]
        elif kind == "drop":
            del body[at : at + draw(st.integers(1, 64))]
        elif kind == "telling":
            with_ = draw(st.sampled_from(_TELLING))
            body[at : at + len(with_)] = with_
        elif kind == "insert":
            body[at:at] = draw(st.sampled_from(_TELLING) | st.binary(min_size=1, max_size=16))
        elif kind == "splice" and size:
            start = draw(st.integers(0, size - 1))
            piece = bytes(body[start : start + draw(st.integers(1, 256))])
            body[at : at + len(piece)] = piece
        elif kind == "twice":
            body += body[at:]
    return bytes(body)


@st.composite
def changed_json(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw the JSON ``whole`` with one or two values, anywhere in it, replaced, left out, or put beside another."""
    value = json.loads(whole)
    for _ in range(draw(st.integers(1, 2))):
        holder: Any = {"root": value}
        key: Any = "root"
        while isinstance(holder[key], (dict, list)) and holder[key] and draw(st.integers(0, 5)):
            holder = holder[key]
            key = draw(st.sampled_from(sorted(holder)) if isinstance(holder, dict) else st.integers(0, len(holder) - 1))
        kind = draw(st.sampled_from(("replace", "replace", "nudge", "remove", "twice")))
        old = holder[key]
        if kind == "remove" and key != "root":
            del holder[key]
        elif kind == "nudge" and isinstance(old, (int, float)) and not isinstance(old, bool):
            holder[key] = old + draw(st.sampled_from((-1, 1, 0.5, 1 << 32)))
        elif kind == "nudge" and isinstance(old, str) and old:
            holder[key] = old[:-1] + ("0" if old[-1] != "0" else "1")
        elif kind == "twice" and isinstance(holder, list):
            holder.insert(key, deepcopy(old))
        else:
            holder[key] = deepcopy(draw(st.sampled_from(HOSTILE)))  # it may be changed in turn
        if key == "root":
            value = holder["root"]
    return _text(value).encode("utf-8", "surrogatepass")


def _text(value: Any) -> str:
    """Return JSON also of integers with more digits than Python prints by default."""
    import sys

    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value, ensure_ascii=False)
    finally:
        sys.set_int_max_str_digits(limit)
