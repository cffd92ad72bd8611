"""Kafka's primitive types, read with every length checked against the bytes left, and written.

Old types (int16 and int32 lengths) and compact ones (unsigned varint of length + 1, KIP-482). A length or count from a
peer is compared with the bytes left before memory is allocated for it.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

from coterie.nouns.errors import WireError

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

STRING_SIZE_MAX = 2**15 - 1
"""The longest string that an int16 length allows, in bytes of UTF-8."""

T = TypeVar("T")


class Reader:
    """Reads one value after the other; every method raises :class:`WireError` when the bytes are too few or invalid."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes | memoryview, at: int = 0, end: int | None = None) -> None:
        self._data = data
        self._end = len(data) if end is None else end
        self.at = at

    @property
    def left(self) -> int:
        """How many bytes have not been read yet."""
        return self._end - self.at

    def raw(self, size: int) -> bytes:
        return bytes(self._data[self._take(size) : self.at])

    def int8(self) -> int:
        return int(_INT8.unpack_from(self._data, self._take(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack_from(self._data, self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack_from(self._data, self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack_from(self._data, self._take(8))[0])

    def boolean(self) -> bool:
        return self.int8() != 0

    def uvarint(self) -> int:
        """At most 5 bytes, as Kafka writes lengths and tags."""
        return self._varint(5)

    def varint(self) -> int:
        """Zigzag, at most 5 bytes."""
        value = self._varint(5)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Zigzag, at most 10 bytes."""
        value = self._varint(10)
        return (value >> 1) ^ -(value & 1)

    def string(self) -> str:
        return _not_null(self.nullable_string(), "string")

    def nullable_string(self) -> str | None:
        return self._text(self.int16())

    def bytes_(self) -> bytes:
        return _not_null(self.nullable_bytes(), "bytes")

    def nullable_bytes(self) -> bytes | None:
        return self._bytes(self.int32())

    def array(self, element: Callable[[], T], *, element_size_min: int) -> list[T]:
        return _not_null(self.nullable_array(element, element_size_min=element_size_min), "array")

    def nullable_array(self, element: Callable[[], T], *, element_size_min: int) -> list[T] | None:
        """``element_size_min``: the fewest bytes of one element, at least 1. A count that needs more bytes
        than are left is rejected."""
        return self._array(self.int32(), element, element_size_min)

    def compact_string(self) -> str:
        return _not_null(self._text(self.uvarint() - 1), "string")

    def varint_bytes(self) -> bytes | None:
        """Bytes as in keys, values and headers of records: a zigzag length, where -1 is null, and the bytes."""
        return self._bytes(self.varint())

    def skip_tagged_fields(self) -> None:
        for _ in range(self._count(self.uvarint(), 2)):
            self.uvarint()
            self._take(self.uvarint())

    def expect_end(self) -> None:
        if self.left:
            raise WireError(f"{self.left} bytes are left over")

    # -- helpers --------------------------------------------------------------------------------------------------

    def _take(self, size: int) -> int:
        start = self.at
        if size < 0 or size > self._end - start:
            raise WireError(f"{size} bytes are expected at {start}, but {self._end - start} are left")
        self.at = start + size
        return start

    def _varint(self, size_max: int) -> int:
        at = self.at
        if at < self._end and (byte := self._data[at]) < 0x80:
            self.at = at + 1  # nearly every varint has one byte
            return byte
        value = 0
        for shift in range(0, 7 * size_max, 7):
            byte = self._data[self._take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise WireError(f"a varint of more than {size_max} bytes ends at {self.at}")

    def _bytes(self, size: int) -> bytes | None:
        if size == -1:
            return None
        return self.raw(size)

    def _text(self, size: int) -> str | None:
        raw = self._bytes(size)
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"a string before {self.at} is not UTF-8: {error.reason}") from error

    def _count(self, count: int, element_size_min: int) -> int:
        if count < 0 or count * element_size_min > self.left:
            raise WireError(f"{count} elements are announced at {self.at}, but {self.left} bytes are left")
        return count

    def _array(self, count: int, element: Callable[[], T], element_size_min: int) -> list[T] | None:
        if count == -1:
            return None
        return [element() for _ in range(self._count(count, element_size_min))]


class Writer:
    """Writes one value after the other.

    Values come from this process. A value that does not fit its type is a bug in Coterie: `struct` raises an error.
    """

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def raw(self, value: bytes | bytearray | memoryview) -> None:
        self._data += value

    def int8(self, value: int) -> None:
        self._data += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self._data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self._data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self._data += _INT64.pack(value)

    def boolean(self, value: bool) -> None:
        self.int8(int(value))

    def uvarint(self, value: int) -> None:
        assert value >= 0
        while value > 0x7F:
            self._data.append((value & 0x7F) | 0x80)
            value >>= 7
        self._data.append(value)

    def varint(self, value: int) -> None:
        """Zigzag; numbers of 64 bits are written, too."""
        self.uvarint(value << 1 if value >= 0 else (-value << 1) - 1)

    def string(self, value: str) -> None:
        raw = value.encode()
        self.int16(len(raw))
        self._data += raw

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def bytes_(self, value: bytes) -> None:
        self.int32(len(value))
        self._data += value

    def nullable_bytes(self, value: bytes | None) -> None:
        if value is None:
            self.int32(-1)
        else:
            self.bytes_(value)

    def count(self, count: int) -> None:
        """The int32 count that begins an old array; the caller writes the elements."""
        self.int32(count)

    def compact_string(self, value: str) -> None:
        raw = value.encode()
        self.uvarint(len(raw) + 1)
        self._data += raw

    def varint_bytes(self, value: bytes | None) -> None:
        if value is None:
            self.varint(-1)
        else:
            self.varint(len(value))
            self._data += value

    def no_tagged_fields(self) -> None:
        self.uvarint(0)


def _not_null(value: T | None, what: str) -> T:
    if value is None:
        raise WireError(f"a {what} is null where null is not allowed")
    return value
