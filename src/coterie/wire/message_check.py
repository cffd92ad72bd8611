"""Walks a peer's message before kio parses it, and rejects every count or length that is greater than the bytes that
follow allow.

kio's native parser allocates memory for as many elements as an array announces. For a JoinGroup v6 whose array of
protocols begins with `ff ff ff ff 0f`, that is more memory than the host has, and the process is aborted. So each
message is first walked by its schema (the `kafka_type` of kio's fields, flexible or not, tagged fields), and every
count and length is compared with the bytes left. The walk of each type of message is built once.

The walk also removes the tagged fields that are not in kio's schema, on every level: a newer peer may send such fields
and its messages must be accepted (KIP-482), but kio rejects them.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias, get_args, get_origin

from coterie.nouns.errors import WireError
from coterie.wire.primitives import STRING_SIZE_MAX, Writer
from coterie.wire.schemas import is_nullable, not_none

ELEMENTS_MAX = 500_000
"""The maximum number of array elements and tagged fields in one message, nested ones included.

The size of a frame is limited by the code that reads it from a connection. But an element of 3 bytes becomes some 100
bytes of objects, and each element takes time. Responses of large clusters come nearest to this limit: metadata of
50,000 partitions with three replicas each.
"""


class TooManyElementsError(WireError):
    """The message has more array elements and tagged fields than the caller allows. Raised before kio creates any of
    them."""


_FIXED_SIZES = {
    "bool": 1, "int8": 1, "uint8": 1,
    "int16": 2, "uint16": 2, "error_code": 2,
    "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8,
    "uuid": 16,
}  # fmt: skip
"""The sizes in bytes of kio's types that have a fixed size."""


