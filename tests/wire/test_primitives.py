"""Kafka's primitive types: the compact ones, nullable structs, and hostile lengths and counts."""

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader, Writer

HUGE = "ffffffff0f"
"""The greatest length or count of 32 bits, as an unsigned varint."""


def written(write: Callable[[Writer], None]) -> bytes:
    writer = Writer()
    write(writer)
    return writer.getvalue()


def read_strings(reader: Reader) -> list[str]:
    return reader.compact_array(reader.compact_string, element_size_min=1)


@pytest.mark.parametrize(
    ("write", "expected", "read", "value"),
    [
        (lambda w: w.compact_string("ab"), "03 6162", Reader.compact_string, "ab"),
        (lambda w: w.compact_nullable_string(""), "01", Reader.compact_nullable_string, ""),
        (lambda w: w.compact_nullable_string("é"), "03 c3a9", Reader.compact_nullable_string, "é"),
        (lambda w: w.compact_nullable_string(None), "00", Reader.compact_nullable_string, None),
        (lambda w: w.compact_bytes(b"\x07"), "02 07", Reader.compact_bytes, b"\x07"),
        (lambda w: w.compact_bytes(bytes(200)), "c901" + "00" * 200, Reader.compact_bytes, bytes(200)),
        (lambda w: w.compact_nullable_bytes(b""), "01", Reader.compact_nullable_bytes, b""),
        (lambda w: w.compact_nullable_bytes(None), "00", Reader.compact_nullable_bytes, None),
        (lambda w: w.compact_array_count(0), "01", read_strings, []),
        (lambda w: w.compact_int32_array([]), "01", Reader.compact_int32_array, ()),
        (lambda w: w.compact_int32_array([1, -1]), "03 00000001 ffffffff", Reader.compact_int32_array, (1, -1)),
        (lambda w: w.uuid(bytes(range(16))), "000102030405060708090a0b0c0d0e0f", Reader.uuid, bytes(range(16))),
        (lambda w: w.presence(True), "01", Reader.read_presence, True),
        (lambda w: w.presence(False), "ff", Reader.read_presence, False),
    ],
)
def test_a_value_has_kafkas_bytes(
    write: Callable[[Writer], None], expected: str, read: Callable[[Reader], object], value: object
) -> None:
    data = written(write)
    assert data == bytes.fromhex(expected)
    reader = Reader(data)
    assert read(reader) == value
    reader.expect_end()


@given(st.lists(st.text(max_size=5), max_size=5))
def test_a_compact_array_contains_its_elements(elements: list[str]) -> None:
    writer = Writer()
    writer.compact_array_count(len(elements))
    for element in elements:
        writer.compact_string(element)
    reader = Reader(writer.getvalue())
    assert read_strings(reader) == elements
    reader.expect_end()


@pytest.mark.parametrize(
    ("data", "read", "message"),
    [
        ("00", Reader.compact_string, "a string is null"),
        ("00", Reader.compact_bytes, "bytes is null"),
        ("00", read_strings, "array is null"),
        ("00", Reader.compact_int32_array, "array is null"),
        ("02 ff", Reader.compact_string, "not UTF-8"),
        ("03 61", Reader.compact_string, "2 bytes are expected at position 1, but 1 are left"),
        ("03 00000001", Reader.compact_int32_array, "2 elements are announced at 1, but 4 bytes are left"),
        ("00" * 15, Reader.uuid, "16 bytes are expected"),
        ("00", Reader.read_presence, "the mark of a nullable struct before position 1 is 0"),
        ("02", Reader.read_presence, "is 2; allowed: 1, -1"),
        (HUGE, Reader.compact_string, "bytes are expected"),
        (HUGE, Reader.compact_nullable_bytes, "bytes are expected"),
        (HUGE + "00" * 99, read_strings, "elements are announced"),
        (HUGE + "00" * 99, Reader.compact_int32_array, "elements are announced"),
        (HUGE + "00" * 99, Reader.skip_tagged_fields, "elements are announced"),
        ("01 00" + HUGE, Reader.skip_tagged_fields, "bytes are expected"),
        ("ffffffffff01", Reader.compact_string, "more than 5 bytes"),
    ],
)
def test_malformed_bytes_are_refused_without_much_memory(
    data: str, read: Callable[[Reader], object], message: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=message):
            read(Reader(bytes.fromhex(data)))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
