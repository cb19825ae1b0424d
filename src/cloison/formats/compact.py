"""Thrift's compact protocol, as far as the headers and the footer of a Parquet file need it: values and their bytes.

A value is (the number of its type, its bytes), so that a struct is a dict of field numbers and values, and nests.
Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["TRUE", "Value", "i8", "i32", "i64", "many", "parse", "struct", "text", "varint"]

Value = tuple[int, bytes]
"""The type's number and the bytes of a value."""

TRUE: Value = (1, b"")
"""A field that is true: its type says so."""


def i8(number: int) -> Value:
    """Return a byte."""
    return 3, bytes([number & 0xFF])


def i32(number: int) -> Value:
    """Return an integer of up to 32 bits."""
    return 5, varint(number << 1 ^ number >> 31)


def i64(number: int) -> Value:
    """Return an integer of up to 64 bits."""
    return 6, varint(number << 1 ^ number >> 63)


def text(words: str) -> Value:
    """Return a string, as UTF-8."""
    content = words.encode()
    return 8, varint(len(content)) + content


def many(values: Sequence[Value]) -> Value:
    """Return a list of values of one type, at least one."""
    kind = values[0][0]
    size = len(values)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return 9, head + b"".join(content for _, content in values)


def struct(fields: Mapping[int, Value]) -> Value:
    """Return a struct of fields by number; they ascend, by at most 15."""
    out, before = [], 0
    for number, (kind, content) in fields.items():
        out.append(bytes([(number - before) << 4 | kind]) + content)
        before = number
    return 12, b"".join(out) + b"\0"


def varint(number: int) -> bytes:
    """Return a number that is not negative, seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def parse(content: Any, at: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the struct in ``content`` that begins ``at`` that byte, by number, and where it ends.

    Raises:
        IndexError, ValueError, RecursionError: there is none.
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := content[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(content, at)
        fields[number], at = _value(content, at, head & 15)
    return fields, at + 1


def _value(content: Any, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return content[at], at + 1
    if kind in (4, 5, 6):
        return _integer(content, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _number(content, at)
        return bytes(content[at : at + size]), at + size
    if kind == 9:
        size, kind = content[at] >> 4, content[at] & 15
        size, at = _number(content, at + 1) if size == 15 else (size, at + 1)
        values = []
        for _ in range(size):
            value, at = (content[at], at + 1) if kind in (1, 2) else _value(content, at, kind)
            values.append(value)
        return values, at
    if kind == 12:
        return parse(content, at)
    raise ValueError(f"a value of type {kind}")


def _integer(content: Any, at: int) -> tuple[int, int]:
    number, at = _number(content, at)
    return number >> 1 ^ -(number & 1), at


def _number(content: Any, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 64:
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")