class _MessageBytes:
    """The bytes of a message that is walked, and how many more elements it may contain."""

    __slots__ = ("data", "elements_left", "elements_max", "end", "rewritten")

    def __init__(self, data: bytes, elements_max: int) -> None:
        self.data = data
        self.end = len(data)
        self.elements_max = elements_max
        self.elements_left = elements_max
        self.rewritten: list[tuple[int, int, bytes]] = []
        """Replacements (start, end, bytes) in ascending order: tagged fields without those that kio's schema lacks."""

    def without_unknown(self) -> bytes:
        """The bytes with their replacements: without the tagged fields that kio's schema lacks."""
        return self.replaced(0, self.end, self.rewritten) if self.rewritten else self.data

    def replaced(self, start: int, end: int, replacements: list[tuple[int, int, bytes]]) -> bytes:
        """The bytes from ``start`` to ``end`` with those ``replacements`` that are between them."""
        parts: list[bytes] = []
        at = start
        for replaced_from, replaced_to, instead in replacements:
            if start <= replaced_from and replaced_to <= end:
                parts += (self.data[at:replaced_from], instead)
                at = replaced_to
        return b"".join((*parts, self.data[at:end]))

    def skip(self, at: int, size: int) -> int:
        """The position after the ``size`` bytes at ``at``.

        :raises WireError: when fewer bytes are left.
        """
        if size < 0 or size > self.end - at:
            raise WireError(f"{size} bytes are expected at position {at}, but {self.end - at} are left")
        return at + size

    def count(self, at: int, count: int, size_min: int) -> int:
        """``count``, the number of elements that begin at ``at``, each of at least ``size_min`` bytes, after a check.

        :raises WireError: when the bytes left are too few, or the message has too many elements.
        """
        if count < 0 or count * size_min > self.end - at:
            raise WireError(f"{count} elements are announced before position {at}, but {self.end - at} bytes are left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise TooManyElementsError(f"a message has more than {self.elements_max} elements")
        return count

    def number(self, at: int, size: int) -> int:
        """The signed number in the ``size`` bytes at ``at``."""
        return int.from_bytes(self.data[at : self.skip(at, size)], signed=True)

    def uvarint(self, at: int) -> tuple[int, int]:
        """The unsigned varint of at most 5 bytes at ``at``, and the position after it."""
        value = 0
        for shift in range(0, 35, 7):
            if at >= self.end:
                break
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise WireError(f"the varint before position {at} is cut off or too long")


_Walk: TypeAlias = Callable[[_MessageBytes, int], int]
"""Walks one value of a message from the given position, and returns the position after it."""


@dataclass(frozen=True, slots=True)
class _TypeCheck:
    """The walk of the values of one type."""

    walk: _Walk
    """Walks one value of the type."""
    size_min: int
    """The fewest bytes of one value."""
    fixed: bool = False
    """Whether every value has ``size_min`` bytes."""


def checked_message(data: bytes, at: int, entity_type: Any, *, elements_max: int = ELEMENTS_MAX) -> bytes:
    """Check the counts and lengths of the message of kio's ``entity_type`` that begins at position ``at``; return
    ``data`` without the tagged fields that kio's schema lacks. Bytes after the message stay and are ignored, as in
    Kafka: librdkafka sends some after its Metadata v12.

    :raises WireError: when a count or length exceeds the bytes left, or the message is malformed otherwise;
        `TooManyElementsError` when it has more than ``elements_max`` array elements and tagged fields.
    """
    message = _MessageBytes(data, elements_max)
    _entity(entity_type).walk(message, at)
    return message.without_unknown()


# -- the walks, built once for each type -------------------------------------------------------------------------------


@cache
def _entity(entity_type: Any) -> _TypeCheck:
    """The walk of a message or struct."""
    flexible: bool = entity_type.__flexible__
    plain: list[_TypeCheck] = []
    tagged: dict[int, _Walk] = {}
    for field in fields(entity_type):
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append(_field(field, flexible=flexible, nullable=is_nullable(field.type)))
        else:
            # A null tagged field is absent, so kio reads it without a null marker.
            tagged[tag] = _field(field, flexible=flexible, nullable=False).walk
    walks = tuple(_joined(plain))
    size_min = sum(shape.size_min for shape in plain) + flexible

    def walk(message: _MessageBytes, at: int) -> int:
        for step in walks:
            at = step(message, at)
        return _walk_tagged(message, at, tagged) if flexible else at

    return _TypeCheck(walk, size_min)


def _joined(checks: list[_TypeCheck]) -> list[_Walk]:
    """The walks of consecutive fields; adjacent fields of fixed size become one walk."""
    walks: list[_Walk] = []
    size = 0
    for shape in checks:
        if shape.fixed:
            size += shape.size_min
            continue
        if size:
            walks.append(_fixed(size).walk)
            size = 0
        walks.append(shape.walk)
    if size:
        walks.append(_fixed(size).walk)
    return walks


def _field(field: Field[Any], *, flexible: bool, nullable: bool) -> _TypeCheck:
    """The walk of one field."""
    inner: Any = not_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner = not_none(get_args(inner)[0])
    is_entity = is_dataclass(inner)
    element = _entity(inner) if is_entity else _primitive(field.metadata["kafka_type"], flexible=flexible)
    if is_array:
        assert element.size_min > 0, f"{field.name} has elements without bytes: nothing would limit their number"
        # kio accepts null even where the schema does not; the code that handles the message does not expect null there.
        return _array(element, flexible=flexible, nullable=is_nullable(field.type))
    return _nullable_entity(element) if nullable and is_entity else element


def _primitive(kafka_type: str, *, flexible: bool) -> _TypeCheck:
    """The walk of values of kio's type ``kafka_type``, none of which is a struct or array."""
    if kafka_type in _FIXED_SIZES:
        return _fixed(_FIXED_SIZES[kafka_type])
    if kafka_type not in ("string", "bytes", "records"):
        raise NotImplementedError(f"kio's type {kafka_type} has no walk in coterie.wire.message_check")
    is_string = kafka_type == "string"
    return _compact_bytes(is_string=is_string) if flexible else _sized_bytes(2 if is_string else 4)


def _fixed(size: int) -> _TypeCheck:
    """The walk of values of ``size`` bytes each."""
    return _TypeCheck(lambda message, at: message.skip(at, size), size, fixed=True)


def _compact_bytes(*, is_string: bool) -> _TypeCheck:
    """The walk of strings or bytes of a flexible version: an unsigned varint of length + 1 (0 for null), and the
    bytes."""

    def walk(message: _MessageBytes, at: int) -> int:
        size, at = message.uvarint(at)
        if is_string and size - 1 > STRING_SIZE_MAX:
            raise WireError(f"a string of {size - 1} bytes is longer than any version of Kafka's messages allows")
        return message.skip(at, size - 1) if size else at

    return _TypeCheck(walk, 1)


def _sized_bytes(length_size: int) -> _TypeCheck:
    """The walk of strings or bytes of an older version: a signed length of ``length_size`` bytes (-1 for null), and the
    bytes."""

    def walk(message: _MessageBytes, at: int) -> int:
        size = message.number(at, length_size)
        at += length_size
        return message.skip(at, size) if size != -1 else at

    return _TypeCheck(walk, length_size)


def _array(element: _TypeCheck, *, flexible: bool, nullable: bool) -> _TypeCheck:
    """The walk of arrays of ``element``."""

    def walk(message: _MessageBytes, at: int) -> int:
        if flexible:
            announced, at = message.uvarint(at)
            count = announced - 1
        else:
            count = message.number(at, 4)
            at += 4
        if count == -1 and nullable:
            return at
        count = message.count(at, count, element.size_min)
        if element.fixed:
            return message.skip(at, count * element.size_min)
        for _ in range(count):
            at = element.walk(message, at)
        return at

    return _TypeCheck(walk, 1 if flexible else 4)


def _nullable_entity(entity: _TypeCheck) -> _TypeCheck:
    """The walk of a struct that may be null, which follows one byte: -1 for null (KIP-893). Kafka reads every negative
    number as null, but kio reads a struct after each number but -1: the others are refused."""

    def walk(message: _MessageBytes, at: int) -> int:
        marker = message.number(at, 1)
        if marker < -1:
            raise WireError(f"the null marker {marker} of a struct at position {at} is neither -1 nor 1")
        return at + 1 if marker == -1 else entity.walk(message, at + 1)

    return _TypeCheck(walk, 1)


def _walk_tagged(message: _MessageBytes, at: int, tagged: dict[int, _Walk]) -> int:
    """Walk the tagged fields at ``at``; ``tagged`` has the walks of those in kio's schema. The others are marked for
    removal."""
    start = at
    replaced_before = len(message.rewritten)
    count, at = message.uvarint(at)
    known: list[tuple[int, int, int]] = []
    last_tag = -1
    for _ in range(message.count(at, count, 2)):
        tag, at = message.uvarint(at)
        if tag <= last_tag:
            raise WireError(f"the tagged field {tag} comes after the tagged field {last_tag}, before position {at}")
        last_tag = tag
        size, at = message.uvarint(at)
        end = message.skip(at, size)
        if tag in tagged:
            known.append((tag, at, end))
            if tagged[tag](message, at) != end:
                raise WireError(
                    f"the tagged field {tag} at position {at} is not {size} bytes long, as its length states"
                )
        at = end
    if len(known) < count or len(message.rewritten) > replaced_before:
        _rewrite_tagged(message, start, at, known, replaced_before)
    return at


def _rewrite_tagged(
    message: _MessageBytes, start: int, end: int, known: list[tuple[int, int, int]], replaced_before: int
) -> None:
    """Mark the tagged fields between the positions ``start`` and ``end`` for replacement by those in ``known`` (tag,
    start and end of the value). The replacements from the number ``replaced_before`` on are inside these fields. They
    become part of the one replacement, because the length before each field changes with them."""
    nested = message.rewritten[replaced_before:]
    del message.rewritten[replaced_before:]
    writer = Writer()
    writer.uvarint(len(known))
    for tag, value_start, value_end in known:
        value = message.replaced(value_start, value_end, nested)
        writer.uvarint(tag)
        writer.uvarint(len(value))
        writer.raw(value)
    message.rewritten.append((start, end, writer.getvalue()))
