"""Reader and writer of Kafka's primitive types. Tagged fields are in `wire.tagged_fields`.

There are older types (with int16 and int32 lengths) and compact ones (with an unsigned varint of length + 1, KIP-482).
A length or count from a peer is compared with the bytes left before memory is allocated for it.
"""

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from coterie.nouns.errors import WireError

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

UUID_SIZE = 16
"""The size of a UUID, in bytes."""
STRING_SIZE_MAX = 2**15 - 1
"""The longest string that an int16 length allows, in bytes of UTF-8."""

_PRESENT, _ABSENT = 1, -1

ValueT = TypeVar("ValueT")


class Reader:
    """Reads one value after the other from ``data``, from ``position`` up to ``end``. Every method raises
    :class:`WireError` when the bytes left are too few or invalid."""

    __slots__ = ("_data", "_end", "position")

    def __init__(self, data: bytes | memoryview, position: int = 0, end: int | None = None) -> None:
        self._data = data
        self._end = len(data) if end is None else end
        self.position = position

    @property
    def remaining(self) -> int:
        """How many bytes have not been read yet."""
        return self._end - self.position

    def raw(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        return bytes(self._data[self._advance_and_return_start(size) : self.position])

    def int8(self) -> int:
        return int(_INT8.unpack_from(self._data, self._advance_and_return_start(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack_from(self._data, self._advance_and_return_start(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack_from(self._data, self._advance_and_return_start(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack_from(self._data, self._advance_and_return_start(8))[0])

    def boolean(self) -> bool:
        return self.int8() != 0

    def uuid(self) -> bytes:
        """The bytes of a UUID; all zero for Kafka's zero UUID."""
        return self.raw(UUID_SIZE)

    def uvarint(self) -> int:
        """An unsigned varint of at most 5 bytes, as Kafka writes lengths and tags."""
        return self._read_uvarint(5)

    def varint(self) -> int:
        """A zigzag varint of at most 5 bytes."""
        value = self._read_uvarint(5)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """A zigzag varint of at most 10 bytes."""
        value = self._read_uvarint(10)
        return (value >> 1) ^ -(value & 1)

    def string(self) -> str:
        """A string with an int16 length; null is an error."""
        return _not_null(self.nullable_string(), "string")

    def nullable_string(self) -> str | None:
        """A string with an int16 length; None for the length -1."""
        return self._read_sized_text(self.int16())

    def bytes_(self) -> bytes:
        """Bytes with an int32 length; null is an error."""
        return _not_null(self.nullable_bytes(), "bytes")

    def nullable_bytes(self) -> bytes | None:
        """Bytes with an int32 length; None for the length -1."""
        return self._read_sized_bytes(self.int32())

    def array(self, read_element: Callable[[], ValueT], *, element_size_min: int) -> list[ValueT]:
        """An array with an int32 count, read as in :meth:`nullable_array`; null is an error."""
        return _not_null(self.nullable_array(read_element, element_size_min=element_size_min), "array")

    def nullable_array(self, read_element: Callable[[], ValueT], *, element_size_min: int) -> list[ValueT] | None:
        """An array with an int32 count; None for the count -1. ``read_element`` reads one element.
        ``element_size_min``, at least 1, is the fewest bytes of one element: a count that needs more bytes than are
        left is rejected."""
        return self._read_elements(self.int32(), read_element, element_size_min)

    def compact_string(self) -> str:
        """A string with a compact length; null is an error."""
        return _not_null(self.compact_nullable_string(), "string")

    def compact_nullable_string(self) -> str | None:
        """A string with a compact length; None for null."""
        return self._read_sized_text(self.uvarint() - 1)

    def compact_bytes(self) -> bytes:
        """Bytes with a compact length; null is an error."""
        return _not_null(self.compact_nullable_bytes(), "bytes")

    def compact_nullable_bytes(self) -> bytes | None:
        """Bytes with a compact length; None for null."""
        return self._read_sized_bytes(self.uvarint() - 1)

    def compact_array(self, read_element: Callable[[], ValueT], *, element_size_min: int) -> list[ValueT]:
        """An array with a compact count, read as in :meth:`nullable_array`; null is an error."""
        return _not_null(self._read_elements(self.uvarint() - 1, read_element, element_size_min), "array")

    def compact_int32_array(self) -> tuple[int, ...]:
        """An array of int32 with a compact count; null is an error. Faster than :meth:`compact_array`."""
        count = self.uvarint() - 1
        if count == -1:
            raise _make_null_error("array")
        return struct.unpack_from(
            f">{self._check_count(count, 4)}i", self._data, self._advance_and_return_start(4 * count)
        )

    def read_presence(self) -> bool:
        """Whether a nullable struct follows: reads the int8 before it (KIP-893), 1 if it follows, -1 if it is null."""
        presence_mark = self.int8()
        if presence_mark not in (_PRESENT, _ABSENT):
            raise WireError(
                f"the mark of a nullable struct before position {self.position} is {presence_mark}; allowed: 1, -1"
            )
        return presence_mark == _PRESENT

    def varint_bytes(self) -> bytes | None:
        """Bytes as in keys, values and headers of records: a zigzag length, and the bytes; None for the length -1."""
        return self._read_sized_bytes(self.varint())

    def skip_tagged_fields(self) -> None:
        """Skip the tagged fields of a struct: reads their number, and passes over each of them."""
        for _ in range(self.tagged_field_count()):
            self.tagged_field()

    def tagged_field_count(self) -> int:
        """The number of tagged fields that follow."""
        return self._check_count(self.uvarint(), 2)

    def tagged_field(self) -> tuple[int, "Reader"]:
        """The tag of the next tagged field, and a reader of its content, which this reader has passed."""
        tag = self.uvarint()
        size = self.uvarint()
        start = self._advance_and_return_start(size)
        return tag, Reader(self._data, start, start + size)

    def expect_end(self) -> None:
        """Check that all bytes have been read.

        :raises WireError: when bytes are left.
        """
        if self.remaining:
            raise WireError(f"{self.remaining} bytes follow the last value")

    # -- helpers --------------------------------------------------------------------------------------------------

    def _advance_and_return_start(self, size: int) -> int:
        """Mark the next ``size`` bytes as read, and return the position at which they begin."""
        start = self.position
        if size < 0 or size > self._end - start:
            raise WireError(f"{size} bytes are expected at position {start}, but {self._end - start} are left")
        self.position = start + size
        return start

    def _read_uvarint(self, size_max: int) -> int:
        """The number in a varint of at most ``size_max`` bytes, as an unsigned number: the callers decode zigzag."""
        position = self.position
        if position < self._end and (byte := self._data[position]) < 0x80:
            self.position = position + 1  # nearly every varint has one byte
            return byte
        value = 0
        for shift in range(0, 7 * size_max, 7):
            byte = self._data[self._advance_and_return_start(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise WireError(f"the varint before position {self.position} has more than {size_max} bytes")

    def _read_sized_bytes(self, size: int) -> bytes | None:
        """The next ``size`` bytes; None for the size -1."""
        if size == -1:
            return None
        return self.raw(size)

    def _read_sized_text(self, size: int) -> str | None:
        """The next ``size`` bytes as text; None for the size -1."""
        raw = self._read_sized_bytes(size)
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"the string before position {self.position} is not UTF-8: {error.reason}") from error

    def _check_count(self, count: int, element_size_min: int) -> int:
        """``count``, a number of elements, after a check that the bytes left can contain them."""
        if count < 0 or count * element_size_min > self.remaining:
            raise WireError(f"{count} elements are announced at {self.position}, but {self.remaining} bytes are left")
        return count

    def _read_elements(
        self, count: int, read_element: Callable[[], ValueT], element_size_min: int
    ) -> list[ValueT] | None:
        """``count`` elements; None for the count -1."""
        if count == -1:
            return None
        return [read_element() for _ in range(self._check_count(count, element_size_min))]


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
        """All bytes written so far."""
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

    def uuid(self, value: bytes) -> None:
        """Write the 16 bytes of a UUID."""
        assert len(value) == UUID_SIZE
        self._data += value

    def uvarint(self, value: int) -> None:
        """Write an unsigned varint; ``value`` must not be negative."""
        assert value >= 0
        while value > 0x7F:
            self._data.append((value & 0x7F) | 0x80)
            value >>= 7
        self._data.append(value)

    def varint(self, value: int) -> None:
        """Write a zigzag varint, of up to 10 bytes for numbers of 64 bits."""
        self.uvarint(value << 1 if value >= 0 else (-value << 1) - 1)

    def string(self, value: str) -> None:
        """Write a string with an int16 length."""
        raw = value.encode()
        self.int16(len(raw))
        self._data += raw

    def nullable_string(self, value: str | None) -> None:
        """Write a string with an int16 length; the length -1 for None."""
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def bytes_(self, value: bytes) -> None:
        """Write bytes with an int32 length."""
        self.int32(len(value))
        self._data += value

    def nullable_bytes(self, value: bytes | None) -> None:
        """Write bytes with an int32 length; the length -1 for None."""
        if value is None:
            self.int32(-1)
        else:
            self.bytes_(value)

    def array_count(self, count: int) -> None:
        """Write the int32 count at the beginning of an array of a version that is not flexible; the caller writes the
        elements."""
        self.int32(count)

    def compact_string(self, value: str) -> None:
        """Write a string with a compact length."""
        self.compact_bytes(value.encode())

    def compact_nullable_string(self, value: str | None) -> None:
        """Write a string with a compact length; the length 0 for None."""
        self.compact_nullable_bytes(None if value is None else value.encode())

    def compact_bytes(self, value: bytes) -> None:
        """Write bytes with a compact length."""
        self.uvarint(len(value) + 1)
        self._data += value

    def compact_nullable_bytes(self, value: bytes | None) -> None:
        """Write bytes with a compact length; the length 0 for None."""
        if value is None:
            self.uvarint(0)
        else:
            self.compact_bytes(value)

    def compact_array_count(self, count: int) -> None:
        """Write the count at the beginning of a compact array; the caller writes the elements."""
        self.uvarint(count + 1)

    def compact_int32_array(self, values: Sequence[int]) -> None:
        """Write an array of int32 with a compact count."""
        self.compact_array_count(len(values))
        self._data += struct.pack(f">{len(values)}i", *values)

    def presence(self, is_present: bool) -> None:
        """Write the int8 before a nullable struct (KIP-893): 1 before a struct, which the caller writes, -1 for
        null."""
        self.int8(_PRESENT if is_present else _ABSENT)

    def varint_bytes(self, value: bytes | None) -> None:
        """Write bytes as in keys, values and headers of records: a zigzag length, -1 for None, and the bytes."""
        if value is None:
            self.varint(-1)
        else:
            self.varint(len(value))
            self._data += value

    def no_tagged_fields(self) -> None:
        """Write that there are no tagged fields: their count, 0."""
        self.uvarint(0)


def _not_null(value: ValueT | None, type_name: str) -> ValueT:
    """``value``, which was read and must not be null.

    :raises WireError: when it is None.
    """
    if value is None:
        raise _make_null_error(type_name)
    return value


def _make_null_error(type_name: str) -> WireError:
    return WireError(f"a {type_name} is null where null is not allowed")
