"""Thrift's compact protocol, as far as the headers and the footer of a Parquet file need it: values made into bytes.

A value is (the number of its type, its bytes), so that a struct is a dict of field numbers and values, and nests.
Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["TRUE", "Value", "i8", "i32", "i64", "many", "struct", "text", "varint"]

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
